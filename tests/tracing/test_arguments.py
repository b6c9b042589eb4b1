"""Other calls of a model have the tensors of the first in its order, or are refused by name."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import torch
from torch import nn

from hgpart.errors import ArgumentError, TraceError
from hgpart.tracing.arguments import Arguments, arguments_of
from hgpart.tracing.traced_model import trace

IMAGE, MASK, OTHER = (torch.zeros(2, channels, 4, 4) for channels in (3, 1, 5))


class Masked(nn.Module):
    """Takes a flag and a number besides tensors."""

    def forward(self, image, *, mask=None, scale=1.0, sides=(), flag=False):
        image = image * scale if mask is None else image * mask * scale
        for side in sides:
            image = image + side[:, :1]
        return -image if flag else image


class Many(nn.Module):
    """Takes what there is."""

    def forward(self, *images, weight, **masks):
        return sum(images) * weight * sum(masks.values())


def test_a_call_is_known_by_the_names_of_forward() -> None:
    found = arguments_of(Masked(), {"mask": MASK, "image": IMAGE, "scale": 2.0})
    assert found.names == ("image", "mask")
    assert [one is other for one, other in zip(found.tensors, (IMAGE, MASK), strict=True)]
    args, kwargs = found.call
    assert args == (IMAGE,)
    assert kwargs == {"mask": MASK, "scale": 2.0}


def test_tensors_of_other_calls_are_in_the_order_of_the_first() -> None:
    found = arguments_of(Masked(), {"image": IMAGE, "mask": MASK, "sides": [IMAGE, OTHER]})
    assert found.names == ("image", "mask", "sides[0]", "sides[1]")
    image, mask, *sides = others = [torch.ones_like(one) for one in found.tensors]
    for args, kwargs in (
        ((image,), {"mask": mask, "sides": sides}),
        ((image,), {"sides": sides, "scale": 1.0, "mask": mask}),
        ((), {"sides": sides, "flag": False, "mask": mask, "image": image}),
    ):
        got = found.tensors_of(args, kwargs)
        assert [id(one) for one in got] == [id(one) for one in others]
    again = found.with_tensors(others)
    assert again.call[1]["sides"][1] is sides[1]
    assert again.names == found.names


def test_any_number_of_arguments() -> None:
    given = {"weight": OTHER, "a": MASK, "b": MASK + 1}
    images = (IMAGE, IMAGE + 1)
    model = Many()
    found = arguments_of(model, given | {"c": MASK})
    assert found.names == ("weight", "a", "b", "c")
    assert found.call == ((), given | {"c": found.given["c"]})
    assert found.tensors_of((), {"a": IMAGE, "b": MASK, "weight": OTHER, "c": MASK})[1] is IMAGE
    with pytest.raises(
        ArgumentError, match=r"^c, b, a by name, in this order: accepted is a, b, c, as Many was tr"
    ):  # a forward that goes through them computed with the values of others
        found.tensors_of((), {"c": MASK, "b": MASK, "a": IMAGE, "weight": OTHER})
    with pytest.raises(ArgumentError, match=r"^c is left out: accepted is a tensor, as Many was"):
        found.tensors_of((), given)
    with pytest.raises(ArgumentError, match=r"^d is a tensor: accepted is left out, as Many was"):
        found.tensors_of((), given | {"c": MASK, "d": MASK})
    with pytest.raises(ArgumentError, match=r"^images is \(a tensor, a tensor\): accepted is \(\)"):
        found.tensors_of(images, given | {"c": MASK})


def test_a_shape_is_no_example():
    with pytest.raises(ArgumentError, match=r"it is \(3, 32, 32\): accepted are tensors"):
        arguments_of(nn.Identity(), (3, 32, 32))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {"mask": MASK}, "missing a required argument: 'image': accepted are inputs for "),
        ((IMAGE, MASK), {}, "too many positional arguments: accepted are inputs for Masked.f"),
        ((IMAGE,), {"image": IMAGE}, "multiple values for argument 'image': accepted are inp"),
        (
            (IMAGE,),
            {"msk": MASK},
            r"got an unexpected keyword argument 'msk': accepted are inputs for Masked.forward\("
            r"image, \*, mask=None, scale=1.0, sides=\(\), flag=False\)",
        ),
        ((IMAGE,), {}, "mask is None: accepted is a tensor, as Masked was traced with"),
        ((None,), {"mask": MASK}, "image is None: accepted is a tensor, as Masked was traced w"),
        ((IMAGE,), {"mask": [MASK]}, r"mask is \[a tensor\]: accepted is a tensor, as Masked"),
        ((IMAGE,), {"mask": 1.0}, "mask is 1.0: accepted is a tensor, as Masked was traced with"),
        ((IMAGE,), {"mask": MASK, "scale": 3.0}, "scale is 3.0: accepted is 1.0, as Masked was"),
        ((IMAGE,), {"mask": MASK, "scale": 1}, "scale is 1: accepted is 1.0, as Masked was trac"),
        ((IMAGE,), {"mask": MASK, "scale": MASK}, "scale is a tensor: accepted is 1.0, as Mask"),
        ((IMAGE,), {"mask": MASK, "flag": True}, "flag is True: accepted is False, as Masked w"),
        ((IMAGE,), {"mask": MASK, "sides": [MASK]}, r"sides is \[a tensor\]: accepted is \(\), as"),
    ],
)
def test_what_other_calls_are_refused_for(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    found = arguments_of(Masked(), {"image": IMAGE, "mask": MASK})
    with pytest.raises(ArgumentError, match=f"^{message}"):
        found.tensors_of(args, kwargs)


def test_what_was_given_holds_and_not_what_forward_gives() -> None:
    found = arguments_of(Masked(), {"image": IMAGE, "scale": 2.0})
    assert found.tensors_of((OTHER,), {"scale": 2.0})[0] is OTHER
    with pytest.raises(
        ArgumentError, match=r"^scale is 1.0: accepted is 2.0, as Masked was traced"
    ):
        found.tensors_of((OTHER,), {})
    with pytest.raises(ArgumentError, match=r"^mask is a tensor: accepted is None, as Masked was"):
        found.tensors_of((OTHER,), {"scale": 2.0, "mask": MASK})


def test_a_default_that_is_a_tensor_is_left_out() -> None:
    class Own(nn.Module):
        def forward(self, image, gain=OTHER):
            return image * gain.sum()

    found = arguments_of(Own(), IMAGE)
    assert found.tensors_of((MASK,), {})[0] is MASK
    said = r"^gain is a tensor: accepted is to leave it out, as Own was traced with$"
    with pytest.raises(ArgumentError, match=said):
        found.tensors_of((IMAGE, MASK), {})


def test_some_may_be_elsewhere() -> None:
    found = arguments_of(Masked(), {"image": IMAGE, "sides": [IMAGE, OTHER]})
    assert found.tensors_here((), {}) == [None] * 3
    assert found.tensors_here((None,), {"sides": None}) == [None] * 3
    assert found.tensors_here((IMAGE,), {"sides": [None, OTHER]})[1:] == [None, OTHER]
    with pytest.raises(ArgumentError, match=r"^scale is 3.0: accepted is 1.0"):
        found.tensors_here((None,), {"sides": None, "scale": 3.0})
    with pytest.raises(ArgumentError, match=r"^sides is \(\): accepted is \[a tensor, a tensor\]"):
        found.tensors_here((IMAGE,), {})


@pytest.mark.parametrize(
    "example",
    [
        IMAGE,
        [IMAGE],
        {"image": IMAGE},
        {"image": IMAGE, "scale": 1.0, "mask": None},
    ],
)
def test_a_call_of_one_image_has_its_sizes(example: Any) -> None:
    assert arguments_of(Masked(), example).sample_shape() == (3, 4, 4)


def test_a_call_of_several_tensors_has_their_texts() -> None:
    labels = torch.zeros(2, dtype=torch.int64)
    found = arguments_of(Masked(), {"mask": labels, "image": IMAGE, "scale": IMAGE[:, 0]})
    assert found.sample_shape() == ("image=3,4,4", "mask=:int64", "scale=4,4")


@pytest.mark.parametrize(
    "example",
    [
        {"image": IMAGE, "scale": 2.0},
        {"image": IMAGE, "sides": [IMAGE]},
        {"image": IMAGE, "mask": torch.ones(3)},
        {"image": IMAGE, "mask": MASK.to(torch.complex64)},
    ],
)
def test_a_call_that_no_plan_file_holds(example: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"^Masked is called with image, .*: accepted for a pl"):
        arguments_of(Masked(), example).sample_shape()


def test_tensors_that_forward_takes_as_many_as_there_are_have_no_names() -> None:
    class Some(nn.Module):
        def forward(self, *images, weight=None): ...

    assert arguments_of(Some(), [IMAGE, MASK]).sample_shape() == ("3,4,4", "1,4,4")
    signature = inspect.signature(Some().forward)
    found = Arguments("Some", signature, {"images": (IMAGE,), "weight": MASK}, (True, True))
    with pytest.raises(ArgumentError, match="accepted for a plan file are tensors with samples"):
        found.sample_shape()


def test_tensors_in_a_list_with_a_dict_for_each_sample_are_whole() -> None:
    """A detector's boxes were taken for samples where each image had as many as the batch."""

    class Detector(nn.Module):
        def forward(self, images: torch.Tensor, targets: Any, scales: Any = ()) -> None: ...

    images, each = torch.zeros(2, 3, 4, 4), {"boxes": torch.zeros(2, 4)}
    assert arguments_of(Detector(), [images, [each, each]]).batches == (True, False, False)
    assert arguments_of(Detector(), [images, (each, {})]).batches == (True, False)
    # As many dicts as something else than samples, or tensors alone, have all samples each.
    assert arguments_of(Detector(), [images, [each]]).batches == (True, True)
    assert arguments_of(Detector(), [images, each, [images, images]]).batches == (True,) * 4


def test_a_trace_has_the_tensors_in_that_order() -> None:
    example = {"mask": MASK, "flag": True, "sides": [IMAGE, OTHER], "image": IMAGE}
    traced = trace(Masked(), example)
    assert traced.inputs == ("image", "mask", "sides_0", "sides_1")
    assert [one.shape for one in traced.example] == [
        one.shape for one in (IMAGE, MASK, IMAGE, OTHER)
    ]
    assert all(one.is_meta for one in traced.example)
    values = dict(
        zip(traced.inputs, map(torch.randn_like, (IMAGE, MASK, IMAGE, OTHER)), strict=True)
    )
    placeholders = traced.graph_module.graph.find_nodes(op="placeholder")
    (found,) = traced.graph_module(*(values.get(node.name) for node in placeholders))
    image, mask, *sides = values.values()
    torch.testing.assert_close(found, Masked()(image, mask=mask, sides=sides, flag=True))


def test_one_tensor_in_two_places_is_two_inputs() -> None:
    """torch.export took it for one: a call with two others computed with the first alone."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3, 4, 4))

        def forward(self, first, second):
            return first - 2 * second + self.weight

    model = Sum()
    for second in (IMAGE, model.weight):
        traced = trace(model, [IMAGE, second])
        values = {"first": torch.randn_like(IMAGE), "second": torch.randn_like(IMAGE)}
        placeholders = traced.graph_module.graph.find_nodes(op="placeholder")
        (found,) = traced.graph_module(
            *(values.get(one.name, model.weight) for one in placeholders)
        )
        torch.testing.assert_close(found, model(**values))
    with pytest.raises(ArgumentError, match="missing a required argument: 'second': accepted are"):
        trace(model, IMAGE)


@dataclasses.dataclass
class Pair:
    image: torch.Tensor
    mask: torch.Tensor


class OfPair(nn.Module):
    def forward(self, pair: Any) -> Any:
        return Pair(pair.image * pair.mask, pair.mask)


def test_dataclasses_are_named_until_torch_knows_them() -> None:
    """The example was said to hold no batch, and a result asked for a pytree."""
    pair, known = Pair(IMAGE, MASK), "accepted are tensors in tuples, .* torch.export.register_data"
    with pytest.raises(ArgumentError, match=rf"^pair is a .*\.Pair: {known}"):
        trace(OfPair(), [pair])
    with pytest.raises(TraceError, match=rf"it returns a .*\.Pair: {known}"):
        trace(Returning(), [IMAGE])
    torch.export.register_dataclass(Pair)
    assert len(trace(OfPair(), [pair]).results) == 2


class Returning(nn.Module):
    def forward(self, image: torch.Tensor) -> Any:
        return Pair(image, image + 1)


def test_arrays_are_named_by_their_type() -> None:
    """A message had all numbers of an array."""
    with pytest.raises(
        ArgumentError, match=r"^image is a numpy.ndarray: accepted is a tensor, such as"
    ):
        trace(Masked(), {"image": IMAGE.numpy(), "mask": MASK})
    found = arguments_of(Masked(), {"image": IMAGE, "mask": MASK})
    with pytest.raises(
        ArgumentError, match=r"^image is a numpy.ndarray: accepted is a tensor, as Masked"
    ):
        found.tensors_of((IMAGE.numpy(),), {"mask": MASK})
