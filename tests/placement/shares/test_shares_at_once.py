"""Shares of the batch for which a part has the same to do do it at once, with the same results."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import chain
from unittest.mock import patch

import numpy as np
import placements
import pytest
import slow_joining
import torch
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import MODELS
from placed_models import model_of
from torch import nn

from hgpart import Modelling, Placement, place
from hgpart.errors import ArgumentError, HypergraphError, PlacementError
from hgpart.layers.channel_graph import Mixing as NothingMixed
from hgpart.placement.accounting import disagreements
from hgpart.placement.ordering.ordered import outlines_here
from hgpart.placement.shares import joining
from hgpart.placement.shares.joining import WorkUnit, joined
from hgpart.run.scheduling import schedule
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import RULES

NAMES = [*MODELS, "forked"]
TRACES = {}


def as_one(model, plan) -> Placement:
    """Parts that wait for each other wherever shares can be joined."""
    with patch.object(joining, "ROUNDING", 1e300):
        return place(copy.deepcopy(model), plan)


def sharing_layers(name, slices, k, grain, seed, samples, training) -> tuple[nn.Module, Placement]:
    model, inputs = model_of(name)
    model.train(training)
    if (name, training) not in TRACES:
        TRACES[name, training] = placements.traced_model(model, inputs)
    modelling = Modelling(grain=grain, batch_size=samples, slices=slices)
    plan = placements.of_shared_layers(*TRACES[name, training], modelling, k, seed)
    return model, as_one(model, plan)


def batch_for(model_inputs, samples):
    return [torch.randn(samples, *one.shape[1:], dtype=one.dtype) for one in model_inputs]


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
    training=st.booleans(),
    seed=st.integers(0, 99),
)
def test_random_partitions_that_share_layers(
    name, slices, k, grain, rule, micro_batches, recompute, training, seed
):
    """Outputs, gradients, statistics, bytes and memory: beside the model slice by slice."""
    samples = 2 * slices * micro_batches + 1
    model, placement = sharing_layers(name, slices, k, grain, seed, samples, training)
    inputs = batch_for(model_of(name)[1], samples)
    wanted = Scheduling(rule, micro_batches, recompute=recompute)
    assert verify(model, placement, inputs, scheduling=wanted).failures == ()
    assert disagreements(placement.report(samples), placement) == ()
    if not training:
        return
    order = schedule(placement, rule, micro_batches)
    placements.check_peak_bytes(placement, inputs, order)


def result_elsewhere(model, inputs, slices, grain="coarse") -> Placement:
    """All on the first part, but for the last slice's result."""
    traced, graph = placements.traced_model(model, inputs)
    modelling = Modelling(grain=grain, batch_size=len(inputs[0]), slices=slices)
    plan = placements.of_random_blocks(traced, graph, modelling, 2, 0).partition
    parts = plan.parts.reshape(slices, -1).copy()
    layers = plan.model.vertex_layers[: parts.shape[1]]
    parts[:] = 0
    parts[-1, layers == len(graph.layers) - 1] = 1
    made = placements.partitioned(traced, graph, modelling, 2, plan.model, parts.ravel())
    return as_one(model, made)


def computed_at_once(placement: Placement) -> dict[str, bool]:
    """By name of a layer with operators, whether the first part has one step for all shares."""
    joined = {*chain.from_iterable(placement.programs.parts[0].joined.values())}
    first = placement.programs.blueprint
    return {
        layer.name: name in joined
        for layer, name in zip(first.graph.layers, first.names, strict=True)
        if layer.operators
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_a_part_computes_layers_of_several_shares_once(grain):
    model, inputs = model_of("plain")
    inputs = batch_for(inputs, 8)
    placement = result_elsewhere(model, inputs, 4, grain)
    assert [share.slices for share in placement.programs.shares] == [(0, 1, 2), (3,)]
    assert all(computed_at_once(placement).values())
    names = {name for name, _ in placement.programs.submodule(0).named_children()}
    assert names.isdisjoint(chain.from_iterable(placement.programs.parts[0].joined.values()))
    assert verify(model, placement, inputs).failures == ()
    # Its outline counts the work of both.
    work = sum(chunk.work for chunk in next(outlines_here(placement)).forward) * 4
    assert work == pytest.approx(placement.programs.partition.evaluation.loads[0])


def test_norms_are_of_each_share_in_training_and_at_once_in_evaluation():
    model, inputs = model_of("forked")
    inputs = batch_for(inputs, 9)
    placement = result_elsewhere(model, inputs, 3)
    assert not computed_at_once(placement)["stem"]
    assert verify(model, placement, inputs).failures == ()
    model.eval()
    with patch.object(joining, "ROUNDING", 1e300):
        placement.eval()
    assert all(computed_at_once(placement).values())
    assert verify(model, placement, inputs).failures == ()


class Mixing(nn.Module):
    """What may look at other samples, or at how many there are, between two convolutions."""

    def __init__(self, mixes):
        super().__init__()
        self.first, self.mixes, self.second = nn.Conv2d(3, 4, 1), mixes, nn.Conv2d(4, 4, 1)

    def forward(self, image):
        return self.second(self.mixes(self.first(image)))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "mixes",
    [
        lambda x: x - x.mean(0, keepdim=True),
        lambda x: x * x.shape[0],
        *(
            pytest.param(mixes, marks=pytest.mark.full)
            for mixes in (
                lambda x: 0.7 * x + 0.3 * x.flip(0),
                lambda x: x + torch.arange(x.shape[0], dtype=x.dtype)[:, None, None, None],
            )
        ),
    ],
)
def test_what_mixes_samples_is_neither_in_slices_nor_in_micro_batches(mixes):
    """Slices and micro-batches were each computed as if it were the batch, without a word."""
    torch.manual_seed(0)
    model = Mixing(mixes).double()
    inputs = [torch.randn(6, 3, 4, 4, dtype=torch.float64)]
    with pytest.raises(ArgumentError, match=r"3 slices of the batch: aten.*: accepted is 1"):
        result_elsewhere(model, inputs, 3)
    traced, graph = placements.traced_model(model, inputs)
    unaware = replace(graph, mixing=NothingMixed())
    modelling = Modelling(batch_size=6, slices=3)
    plan = placements.of_random_blocks(traced, unaware, modelling, 2, 0)
    placement = as_one(model, plan)
    assert verify(model, placement, inputs).failures
    placement = as_one(model, placements.of_random_blocks(traced, graph, Modelling(), 2, 0))
    assert verify(model, placement, inputs).failures == ()
    order = replace(schedule(placement), micro_batches=2)
    with pytest.raises(PlacementError, match=r"a batch in micro-batches: aten.*the whole batch"):
        schedule(placement, micro_batches=2)
    with pytest.raises(PlacementError, match="a batch in micro-batches: aten"):
        placement.step(inputs, torch.zeros(6), lambda result, _: result.mean(), order)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("apart", "mixes"),
    [
        (False, lambda x: nn.functional.batch_norm(x, None, None, training=True)),
        (True, lambda x: x - x.mean((2, 3), keepdim=True)),
        (True, lambda x: nn.functional.max_pool2d(x.relu(), 2)),
        (True, lambda x: x.flatten(2).transpose(1, 2).cumsum(1).mT.unflatten(2, (4, 4))),
        (True, lambda x: torch.cat([x[:, 2:], x[:, :2]], 1)),
        (True, lambda x: nn.functional.dropout(x, 0.5)),
        (False, lambda x: x.index_fill(1, torch.tensor([0, 2]), 0.5)),  # it has no channel rule
        (True, lambda x: x + torch.empty_like(x).normal_()),
    ],
)
def test_what_takes_statistics_of_samples_is_done_share_by_share(mixes, apart):
    torch.manual_seed(0)
    model = Mixing(mixes).double()
    inputs = [torch.randn(6, 3, 4, 4, dtype=torch.float64)]
    placement = result_elsewhere(model, inputs, 3)
    assert all(computed_at_once(placement).values()) == apart
    assert verify(model, placement, inputs).failures == ()


def units_of(seed):
    """Shares go through some levels, each on a part of its own choice, and read other parts'."""
    rng = np.random.default_rng(seed)
    k, shares, levels = (int(rng.integers(2, most)) for most in (4, 6, 7))
    made, named = [], []
    for share in range(shares):
        before = {}
        for level in range(levels):
            for part in np.flatnonzero(rng.random(k) < 0.6).tolist():
                needs = {number: 0.0 for own, number in before.items() if own == part}
                needs |= {n: 0.5 for own, n in before.items() if own != part and rng.random() < 0.5}
                alike = None if rng.random() < 0.1 else (level, part, int(rng.integers(0, 2)))
                once = (level + 1) / 8  # one for all that is alike
                made.append(WorkUnit(part, float(rng.integers(0, 5)), needs, once, alike))
                named.append((share, level, part))
            before |= {one[2]: n for n, one in enumerate(named) if one[:2] == (share, level)}
    return made, named


@given(seed=st.integers(0, 9999))
def test_joining_puts_off_no_end(seed):
    """Each unit is done once, behind what it needs, and only with units of its kind at once."""
    units, named = units_of(seed)
    groups = joined(units)
    assert groups == slow_joining.joined(units)
    assert sorted(chain.from_iterable(groups)) == [*range(len(units))]
    place = {number: at for at, group in enumerate(groups) for number in group}
    for number, unit in enumerate(units):
        assert all(place[other] < place[number] for other in unit.needs)
    apart, _ = slow_joining.together(units, [])
    made, of_made = slow_joining.together(units, [group for group in groups if len(group) > 1])
    end = slow_joining.end_of(
        made, [of_made.index(group) for group in groups]
    )  # in the order that is returned
    assert end <= slow_joining.end_of(apart, slow_joining.interleaved(apart)) * (1 + 1e-6)
    for group in groups:
        assert len({units[number].alike for number in group}) == 1
        assert [named[number][0] for number in group] == sorted({named[n][0] for n in group})


def test_units_that_need_each_other_are_not_one():
    """Joined, they would wait for themselves: nothing would say when they end."""
    chain_of_alike = [WorkUnit(0, 1.0, {}, alike="conv"), WorkUnit(0, 1.0, {0: 0.0}, alike="conv")]
    with pytest.raises(HypergraphError, match="units that are alike need each other"):
        joined(chain_of_alike)
