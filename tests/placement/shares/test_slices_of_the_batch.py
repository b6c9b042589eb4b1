"""Partitions over slices of the batch compute what the model does, and send what the table says."""

from __future__ import annotations

import copy

import placements
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import MODELS
from placed_models import model_of
from torch import nn

from hgpart import Modelling, Placement, place
from hgpart.errors import PlacementError
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named
from hgpart.placement.accounting import disagreements
from hgpart.run.reference import accumulated
from hgpart.run.scheduling import schedule
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import RULES
from hgpart.work.figures import flops

WAYS = ("forward", "backward")
NAMES = [*MODELS, "forked"]
TRACES = {}


def batch_of(name, samples):
    """A model in float64, and as many samples for it."""
    model, inputs = model_of(name)
    return model, [torch.randn(samples, *one.shape[1:], dtype=one.dtype) for one in inputs]


def in_slices(
    name, model, inputs, slices, k, grain="coarse", seed=0, make=placements.of_random_blocks
) -> Placement:
    key = name, model.training
    if key not in TRACES:
        TRACES[key] = placements.traced_model(model, inputs)
    modelling = Modelling(grain=grain, batch_size=len(inputs[0]), slices=slices)
    return place(copy.deepcopy(model), make(*TRACES[key], modelling, k, seed))


@pytest.mark.full
@pytest.mark.long
@given(
    name=st.sampled_from(NAMES),
    slices=st.integers(2, 4),
    k=st.sampled_from([2, 3, 5]),
    grain=st.sampled_from(["coarse", "fine"]),
    rule=st.sampled_from([*RULES]),
    micro_batches=st.integers(1, 2),
    recompute=st.booleans(),
    single_tasks=st.booleans(),
    seed=st.integers(0, 99),
)
def test_random_partitions(
    name, slices, k, grain, rule, micro_batches, recompute, single_tasks, seed
):
    """Outputs, gradients, statistics and bytes: beside the model slice by slice."""
    model, inputs = batch_of(name, 2 * slices * micro_batches + 1)
    make = placements.of_single_tasks if single_tasks else placements.of_random_blocks
    placement = in_slices(name, model, inputs, slices, k, grain, seed, make)
    wanted = Scheduling(rule, micro_batches, recompute=recompute)
    found = verify(model, placement, inputs, scheduling=wanted)
    assert found.failures == ()
    if micro_batches == 1:  # the joint hypergraph, of maps and of parameters
        learns = any(one.requires_grad for one in model.parameters())
        volume = placement.programs.partition.evaluation.volume
        assert not learns or found.traffic.forward_bytes.sum() == volume


@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize("name", ["residual", "tied"])
def test_without_norms_it_is_the_whole_batch(name, grain):
    """Called as the model is, and over five steps of sgd with momentum."""
    model, inputs = batch_of(name, 7)
    placement = in_slices(name, model, inputs, 3, 3, grain)
    learned = [
        torch.optim.SGD(one.parameters(), lr=0.01, momentum=0.9, weight_decay=0.01)
        for one in (model, placement)
    ]
    for _ in range(5):
        for one, optimizer in zip((model, placement), learned, strict=True):
            optimizer.zero_grad()
            one(*inputs).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(placement(*inputs), model(*inputs), rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        model.eval(), placement.eval()
        torch.testing.assert_close(placement(*inputs), model(*inputs), rtol=1e-9, atol=1e-12)
        assert placement.runtime.last.traffic.uncounted_bytes.sum() > 0
        placement(*inputs)
        assert placement.runtime.last.traffic.uncounted_bytes.sum() == 0
    for name_of, tensor in placement.state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name_of], rtol=1e-9, atol=1e-12)


@pytest.mark.full
def test_20_steps_with_norms_and_dropout_and_then_evaluation():
    """Statistics are those of the first slice, as rank 0's are torch DDP's."""
    model, inputs = batch_of("forked", 8)
    model = nn.Sequential(model.stem, model.norm, nn.ReLU(), model.drop, model.heads[0])
    placement = in_slices("norms", model, inputs, 3, 2)
    learned = [
        torch.optim.SGD(one.parameters(), lr=0.01, momentum=0.9) for one in (model, placement)
    ]
    sizes = [share.samples(8) for share in placement.programs.shares]
    targets = torch.randn(8, 4, 6, 6, dtype=torch.float64)
    for step in range(20):
        for optimizer in learned:
            optimizer.zero_grad()
        torch.manual_seed(step)
        accumulated(model, inputs, targets, nn.functional.mse_loss, sizes, shares=len(sizes))
        torch.manual_seed(step)
        placement.step(inputs, targets, nn.functional.mse_loss, schedule(placement, "greedy"))
        for optimizer in learned:
            optimizer.step()
    for name, tensor in placement.state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-9, atol=1e-12)
    model.eval(), placement.eval()
    with torch.no_grad():
        torch.testing.assert_close(placement(*inputs), model(*inputs), rtol=1e-9, atol=1e-12)
    placement.train()
    model.train()
    assert verify(model, placement, inputs).failures == ()


def test_data_parallelism_copies_nothing_and_slices_that_lie_alike_are_one():
    model, inputs = batch_of("residual", 8)
    placement = in_slices("residual", model, inputs, 8, 2, make=placements.of_data_parallel)
    assert [share.slices for share in placement.programs.shares] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert verify(model, placement, inputs).failures == ()
    size = sum(one.nbytes for one in model.parameters())
    there, back = (getattr(placement.runtime.last.traffic, f"{way}_bytes") for way in WAYS)
    assert there.sum() == size
    assert (there == back.T).all()
    assert there.max() < 0.6 * size  # both belongs to both
    assert sum(one.numel() for one in placement.parameters()) * 8 == size


@pytest.mark.full
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", ["residual", "forked"])
def test_what_parts_hold_is_as_computed(name, grain):
    """Parameters with their copies as the partition says; and the most that is held in a step."""
    model, inputs = batch_of(name, 9)
    placement = in_slices(name, model, inputs, 3, 3, grain)
    assert disagreements(placement.report(9), placement) == ()
    for micro_batches in (1, 2):
        order = schedule(placement, "greedy", micro_batches)
        placements.check_peak_bytes(placement, inputs, order)


def test_opposed_replicas_hold_less_than_a_cut_between_layers():
    """GEMS: the early layers' maps are largest, and each part has those of half the samples.

    In two micro-batches the next forward pass reuses what the backward pass before it has freed.
    """
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Conv2d(8, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.LazyLinear(4)),
    ).double()
    inputs = [torch.randn(8, 3, 28, 28, dtype=torch.float64)]
    model(*inputs)
    traced, graph = placements.traced_model(model, inputs)
    most = {}
    for name, micro_batches in (("layerwise", 1), ("opposed-replicas", 1), ("opposed-replicas", 2)):
        problem = Problem(graph, flops(graph), Modelling(batch_size=8), 2)
        blocks, parts = way_named(name).parts(problem, Search())
        plan = placements.partitioned(traced, graph, blocks.modelling, 2, blocks, parts)
        placement = place(copy.deepcopy(model), plan)
        order = schedule(placement, "sequential", micro_batches)
        placements.check_peak_bytes(placement, inputs, order)
        most[name, micro_batches] = max(placement.runtime.last.peak_bytes)
    whole, opposed, in_turn = most.values()
    assert opposed < whole and in_turn < 0.6 * opposed


def test_a_change_of_weights_without_training_is_seen():
    model, inputs = batch_of("residual", 4)
    placement = in_slices("residual", model, inputs, 2, 2)
    with torch.no_grad():
        placement(*inputs)
        for one in (*model.parameters(), *placement.parameters()):
            one.mul_(0.5)
        torch.testing.assert_close(placement(*inputs), model(*inputs), rtol=1e-9, atol=1e-12)
        state = {name: one * 3 for name, one in model.state_dict().items()}
        model.load_state_dict(state)
        placement.load_state_dict(state)
        torch.testing.assert_close(placement(*inputs), model(*inputs), rtol=1e-9, atol=1e-12)


def test_copies_of_a_placement_are_their_own():
    model, inputs = batch_of("residual", 4)
    placement = in_slices("residual", model, inputs, 2, 2)
    placement(*inputs)
    other = copy.deepcopy(placement)
    with torch.no_grad():
        for one in other.parameters():
            one.mul_(2)
    assert verify(model, placement, inputs).failures == ()
    model.load_state_dict(other.state_dict())
    assert verify(model, other, inputs).failures == ()


def test_types_and_frozen_parameters():
    model, inputs = batch_of("residual", 5)
    model.stem.requires_grad_(False)
    model.head.bias.requires_grad_(False)
    placement = in_slices("frozen", model.float(), [one.float() for one in inputs], 2, 3)
    assert verify(model.double(), placement.double(), inputs).failures == ()


def test_what_is_refused():
    model, inputs = batch_of("residual", 4)
    placement = in_slices("residual", model, inputs, 4, 3)
    with pytest.raises(PlacementError, match="slice 0 of 4 has no sample: accepted are larger"):
        placement(*(one[:3] for one in inputs))
