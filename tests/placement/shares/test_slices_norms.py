"""Norms of the whole batch, which is in slices: all is as in the model without parts."""

from __future__ import annotations

import copy

import placements
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from placed_models import Twice, model_of
from torch import nn
from torch.nn import functional

from hgpart import Modelling, Placement, place
from hgpart.errors import PlacementError
from hgpart.placement.accounting import disagreements
from hgpart.run.scheduling import schedule
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import RULES

TRACES = {}


class Normed(nn.Module):
    """Norms of a convolution, of maps of two layers, of several features a filter, of neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.side, self.joint = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(10, affine=False)
        self.body, self.second = nn.Conv2d(10, 5, 3), nn.BatchNorm2d(5, momentum=0.3)
        self.flat, self.drop = nn.BatchNorm1d(5 * 4), nn.Dropout(0.3)
        self.head, self.last = nn.Linear(5 * 4, 6), nn.BatchNorm1d(6, track_running_stats=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = torch.relu(self.first(self.stem(image)))
        maps = self.body(self.joint(torch.cat([maps, self.side(image)], 1)))
        maps = functional.max_pool2d(torch.relu(self.second(maps)), 2)
        return self.last(self.head(self.drop(self.flat(maps.flatten(1)))))


def chain() -> nn.Module:
    """Two norms in one layer, the second of them of a third of its batches' values."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.MaxPool2d(2), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4)),
    )


MADE = {"normed": Normed, "chain": chain, "twice": Twice}
NAMES = [*MADE, "forked", "grouped", "depthwise"]


def batch_of(name, samples):
    """A model in float64, and as many samples for it."""
    if name in MADE:
        torch.manual_seed(1)
        return MADE[name]().double(), [torch.randn(samples, 3, 8, 8).double()]
    model, inputs = model_of(name)
    return model, [torch.randn(samples, *one.shape[1:], dtype=one.dtype) for one in inputs]


def in_slices(
    name,
    model,
    inputs,
    slices,
    k,
    grain="coarse",
    seed=0,
    make=placements.of_random_blocks,
    norms="micro-batch",
) -> Placement:
    if name not in TRACES:
        TRACES[name] = placements.traced_model(model, inputs)
    size = max(slices, len(inputs[0]))
    modelling = Modelling(grain=grain, batch_size=size, slices=slices, norms="batch")
    return place(copy.deepcopy(model), make(*TRACES[name], modelling, k, seed), norms=norms)


@pytest.mark.full
@pytest.mark.long
@given(
    name=st.sampled_from(NAMES),
    slices=st.integers(2, 4),
    k=st.sampled_from([2, 3]),
    grain=st.sampled_from(["coarse", "fine"]),
    rule=st.sampled_from([*RULES]),
    micro_batches=st.integers(1, 2),
    recompute=st.booleans(),
    single_tasks=st.booleans(),
    norms=st.sampled_from(["micro-batch", "batch"]),
    seed=st.integers(0, 99),
)
def test_random_partitions(
    name, slices, k, grain, rule, micro_batches, recompute, single_tasks, norms, seed
):
    """Outputs, gradients, statistics and bytes."""
    model, inputs = batch_of(name, slices * micro_batches + 2)
    make = placements.of_single_tasks if single_tasks else placements.of_random_blocks
    placement = in_slices(name, model, inputs, slices, k, grain, seed, make, norms)
    wanted = Scheduling(rule, micro_batches, recompute=recompute)
    found = verify(model, placement, inputs, scheduling=wanted)
    assert found.failures == ()
    if micro_batches == 1:
        assert found.traffic.forward_bytes.sum() == placement.programs.partition.evaluation.volume
        assert found.planned.forward_bytes.sum() == placement.programs.partition.evaluation.volume


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize("name", ["normed", pytest.param("twice", marks=pytest.mark.full)])
def test_20_steps_and_then_evaluation(name, grain):
    """Called as the model is."""
    model, inputs = batch_of(name, 7)
    placement = in_slices(name, model, inputs, 3, 3, grain)
    assert placement.programs.has_norms_of_batch
    both = model, placement
    learned = [torch.optim.SGD(one.parameters(), lr=0.01, momentum=0.9) for one in both]
    for step in range(20):
        results = []
        for one, optimizer in zip(both, learned, strict=True):
            optimizer.zero_grad()
            torch.manual_seed(step)
            images = inputs[0].clone().requires_grad_()
            made = one(images)
            made.square().mean().backward()
            results.append((made, images.grad))
            optimizer.step()
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)
    for name_of, tensor in placement.state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name_of], rtol=1e-9, atol=1e-11)
    model.eval(), placement.eval()
    assert placement.programs.has_norms_of_batch == (
        name == "normed"
    )  # one of which has no running ones
    with torch.no_grad():
        torch.testing.assert_close(placement(*inputs), model(*inputs), rtol=1e-9, atol=1e-11)
    model.train(), placement.train()
    assert verify(model, placement, inputs).failures == ()


def test_what_travels_of_data_parallelism():
    """Two numbers a channel there and back, in each pass; in none where nothing is learned."""
    model, inputs = batch_of("chain", 8)
    placement = in_slices("chain", model, inputs, 4, 2, make=placements.of_data_parallel)
    assert [share.slices for share in placement.programs.shares] == [(0, 1), (2, 3)]
    assert verify(model, placement, inputs).failures == ()
    parameters = sum(one.nbytes for one in model.parameters())
    statistics = 8 * 2 * (6 + 6 + 4)
    sent = placement.runtime.last.traffic
    assert sent.forward_bytes.sum() == sent.backward_bytes.sum() == parameters + 2 * statistics
    with torch.no_grad():
        before = [one.clone() for one in placement.buffers()]
        placement(*inputs)
        model(*inputs)
    assert not all(map(torch.equal, before, placement.buffers()))
    for name, tensor in placement.state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-9, atol=1e-11)
    sent = placement.runtime.last.traffic
    assert sent.forward_bytes.tolist() == [[0, statistics], [statistics, 0]]
    assert sent.forward_messages.tolist() == [[0, 3], [3, 0]]
    assert sent.backward_bytes.sum() == 0


@pytest.mark.full
def test_what_parts_hold_is_as_computed():
    model, inputs = batch_of("normed", 9)
    placement = in_slices("normed", model, inputs, 3, 3)
    assert disagreements(placement.report(9), placement) == ()
    for micro_batches in (1, 2):
        order = schedule(placement, "greedy", micro_batches)
        placements.check_peak_bytes(placement, inputs, order)


def frozen_and_in_float64():
    model, inputs = batch_of("chain", 5)
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    inputs = [one.float() for one in inputs]
    placement = in_slices("float32", model.float(), inputs, 2, 3).double()
    return model.double(), placement, [one.double() for one in inputs]


@pytest.mark.full
def test_frozen_layers_types_and_copies():
    model, placement, inputs = frozen_and_in_float64()
    assert verify(model, placement, inputs).failures == ()
    other = copy.deepcopy(placement)
    assert verify(model, other, inputs).failures == ()


@pytest.mark.full
@pytest.mark.long
def test_compiled_steps():
    model, placement, inputs = frozen_and_in_float64()
    placement.compile(backend="eager")
    assert verify(model, placement, inputs).failures == ()


@pytest.mark.full
def test_a_slice_of_one_sample_and_one_value_is_no_batch():
    model, inputs = batch_of("normed", 4)
    placement = in_slices("normed", model, inputs, 4, 3)
    assert verify(model, placement, inputs).failures == ()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.BatchNorm1d(4)).double()
    placement = in_slices("one", model, inputs, 1, 2)
    with pytest.raises(PlacementError, match="2 has one value per channel in a batch or micro"):
        placement(inputs[0][:1])


@pytest.mark.full
def test_what_is_refused():
    images = [torch.randn(4, 3, 8, 8)]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True))
    with pytest.raises(PlacementError, match=r"^1 updates running statistics by .*instance_norm"):
        in_slices("instances", model, images, 2, 2)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.GroupNorm(2, 4)).double()
    placement = in_slices("samples", model, [images[0].double()], 2, 2)
    assert not placement.programs.has_norms_of_batch
    assert verify(model, placement, [images[0].double()]).failures == ()
    plain = Modelling(batch_size=4, slices=2)
    model, inputs = batch_of("chain", 4)
    plan = placements.of_random_blocks(*placements.traced_model(model, inputs), plain, 2, 0)
    with pytest.raises(PlacementError, match="2 slices that have norms of their own: accepted"):
        place(model, plan, norms="batch")


def test_statistics_of_16_bits_are_refused_before_anything_is_computed():
    model, inputs = batch_of("chain", 4)
    placement = in_slices("chain", model, inputs, 2, 2)
    said = r"norms over several slices or bands, in torch\.bfloat16: accepted are float32 and"
    calls = []
    for one in (one for part in range(2) for one in placement.programs.submodule(part).modules()):
        one.register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(PlacementError, match=said):
        placement.step(inputs, None, lambda result, _: result.square().mean())
    placement.bfloat16()
    inputs = [one.bfloat16() for one in inputs]
    with pytest.raises(PlacementError, match=said):
        placement.step(inputs, None, lambda result, _: result.square().mean())
    assert not calls
    with torch.no_grad():
        assert placement.eval()(*inputs).dtype == torch.bfloat16
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    said = r"^1 in 0 normalises torch\.bfloat16: accepted in norms over slices or bands"
    with pytest.raises(PlacementError, match=said):
        in_slices("16 bits", model.bfloat16(), inputs, 2, 2)
