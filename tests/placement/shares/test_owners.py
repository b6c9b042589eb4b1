"""Whose parameters are that several parts compute with: one of these, and all of them as many."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import placements
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from placed_models import model_of
from torch import nn

from hgpart import Modelling, flops, place
from hgpart.execution.records.totals import Traffic
from hgpart.partition.baselines.by_slices import data_parallel
from hgpart.partition.problem.problem import Problem
from hgpart.placement.shares import messages
from hgpart.placement.shares.batch_shares import in_shares
from hgpart.placement.shares.messages import with_parameters
from hgpart.placement.shares.owners import owned
from hgpart.placement.shares.ownership import ownership
from hgpart.run.verifying import verify


def wide(width=64):
    """Half of its parameters are those of one layer."""
    torch.manual_seed(0)
    layers = nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 5))
    return model.double(), [torch.randn(8, width, dtype=torch.float64)]


def by_data_parallelism(model, inputs, k):
    traced, graph = placements.traced_model(model, inputs)
    modelling = Modelling(batch_size=len(inputs[0]), slices=k)
    problem = Problem(graph, flops(graph), modelling, k, 0.1)
    return placements.partitioned(traced, graph, modelling, k, *data_parallel(problem))


@cache
def learner(name):
    model, inputs = model_of(name)
    return model, *placements.traced_model(model, inputs)


@pytest.mark.full
@given(
    name=st.sampled_from(["residual", "forked", "tied"]),
    slices=st.integers(2, 4),
    k=st.sampled_from([2, 3, 5]),
    grain=st.sampled_from(["coarse", "fine"]),
    seed=st.integers(0, 99),
)
def test_each_task_belongs_to_a_part_that_has_it(name, slices, k, grain, seed):
    model, traced, graph = learner(name)
    modelling = Modelling(grain=grain, batch_size=8, slices=slices)
    plan = placements.of_random_blocks(traced, graph, modelling, k, seed)
    shares = [one for _, one in in_shares(plan.partition, plan.work)]
    learning = with_parameters(graph, dict(model.named_parameters()))
    assert [(one.parameters, one.weights) for one in learning.layers] == [
        (one.parameters, one.weights) for one in graph.layers
    ]
    found = owned(shares, learning, plan.work)
    assert np.array_equal(found.parts, owned(shares, learning, plan.work).parts)
    held = [ownership(one) for one in shares]
    for at, of_tasks in enumerate(ownership(found).finish):
        if of_tasks is not None:
            assert np.any([one.finish[at] == of_tasks for one in held], axis=0).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("small", [2**14, messages.SMALL])
def test_by_data_parallelism_each_part_has_its_share(k, small, monkeypatch):
    monkeypatch.setattr(messages, "SMALL", small)
    model, inputs = wide()
    placement = place(model, by_data_parallelism(model, inputs, k))
    total = sum(one.nbytes for one in model.parameters())
    shares = [sum(one.nbytes for one in part.parameters()) for part in placement.parts.values()]
    assert sum(shares) == total
    assert max(shares) < 1.1 * total / k
    assert verify(model, placement, inputs).failures == ()
    report = placement.report()
    for figures, own in zip(report.parts, shares, strict=True):
        assert figures.parameter_bytes == own
        # Copies of all else, with gradients of theirs; gradients that arrive for its own.
        assert figures.buffer_bytes == figures.copied_gradient_bytes == total - own
        together = [one for one in model.parameters() if one.numel() < small]
        size = sum(one.nbytes for one in together)
        if len(together) == len([*model.parameters()]):
            # All in one message: weights that depart, those that arrive, gradients that depart.
            assert figures.exchange_bytes == 2 * ((k - 1) * own + total - own)
        else:
            assert 0 <= figures.exchange_bytes - (k - 1) * own <= 2 * k * size


def test_small_layers_and_those_of_few_tasks_stay_whole():
    _, inputs = wide()
    model = nn.Sequential(nn.Linear(64, 3), nn.ReLU(), nn.Linear(3, 64)).double()
    placement = place(model, by_data_parallelism(model, inputs, 2))
    names = sorted(
        (name, part) for part in range(2) for name in {one.name for one, _ in placement.held(part)}
    )
    first = [name for name, _ in names if name.startswith("0.")]
    assert first == ["0.bias", "0.weight"]


def test_what_belongs_to_a_part_is_where_it_computes_with_it():
    """Also when it has been cast, or copied; and what changes under a backward pass is noticed."""
    model, inputs = wide()
    placement = place(model.float(), by_data_parallelism(model.double(), inputs, 2))
    for one in (placement.double(), copy.deepcopy(placement)):
        for part in one.parts.values():
            memory = {buffer.untyped_storage().data_ptr() for buffer in part.buffers()}
            rows = [*part.own.parameters()]
            assert rows
            assert all(row.untyped_storage().data_ptr() in memory for row in rows)
        assert verify(model, one, inputs).failures == ()
    placement = place(model, by_data_parallelism(model, inputs, 2))
    loss = placement(*inputs).square().sum()
    with torch.no_grad():
        for row in placement.parts["0"].own.parameters():
            row.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.full
@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
def test_what_is_frozen_does_not_travel(grain):
    """Of layers in part frozen; and a message for each large tensor and for all small ones."""
    model, inputs = wide()
    model[2].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    traced, graph = placements.traced_model(model, inputs)
    modelling = Modelling(batch_size=8, slices=2, grain=grain)
    for seed in range(3):
        plan = placements.of_random_blocks(traced, graph, modelling, 3, seed)
        assert verify(model, place(model, plan), inputs).failures == ()
    placement = place(model, by_data_parallelism(model, inputs, 2))
    assert verify(model, placement, inputs).failures == ()
    sent: Traffic = placement.runtime.last.traffic
    learning = [one for one in model.parameters() if one.requires_grad]
    assert sent.backward_bytes.sum() == sum(one.nbytes for one in learning)


def test_the_owner_of_nothing_learns_with_the_others():
    model = nn.Linear(4, 3).double()
    inputs = [torch.randn(8, 4, dtype=torch.float64)]
    placement = place(model, by_data_parallelism(model, inputs, 2))
    assert [len([*part.parameters()]) for part in placement.parts.values()] == [2, 0]
    learned = [
        torch.optim.SGD([{"params": [*part.parameters()]}], lr=0.1)
        for part in placement.parts.values()
    ]
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for one in (model, placement):
            one.zero_grad()
            one(*inputs).square().mean().backward()
        for optimizer in (plain, *learned):
            optimizer.step()
    torch.testing.assert_close(placement.state_dict()["weight"], model.weight.detach())
