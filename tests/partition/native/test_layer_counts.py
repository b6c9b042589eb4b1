"""Counts of slices cost what their definition says, and are never worse than they were."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import graph_of

from hgpart import _native
from hgpart.arrays import Int32
from hgpart.errors import HypergraphError
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.native.annealing import Cooling
from hgpart.partition.native.layer_counts import (
    CountsChain,
    LayerModel,
    anneal_counts,
    counts_of,
    layer_model,
    parts_of_counts,
)
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import flops


def cost_of(layers: LayerModel, counts: Int32) -> float:
    """By the definition: parameters for all parts but one, maps that a part has not itself."""
    table = counts.reshape(len(layers.capacities), -1).tolist()
    total = 0.0
    for layer, parameters in enumerate(layers.parameters.tolist()):
        total += parameters * (sum(own[layer] > 0 for own in table) - 1)
    for maker, reader, maps in zip(
        layers.makers.tolist(), layers.readers.tolist(), layers.maps.tolist(), strict=True
    ):
        total += sum(max(0, own[reader] - own[maker]) for own in table) * maps / layers.slices
    return total


def excess_of(layers: LayerModel, counts: Int32) -> float:
    table = counts.reshape(len(layers.capacities), -1)
    used = table @ layers.loads / layers.slices
    return float(np.maximum(0, used - layers.capacities).sum() / layers.capacities.sum())


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    graph = graph_of(draw(st.sampled_from(["plain", "residual", "tied"])))
    slices = draw(st.integers(2, 6))
    return Problem(
        graph, flops(graph), Modelling(batch_size=12, slices=slices), draw(st.integers(1, 4)), 0.3
    )


def some_counts(problem: Problem, random: Random) -> Int32:
    layers = len(layer_model(problem).loads)
    counts = np.zeros((problem.k, layers), dtype=np.int32)
    for layer in range(layers):
        for _ in range(problem.modelling.slices):
            counts[random.randrange(problem.k), layer] += 1
    return counts.ravel()


@given(problems(), st.randoms(use_true_random=False), st.integers(0, 3000))
def test_what_is_found_costs_what_it_says_and_no_more_than_before(
    problem: Problem, random: Random, steps: int
) -> None:
    layers, counts = layer_model(problem), some_counts(problem, random)
    schedule = Cooling(random.randrange(2**32), steps, 1e-2, 1e-4, 4.0, 1)
    (found,), interrupted = anneal_counts(layers, [CountsChain(counts, schedule)])
    assert not interrupted
    assert (found.counts.reshape(problem.k, -1).sum(axis=0) == layers.slices).all()
    assert found.cost == pytest.approx(cost_of(layers, found.counts), rel=1e-12)
    assert found.excess == pytest.approx(excess_of(layers, found.counts), abs=2e-9)
    before = excess_of(layers, counts), cost_of(layers, counts)
    assert found.rank <= (before[0] + 1e-12, before[1] * (1 + 1e-12))


@given(problems(), st.randoms(use_true_random=False))
def test_slices_are_as_many_as_the_counts_say(problem: Problem, random: Random) -> None:
    layers, counts = layer_model(problem), some_counts(problem, random)
    parts = parts_of_counts(layers, counts)
    model = problem.hypergraph(layer_blocks(problem.views))
    assert counts_of(model, parts.ravel(), problem.k).tolist() == counts.tolist()


@given(st.integers(2, 4), st.randoms(use_true_random=False))
def test_slices_of_a_chain_send_what_their_counts_cost(k: int, random: Random) -> None:
    """What two layers have in common in a part stays there, in each pair of them."""
    graph = graph_of("plain")
    problem = Problem(graph, flops(graph), Modelling(batch_size=12, slices=6), k, 0.3)
    layers, counts = layer_model(problem), some_counts(problem, random)
    model = problem.hypergraph(layer_blocks(problem.views))
    parts = parts_of_counts(layers, counts).ravel()
    volume = evaluate_parts(model, parts, k).volume
    assert volume == pytest.approx(cost_of(layers, counts), rel=1e-12)


def test_the_best_of_all_counts_is_found() -> None:
    graph = graph_of("plain")
    problem = Problem(graph, flops(graph), Modelling(batch_size=12, slices=3), 2, 0.3)
    layers = layer_model(problem)
    every = (
        np.array([own, [layers.slices - count for count in own]], dtype=np.int32).ravel()
        for own in itertools.product(range(layers.slices + 1), repeat=len(layers.loads))
    )
    least = min(cost_of(layers, one) for one in every if excess_of(layers, one) == 0)
    start = some_counts(problem, Random(0))
    (found,), _ = anneal_counts(
        layers, [CountsChain(start, Cooling(0, 20_000, 1e-1, 1e-5, 4.0, 1))]
    )
    assert found.cost == pytest.approx(least, rel=1e-12)


def test_counts_that_do_not_add_up_are_refused() -> None:
    graph = graph_of("plain")
    problem = Problem(graph, flops(graph), Modelling(batch_size=12, slices=3), 2, 0.3)
    layers = layer_model(problem)
    counts = np.ones(2 * len(layers.loads), dtype=np.int32)
    with pytest.raises(HypergraphError, match="expected 3, the slices"):
        _native.anneal_counts(layers, [CountsChain(counts, Cooling(0, 1, 1.0, 1.0, 0.0, 1))], 1)
