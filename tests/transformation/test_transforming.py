"""Transformed models trace, partition, run in parts, and hold the original's weights."""

from __future__ import annotations

import copy
import itertools
import pickle
from functools import cache

import pytest
import torch
from _pytest.mark import ParameterSet
from placed_models import placed
from torch import Tensor, nn
from transformed_models import CELLS, EXAMPLE, Basic, model_of

from hgpart import load_model, transform
from hgpart.errors import ArgumentError, ModelError, TraceError
from hgpart.run.verifying import verify
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.transformation.transforming import KINDS, transformation

FEW = [("basic", "parallel"), ("inverted", "grouped"), ("channels last", "split")]
FEW += [("inception", "split")]
OTHERS = [(cells, kind) for kind in KINDS for cells in CELLS if (cells, kind) not in FEW]
OTHERS.remove(("channels last", "grouped"))  # linear layers have no groups


def full(*values: object) -> ParameterSet:
    """What `pytest -m full` tries."""
    return pytest.param(*values, marks=pytest.mark.full)


EACH = [*FEW, *(full(*each) for each in OTHERS)]


@cache
def made_of(cells: str, kind: str) -> nn.Module:
    """Of two cells, in two parts; not to be changed."""
    return transform(model_of(cells), kind, 2, EXAMPLE)


def batch() -> Tensor:
    return torch.randn(4, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("cells", "kind", "partition"),
    [
        (cells, kind, partition)
        for (cells, kind), partition in zip(
            [*FEW, *OTHERS], itertools.cycle(["good", "random"]), strict=False
        )
    ],
)
def test_it_can_be_partitioned_and_runs_in_parts_as_it_is(
    cells: str, kind: str, partition: str
) -> None:
    model = copy.deepcopy(made_of(cells, kind))
    placement = placed(model, (EXAMPLE,), partition, k=2)
    assert verify(model, placement, (batch(),)).failures == ()


@pytest.mark.few(1)
@pytest.mark.parametrize(("cells", "kind"), [*EACH[:2], *(full(*each) for each in FEW[2:])])
def test_its_state_saves_and_loads_and_it_is_the_same_each_time(cells: str, kind: str) -> None:
    model = model_of(cells)
    before = copy.deepcopy(model.state_dict())
    made, again = copy.deepcopy(made_of(cells, kind)), transform(model, kind, 2, EXAMPLE)
    assert all(torch.equal(before[name], held) for name, held in model.state_dict().items())
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.load_state_dict(made.state_dict())
    assert torch.equal(again.eval()(batch()), made.eval()(batch()))
    loaded = pickle.loads(pickle.dumps(made))
    assert torch.equal(loaded(batch()), made(batch()))


@pytest.mark.parametrize(("cells", "kind"), [FEW[3], *(full(*each) for each in FEW[:3]), *EACH[4:]])
def test_with_one_part_it_computes_what_the_original_computes_to_the_bit(
    cells: str, kind: str
) -> None:
    model = model_of(cells)
    made = transform(model, kind, 1, EXAMPLE)
    assert torch.equal(made(batch()), model(batch()))


@pytest.mark.full
@pytest.mark.parametrize(
    ("cells", "first", "then"),
    [
        ("basic", "parallel", "grouped"),
        full("inception", "split", "parallel"),
        full("inverted", "grouped", "split"),
        full("channels last", "parallel", "split"),
    ],
)
def test_it_can_be_transformed_once_more(cells: str, first: str, then: str) -> None:
    made = transform(made_of(cells, first), then, 2, EXAMPLE)
    trace(made, EXAMPLE)
    assert made(batch()).shape == (4, 5)


def test_cells_side_by_side_add_up_what_each_adds() -> None:
    model, made = model_of("basic"), made_of("basic", "parallel")

    def adds(cell: nn.Module, x: Tensor) -> Tensor:
        return cell.bn2(cell.conv2(torch.relu(cell.bn1(cell.conv1(x)))))

    first = x = model[0](batch())
    x = torch.relu(x + sum(adds(cell, x) for cell in model[1]))
    torch.testing.assert_close(made[1](first), x)


# Not "channels last": its norm is over all channels, and then over those of a part.
@pytest.mark.full
@pytest.mark.parametrize("cells", ["inception", full("basic"), full("inverted")])
def test_parts_of_a_stage_are_the_original_where_no_weight_joins_them(cells: str) -> None:
    """The original with zeros for all weights between parts computes what the parts compute."""
    model = model_of(cells)
    made = copy.deepcopy(made_of(cells, "split")).eval()
    with torch.no_grad():
        for name, weight in model[1].named_parameters():
            if weight.dim() > 1 and 1 not in weight.shape[:2]:
                weight *= _same_part(name, weight, cells)
    torch.testing.assert_close(made(batch()), model.eval()(batch()))


def _same_part(name: str, weight: Tensor, cells: str) -> Tensor:
    """Ones where a weight's row and column are of one part, zeros elsewhere."""

    def part_of(channels: int) -> Tensor:
        if cells == "inception" and channels == 12:  # 4 and 8, concatenated
            return torch.cat([part_of(4), part_of(8)])
        return torch.arange(channels) * 2 // channels

    mask = part_of(weight.shape[0])[:, None] == part_of(weight.shape[1])[None, :]
    return mask.double().reshape(*mask.shape, *[1] * (weight.dim() - 2))


@pytest.mark.full
def test_names_say_where_weights_come_from() -> None:
    model = model_of("basic")
    of = {kind: made_of("basic", kind).state_dict() for kind in KINDS}
    state = model.state_dict()
    assert torch.equal(of["parallel"]["1.0.part_1.from_1.conv1.weight"], state["1.1.conv1.weight"])
    assert torch.equal(
        of["split"]["1.0.part_1.from_1.conv1.weight"], state["1.1.conv1.weight"][4:, 4:]
    )
    assert torch.equal(of["grouped"]["1.1.conv1.weight"][:4], state["1.1.conv1.weight"][:4, :4])
    assert "1.0.conv2.weight" in of["grouped"]  # there the groups meet: as it was
    assert torch.equal(of["grouped"]["1.0.conv2.weight"], state["1.0.conv2.weight"])


@pytest.mark.parametrize(
    ("channels", "unequal", "sizes"), [(9, False, [3, 3, 3]), full(8, True, [2, 3, 3])]
)
def test_groups_that_do_not_divide_the_channels(
    channels: int, unequal: bool, sizes: list[int]
) -> None:
    parts = 4 if channels == 9 else 3
    made = transform(
        model_of("basic", channels=channels), "grouped", parts, EXAMPLE, unequal=unequal
    )
    convolution = made[1][0].conv1
    if unequal:
        assert convolution.sizes == sizes
    else:
        assert [channels // convolution.groups] * convolution.groups == sizes
    assert made(batch()).shape == (4, 5)


@pytest.mark.full
def test_stages_are_chosen_and_what_is_left_is_said() -> None:
    two = nn.Sequential(
        *list(model_of("inverted"))[:2], nn.Conv2d(8, 12, 1).double(), Basic(12).double()
    )
    found = transformation(two, "parallel", 2, EXAMPLE)
    assert [len(stage.cells) for stage in found.stages] == [2, 1]
    assert [(one.stage, one.paths) for one in found.left] == [(2, ("3",))]
    assert found.left[0].why == "1 equal cell in a row, fewer than 2"
    only = transformation(two, "split", 2, EXAMPLE, stages=(2,))
    assert [one.stage for one in only.changes] == [2]
    assert only.changes[0].paths == ("3",)
    assert only.model[1].state_dict().keys() == two[1].state_dict().keys()


class Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "kind", "parts", "error", "says"),
    [
        (model_of("basic"), "folded", 2, ArgumentError, "accepted are parallel, grouped, split"),
        (model_of("basic"), "split", 0, ArgumentError, "at least 1"),
        (model_of("basic"), "split", 16, ModelError, "8 channels are fewer than 16 parts"),
        full(model_of("channels last"), "grouped", 2, ModelError, "has no convolution but one"),
        (model_of("basic", 2), "parallel", 3, ModelError, "2 equal cells in a row, fewer than 3"),
        (nn.Sequential(nn.Conv2d(3, 4, 1).double()), "split", 2, ModelError, "residual cells"),
        (Unknown(), "split", 2, TraceError, "can't trace Unknown"),
    ],
)
def test_what_cannot_be_is_refused_by_one_line(
    model: nn.Module, kind: str, parts: int, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        transform(model, kind, parts, EXAMPLE)
    assert "\n" not in str(caught.value)


def test_a_stage_that_is_not_there_is_refused() -> None:
    with pytest.raises(ArgumentError, match="stage 2: the model has stages 1 to 1"):
        transform(model_of("basic"), "split", 2, EXAMPLE, stages=(2,))


# ------------------------------------------------------------------ models of packages


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind", "cells"),  # cells of each stage
    [
        ("resnet18", "parallel", [2, 1, 1, 1]),
        ("torchvision:resnet18", "grouped", [2, 1, 1, 1]),
        ("mobilenet_v2", "split", [1, 2, 3, 2, 2]),
        ("timm:regnetx_002", "split", [3, 6]),
    ],
)
def test_models_of_packages(name: str, kind: str, cells: list[int]) -> None:
    """Each by one kind: tracing takes its time."""
    model, shape = load_model(name, device="meta")
    example = example_inputs(model, shape)
    found = transformation(model, kind, 2, example)
    assert [len(stage.cells) for stage in found.stages] == cells
    trace(found.model, example)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "side", "kind", "parts", "partition", "cells"),
    [  # benchmarks/transformations.py verifies every kind of each, both ways
        ("inception_resnet_v2-2-2-2", 96, "split", 2, "good", [2, 2, 2]),
        ("resnet50", 64, "parallel", 4, "random", [2, 3, 5, 2]),  # at 32 norms see two values
        ("timm:resnext50_32x4d", 64, "grouped", 2, "good", [2, 3, 5, 2]),
        ("timm:convnext_atto", 64, "parallel", 2, "good", [2, 2, 6, 2]),
    ],
)
def test_models_of_packages_run_in_parts(
    name: str, side: int, kind: str, parts: int, partition: str, cells: list[int]
) -> None:
    torch.manual_seed(0)
    model = load_model(name)[0].double()
    example = example_inputs(model, (3, side, side))
    found = transformation(model, kind, parts, example)
    assert [len(stage.cells) for stage in found.stages] == cells
    placement = placed(found.model, example, partition, k=parts)
    images = torch.randn(2, 3, side, side, dtype=torch.float64)
    assert verify(found.model, placement, (images,)).failures == ()
