"""A placed model is called as the model is, by the names of its forward, whatever it takes."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import input_ranks
import placements
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from masked_models import Masked, example

import hgpart
from hgpart.errors import ArgumentError, PlacementError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.run.processes.launch import launch
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.traced_model import trace

NAMES = ("mask", "gains", "scale", "twice")


@cache
def masked(names, samples=3):
    torch.manual_seed(1)
    model = Masked().double()
    inputs = example(samples, *names)
    traced = trace(model, inputs)
    return model, inputs, traced, channel_graph(traced)


@pytest.mark.full
@given(
    names=st.lists(st.sampled_from(NAMES), unique=True),
    grain=st.sampled_from(["coarse", "fine"]),
    k=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_any_partition_called_by_name(names, grain, k, seed):
    model, inputs, traced, graph = masked(tuple(sorted(names)))
    plan = placements.of_single_tasks(traced, graph, Modelling(grain=grain), k, seed)
    placements.check_equal(model, inputs, plan, seed)


@pytest.mark.few(1)
@pytest.mark.parametrize("slices", [1, 2])
def test_micro_batches_and_slices_divide_what_has_samples(slices):
    """Masks by samples, as images; the gains of channels, which have none, not."""
    model, inputs, traced, graph = masked(("gains", "mask", "scale"), 7)
    modelling = Modelling(batch_size=7, slices=slices)
    plan = placements.of_single_tasks(traced, graph, modelling, 3, seed=slices)
    model = copy.deepcopy(model)
    placed = hgpart.place(model, plan)
    inputs = example(7, "gains", "mask", "scale", seed=5)
    for scheduling in (None, Scheduling("greedy", 3)):
        placed.load_state_dict(model.state_dict())
        assert verify(model, placed, inputs, scheduling=scheduling).failures == ()


def test_gradients_of_inputs_that_have_names():
    model, inputs, traced, graph = masked(("gains", "mask"))
    placed = hgpart.place(model, placements.of_single_tasks(traced, graph, Modelling(), 3, seed=3))
    image, mask = inputs["image"], inputs["mask"]
    found = []
    for one in (copy.deepcopy(model), placed):
        given_mask = mask.clone().requires_grad_()
        one(image, gains=inputs["gains"], mask=given_mask).square().sum().backward()
        found.append(given_mask.grad)
    torch.testing.assert_close(*found)


def test_a_stream_and_a_step_by_name():
    model, inputs, traced, graph = masked(("mask",))
    placed = hgpart.place(model, placements.of_single_tasks(traced, graph, Modelling(), 2, seed=4))
    order = hgpart.schedule(placed, "async", micro_batches=2, in_flight=1)
    targets = torch.zeros(3, 4, dtype=torch.float64)
    loss = torch.nn.functional.mse_loss
    losses = placed.stream([(inputs, targets)] * 2, loss, lambda part: None, order)
    expected = loss(copy.deepcopy(model)(**inputs), targets)
    torch.testing.assert_close(losses[0], expected.detach(), check_stride=False)
    with pytest.raises(ArgumentError, match=r"^mask is None: accepted is a tensor, as Masked was"):
        placed.step(inputs["image"], targets, loss)
    with pytest.raises(ArgumentError, match=r"^mask is None: accepted is a tensor, as Masked was"):
        placed.stream([(inputs["image"], targets)] * 2, loss, lambda part: None, order)


def test_what_is_refused_by_name():
    model, inputs, traced, graph = masked(("mask", "scale"))
    placed = hgpart.place(model, placements.of_single_tasks(traced, graph, Modelling(), 2, seed=4))
    image, mask = inputs["image"], inputs["mask"]
    with pytest.raises(ArgumentError, match=r"^scale is 1.0: accepted is 0.5, as Masked was trac"):
        placed(image, mask=mask)
    with pytest.raises(ArgumentError, match=r"^got an unexpected keyword argument 'masks': accep"):
        placed(image, masks=mask, scale=0.5)
    with pytest.raises(
        PlacementError, match=r"^inputs of 3x8x8, 1x4x8: accepted are 3x8x8, 1x8x8, "
    ):
        placed(image, mask=mask[:, :, 4:], scale=0.5)
    with pytest.raises(PlacementError, match=r"^mask of shape \(2, 1, 8, 8\): accepted"):
        placed(image, mask=mask[:2], scale=0.5)
    assert placed(mask=mask, scale=0.5, image=image).shape == (3, 4)


@pytest.mark.full
def test_a_plan_file_is_of_one_tensor(tmp_path):
    """It would be called with other numbers by who reads it."""
    model, inputs = Masked(), {"image": torch.zeros(2, 3, 8, 8), "scale": 2.0}
    found = hgpart.partition_model(model, inputs, k=2)
    with pytest.raises(ArgumentError, match="Masked is called with image, scale: accepted for"):
        found.save(tmp_path / "plan.json")
    hgpart.partition_model(model, inputs["image"], k=2).save(tmp_path / "plan.json")
    placed = hgpart.place(model, hgpart.files.load_plan(tmp_path / "plan.json"))
    with pytest.raises(ArgumentError, match=r"^scale is 2.0: accepted is 1.0, as Masked was trac"):
        placed(**inputs)


def test_a_part_as_a_function_has_the_names_of_tensors():
    model, inputs, traced, graph = masked(("gains", "mask", "scale"))
    model = copy.deepcopy(model).eval()
    placed = hgpart.place(model, placements.of_single_tasks(traced, graph, Modelling(), 1, seed=4))
    (stage,) = hgpart.to_pipeline_stages(placed)
    first, second = inputs["gains"]
    found = stage(inputs["image"], gains_0=first, gains_1=second, mask=inputs["mask"])
    torch.testing.assert_close(found, model(**inputs))


@pytest.mark.full
@pytest.mark.long
def test_in_processes():
    with TemporaryDirectory() as folder:
        launch(input_ranks.__file__, [folder], 2)
        for rank in ("0", "1"):
            found = Path(folder, rank).read_text().splitlines()
            assert found == ["ok"] * len(input_ranks.WAYS)


class Weighted(torch.nn.Module):
    """Takes numbers for the whole batch besides it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 3)

    def forward(self, scale, image, gains):
        return self.second(self.first(image) * scale) * gains.sum()


@pytest.mark.full
@pytest.mark.parametrize("samples", [1, 3])
def test_what_is_a_batch_is_decided_by_the_example_alone(samples):
    """Of one sample, two are traced: numbers of two were then taken for a batch, and divided."""
    torch.manual_seed(1)
    model, gains = Weighted().double(), torch.tensor([1.0, 10.0]).double()
    scale, image = torch.tensor(2.0).double(), torch.randn(samples, 3, 8, 8).double()
    placed = hgpart.place(model, k=2, example=[scale, image, gains])
    assert placed.programs.arguments.batches == (False, True, False)
    loss, order = torch.nn.functional.mse_loss, hgpart.schedule(placed, "gpipe", micro_batches=2)
    for mode, side in ((True, 8), (True, 12), (False, 12), (False, 8)):
        model.train(mode), placed.train(mode)
        for size in (2, 5):
            image = torch.randn(size, 3, side, side).double()
            expected = model(scale, image, gains)
            torch.testing.assert_close(placed(scale, image, gains), expected)
            targets = torch.zeros_like(expected)
            found = placed.step([scale, image, gains], targets, loss, order)
            torch.testing.assert_close(found.detach(), loss(expected, targets).detach())
    with pytest.raises(PlacementError, match=r"^scale of shape \(1,\): accepted is \(\)"):
        placed(scale[None], image, gains)


def test_a_part_as_a_function_takes_the_batch_from_what_has_samples():
    model = Weighted().double().eval()
    example = torch.tensor(2.0).double(), torch.randn(3, 3, 8, 8).double(), torch.ones(2).double()
    placed = hgpart.place(model, k=1, example=example)
    (stage,) = hgpart.to_pipeline_stages(placed)
    torch.testing.assert_close(stage(*example), model(*example))


class Gated(torch.nn.Module):
    """Takes a mask of any type."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 3)

    def forward(self, image, mask):
        return self.second(self.first(image * (mask > 0)))


@pytest.mark.full
def test_inputs_of_two_floating_types_are_refused_when_placed():
    """They were placed, and then the very same call was refused."""
    inputs = example(3, "mask")
    inputs["image"] = inputs["image"].float()
    with pytest.raises(PlacementError, match=r"^mask of type torch.float64: accepted is torch.flo"):
        hgpart.place(Gated(), k=2, example=inputs)
    mask = inputs["mask"] > 0.5  # other types are as they are
    model = Gated()
    placed = hgpart.place(model, k=2, example=[inputs["image"], mask])
    torch.testing.assert_close(placed(inputs["image"], mask), model(inputs["image"], mask))
