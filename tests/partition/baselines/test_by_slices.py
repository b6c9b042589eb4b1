"""Ways that divide the batch alone: what each part gets, and what that costs, task by task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from builtin_graphs import full_size_graph
from hypothesis import assume, given
from hypothesis import strategies as st
from partitioned_models import channel_graphs, modellings
from sliced_volumes import PartOf, parameter_bytes, sliced_volume

from hgpart.hypergraph.building import CnnHypergraph, evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import full_parts
from hgpart.layers.channel_graph import PARAMETER
from hgpart.partition.baselines.by_slices import (
    AS_GOOD,
    data_parallel,
    dealt,
    hybrid,
    in_every_slice,
    opposed_replicas,
    replica,
    slices_for,
)
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.known_ways import known_ways
from hgpart.partition.baselines.layerwise import layerwise, layerwise_within
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.problem.objectives import VOLUME, step_time
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import flops


@st.composite
def problems(draw: st.DrawFn, grain: str = "coarse") -> Problem:
    """k of 2 to 6 parts, up to 6 slices, of one size or not; one of the model's batch."""
    slices = draw(st.integers(1, 6))
    batch = slices + draw(st.integers(0, 4))
    modelling = replace(draw(modellings), grain=grain, batch_size=batch, slices=slices)
    modelling = replace(modelling, training=draw(st.booleans()))
    return Problem(*draw(channel_graphs()), modelling, draw(st.integers(2, 6)), 0.2)


def parts_by_task(problem: Problem, model: CnnHypergraph, parts: np.ndarray) -> PartOf:
    """Of a partition of the model: the same in every slice that the caller asks for."""
    every = full_parts(model, parts)
    first = np.cumsum([0, *(view.count if view.is_own else 0 for view in problem.views)])
    return lambda number, at, task: int(every[first[at] + task])


@given(problems())
def test_data_parallelism_is_a_copy_for_each_part(problem: Problem) -> None:
    slices, k = problem.modelling.slices, problem.k
    model, parts = data_parallel(problem)
    expected = sliced_volume(
        problem.graph, problem.modelling, lambda number, at, task: number * k // slices
    )
    assert evaluate_parts(model, parts, k).volume == expected


@pytest.mark.parametrize("k", [2, 3, 8])
def test_data_parallelism_sends_k_minus_1_times_the_parameters(k: int) -> None:
    graph = full_size_graph("lenet5")
    modelling = Modelling(slices=k)
    every = sum(sum(parameter_bytes(layer, modelling)) for layer in graph.layers)
    assert every == 4 * 61_706
    found = evaluate_parts(*data_parallel(Problem(graph, flops(graph), modelling, k, 0.1)), k)
    assert found.volume == (k - 1) * every


@given(problems(), st.integers(0, 9))
def test_a_partition_in_every_slice_sends_what_it_sends_once(problem: Problem, seed: int) -> None:
    """But for what does not grow with the batch: that is sent in every slice."""
    one = problem.in_slices(1)
    grows = not any(layer.kind == PARAMETER or layer.fixed_elements for layer in one.graph.layers)
    for way in (horizontal(one), incremental(one), random_parts(one, seed)):
        found = evaluate_parts(*in_every_slice(problem, *way), problem.k)
        alone = evaluate_parts(*way, problem.k)
        part = parts_by_task(one, *way)
        assert found.volume == sliced_volume(problem.graph, problem.modelling, part)
        assert found.imbalance == pytest.approx(alone.imbalance)
        if grows:
            assert (found.traffic == alone.traffic).all()


@given(problems(), st.integers(0, 9))
def test_a_hybrid_is_a_partition_for_each_replica(problem: Problem, seed: int) -> None:
    slices, k = problem.modelling.slices, problem.k
    for replicas in range(1, min(slices, k) + 1):
        if k % replicas:
            continue
        one = replica(problem, replicas)
        assert (one.k, one.modelling.slices) == (k // replicas, 1)
        way = random_parts(one, seed)
        own = parts_by_task(one, *way)

        def part(
            number: int, at: int, task: int, replicas: int = replicas, own: PartOf = own
        ) -> int:
            return number * replicas // slices * (k // replicas) + own(0, at, task)

        found = evaluate_parts(*hybrid(problem, replicas, *way), k)
        assert found.volume == sliced_volume(problem.graph, problem.modelling, part)


@given(problems())
def test_a_replica_within_its_eps_is_within_eps(problem: Problem) -> None:
    for replicas in range(2, min(problem.modelling.slices, problem.k) + 1):
        if problem.k % replicas:
            continue
        one = replica(problem, replicas)
        cut = layerwise_within(one)
        samples = np.array(problem.modelling.samples)
        of_replica = np.arange(len(samples)) * replicas // len(samples)
        most = np.bincount(of_replica, weights=samples).max() * replicas / samples.sum()
        assert 1 + one.eps == pytest.approx(max(1.0, (1 + problem.eps) / most))
        assume(cut is not None and one.eps > 0 and problem.total > 0)
        model, parts = hybrid(problem, replicas, *horizontal(one))
        alone = evaluate_parts(*horizontal(one), one.k)
        found = evaluate_parts(model, parts, problem.k)
        assert found.imbalance == pytest.approx((1 + alone.imbalance) * most - 1)


@given(problems())
def test_opposed_replicas_are_a_cut_there_and_back(problem: Problem) -> None:
    cut = layerwise(problem.in_slices(1))

    def part(number: int, at: int, task: int) -> int:
        return int(problem.k - 1 - cut[at] if number % 2 else cut[at])

    found = evaluate_parts(*opposed_replicas(problem), problem.k)
    assert found.volume == sliced_volume(problem.graph, problem.modelling, part)


@given(problems("fine"))
def test_fine_grain_sends_as_much(problem: Problem) -> None:
    """No task is divided: its channels stay with its reduction."""
    for rule in (data_parallel, opposed_replicas):
        fine, coarse = (evaluate_parts(*rule(one), problem.k) for one in (problem, problem.coarse))
        assert fine.volume == coarse.volume
        assert (fine.loads == coarse.loads).all()


# ------------------------------------------------------------------ devices of several speeds

rates = st.lists(st.sampled_from([0.3, 1.0, 1.5, 2.0, 4.0]), min_size=1, max_size=3)


def deals(slices: int, runs: int) -> Iterator[list[int]]:
    """All ways to deal out slices."""
    if runs == 1:
        yield [slices]
        return
    for first in range(slices + 1):
        yield from ([first, *rest] for rest in deals(slices - first, runs - 1))


def longest(counts: list[int], rates: list[float]) -> float:
    return max(count / rate for count, rate in zip(counts, rates, strict=True))


@given(st.integers(1, 9), rates)
def test_no_other_deal_lets_the_slowest_end_sooner(slices: int, rates: list[float]) -> None:
    found = dealt(slices, rates)
    assert (np.diff(found) >= 0).all() and len(found) == slices
    counts = np.bincount(found, minlength=len(rates)).tolist()
    least = min(longest(counts, rates) for counts in deals(slices, len(rates)))
    assert longest(counts, rates) == pytest.approx(least)


@given(rates, st.integers(1, 20))
def test_the_number_of_slices_suits_the_speeds(rates: list[float], batch: int) -> None:
    graph, k = full_size_graph("lenet5"), len(rates)
    problem = Problem(graph, flops(graph), Modelling(batch_size=batch), k, 0.1, rates)
    found = slices_for(problem, k)
    if len({*rates}) == 1 or batch <= k:
        assert found == k
        return
    least = {
        slices: min(longest(counts, rates) for counts in deals(slices, k)) / slices
        for slices in range(k, batch + 1)
    }
    enough = AS_GOOD * min(least.values()) + 1e-12
    assert found == min(slices for slices, seconds in least.items() if seconds <= enough)


@given(problems(), st.sampled_from([0.5, 1.0, 3.0]))
def test_equal_speeds_divide_as_none(problem: Problem, speed: float) -> None:
    same = replace(problem, speeds=(speed,) * problem.k)
    for rule in (data_parallel, opposed_replicas, horizontal, incremental):
        assert (rule(same)[1] == rule(problem)[1]).all()
    assert slices_for(same, problem.k) == problem.k


def test_every_known_way_is_one_of_devices_that_differ_for_least_time() -> None:
    """The objective knows the speeds, and parts in opposite order had others."""
    speeds = (1.0, 3.0, 1.0, 2.0)
    objective = step_time(1e-9 * (1 - np.eye(4)), 1.0, 2, speeds)
    graph, modelling = full_size_graph("lenet5"), Modelling(batch_size=8, slices=8)
    problem = Problem(graph, flops(graph), modelling, 4, 1.0, speeds, objective)
    plain = replace(problem, objective=VOLUME)
    ways = zip(known_ways(problem), known_ways(plain), strict=True)
    assert all((parts == others).all() for (_, parts), (_, others) in ways)


def test_a_faster_replica_gets_more_samples() -> None:
    graph = full_size_graph("lenet5")
    speeds = (3.0, 1.0, 1.5, 0.5)
    problem = Problem(graph, flops(graph), Modelling(batch_size=6, slices=3), 4, 0.1, speeds)
    one = replica(problem, 2)
    assert one.speeds == (0.75, 0.25)
    assert one.eps == pytest.approx(0.1)
    assert evaluate_parts(*data_parallel(problem), 4).loads.argmax() == 0
    cut = layerwise_within(replace(one, eps=1.0))
    assert cut is not None
    model, parts = hybrid(problem, 2, *horizontal(one))
    loads = evaluate_parts(model, parts, 4).loads
    assert loads[:2].sum() == 2 * loads[2:].sum()
