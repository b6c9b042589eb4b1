"""What a part can hold bounds what is sent: below every partition, and near the best of some."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from least_volumes import least_volume
from partitioned_models import (
    GraphMaker,
    chain,
    channel_graphs,
    concatenations,
    graph_of,
    modellings,
    read,
    with_capacities,
)

from hgpart import _native
from hgpart.errors import HypergraphError
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import INPUT, OUTPUT, ChannelGraph
from hgpart.partition import partition_graph
from hgpart.partition.bounds.part_bound import part_bound
from hgpart.partition.bounds.part_model import part_model
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import Work, flops

QUICK = 0.005  # of the default effort


def bound_of(problem: Problem, effort: float = QUICK) -> int:
    bound, interrupted = part_bound(problem, effort=effort)
    assert not interrupted
    return bound


@given(
    channel_graphs(max_layers=6, max_tasks=6),
    modellings,
    st.integers(1, 5),
    st.integers(0, 2**16),
    st.floats(0, 1),
)
def test_no_partition_is_below_it(
    graph_and_work: tuple[ChannelGraph, Work],
    modelling: Modelling,
    k: int,
    seed: int,
    together: float,
) -> None:
    """Random parts, with more or less of the vertices in the part of the one before."""
    graph, work = graph_and_work
    problem, volume = at_random(graph, work, replace(modelling, grain="coarse"), k, seed, together)
    assert bound_of(problem) <= volume


@given(
    concatenations(),
    st.integers(1, 3),
    st.booleans(),
    st.integers(2, 5),
    st.integers(0, 2**16),
    st.floats(0, 1),
)
def test_none_of_layers_that_read_many_is_below_it(
    graph_and_work: tuple[ChannelGraph, Work],
    slices: int,
    training: bool,
    k: int,
    seed: int,
    together: float,
) -> None:
    """What many layers read of many is followed by readings."""
    graph, work = graph_and_work
    modelling = Modelling(batch_size=slices, slices=slices, training=training, output_vertex=False)
    problem, volume = at_random(graph, work, modelling, k, seed, together)
    assert bound_of(problem) <= volume
    best = partition_graph(graph, work, k, 0.5, modelling=modelling, effort=0.01, best_effort=True)
    if best.feasible:
        assert bound_of(best.problem) <= best.evaluation.volume


def at_random(
    graph: ChannelGraph, work: Work, modelling: Modelling, k: int, seed: int, together: float
) -> tuple[Problem, int]:
    """A problem whose capacities are the loads of a random partition, and the volume of this."""
    model = Problem(graph, work, modelling, k).hypergraph(single_blocks(graph, modelling))
    random = np.random.default_rng(seed)
    parts = random.integers(0, k, model.vertices).astype(np.int32)
    for vertex in range(1, model.vertices):
        if random.random() < together:
            parts[vertex] = parts[vertex - 1]
    evaluation = evaluate_parts(model, parts, k)
    return with_capacities(graph, work, modelling, evaluation.loads), evaluation.volume


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_tiny_models_by_trying_all_partitions(slices: int, training: bool) -> None:
    graph, work = chain([2, 1, 2], [3, 5, 2], [4, 1, 2])
    modelling = Modelling(
        input_vertex=False, output_vertex=False, batch_size=2, slices=slices, training=training
    )
    problem = Problem(graph, work, modelling, 2, 0.2)
    model = problem.hypergraph(single_blocks(graph, modelling))
    volumes = []
    for parts in product(range(2), repeat=model.vertices):
        evaluation = evaluate_parts(model, np.array(parts, dtype=np.int32), 2)
        if (evaluation.loads <= problem.capacities).all():
            volumes.append(evaluation.volume)
    assert bound_of(problem) <= min(volumes)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=7, max_size=7), st.sampled_from([0.1, 0.4, 0.8]))
@pytest.mark.parametrize(("k", "slices"), [(2, 1), (3, 1), (2, 2)])
def test_tiny_concatenations_by_trying_all_partitions(
    k: int, slices: int, numbers: list[int], eps: float
) -> None:
    """Two branches, and two layers that read both; the second through a norm, and the first too."""
    maker = GraphMaker()
    first, second, *sizes = (number + 1 for number in numbers)
    start = maker.add("dense", 1, elements=first, weights=second)
    ends = [maker.add("dense", 1, (read(start),), elements=sizes[at], weights=3) for at in (0, 1)]
    joined = np.concatenate(ends)
    middle = maker.add("dense", 1, (read(joined),), elements=sizes[2], weights=2)
    channels = np.concatenate([joined, middle])
    norm = maker.add("dense", 3, (read(channels, groups=3),), elements=sizes[3])
    maker.add("dense", 1, (read(norm),), weights=2)
    work = Work(np.array([*numbers[2:6], 0, 5], dtype=np.int64), "MAC", 1, "test")
    modelling = Modelling(batch_size=slices, slices=slices, input_vertex=False, output_vertex=False)
    problem = Problem(maker.graph(), work, modelling, k, eps)
    model = cnn_hypergraph(problem.graph, work, single_blocks(problem.graph, modelling), modelling)
    least = least_volume(model.hypergraph, problem.capacities)
    assert least is None or bound_of(problem) <= least


@pytest.mark.parametrize("speeds", [None, (3, 2, 1)])
@pytest.mark.parametrize("slices", [1, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name", ["residual", *(pytest.param(n, marks=pytest.mark.full) for n in ("tied", "grouped"))]
)
def test_what_is_found_is_no_less(name: str, slices: int, speeds: tuple[float, ...] | None) -> None:
    graph = graph_of(name)
    modelling = Modelling(batch_size=8, slices=slices)
    options = {"modelling": modelling, "speeds": speeds, "effort": 0.05}
    found = partition_graph(graph, flops(graph), 3, 0.3, **options)
    assert 0 <= bound_of(found.problem) <= found.evaluation.volume


def test_equal_layers_are_cut_for_the_bound() -> None:
    """Four layers in two parts of a fifth more than half: a cut between two of them."""
    graph, work = chain([8] * 4, [80] * 4, [1] * 4)
    modelling = Modelling(
        input_vertex=False, output_vertex=False, batch_size=1, bytes_per_element=1
    )
    bound = bound_of(Problem(graph, work, modelling, 2, 0.2), 0.3)
    assert 0.85 * 8 <= bound <= 8


def test_slices_send_parameters() -> None:
    """Layers with few parameters and large maps, which a part can't hold all of, go by slices."""
    graph, work = chain([8] * 3, [80] * 3, [1000] * 3)
    modelling = Modelling(input_vertex=False, output_vertex=False, batch_size=8, slices=4)
    found = partition_graph(graph, work, 2, 0.1, modelling=modelling, effort=0.1)
    assert 0.7 * found.evaluation.volume <= bound_of(found.problem, 0.3) <= found.evaluation.volume


def test_slices_in_inference_need_send_nothing() -> None:
    graph, work = chain([4, 4], [10, 10], [3, 3])
    modelling = Modelling(batch_size=4, slices=4, training=False)
    assert bound_of(Problem(graph, work, modelling, 4, 0.0)) == 0


def test_nets_that_cost_nothing_have_no_model() -> None:
    graph, work = chain([4], [10], [3])
    modelling = Modelling(input_vertex=False, output_vertex=False)
    assert part_model(Problem(graph, work, modelling, 2, 0.5)) is None


def test_a_time_limit_ends_it() -> None:
    graph = graph_of("residual")
    problem = Problem(graph, flops(graph), Modelling(batch_size=8, slices=4), 4, 0.3)
    assert part_bound(problem, seconds=0.0) == (0, False)
    assert part_bound(problem, seconds=math.inf, effort=0.0)[0] >= 0


def test_a_mixture_with_a_lighter_one_is_bounded() -> None:
    """The lighter contents had given way to others still lighter, and the mixture was left out."""
    maker = GraphMaker()
    channels = maker.add(INPUT, 1, channels=3)
    loads = [1, 0, 3, 1, 10, 40, 3]
    for at, size in enumerate([2, 2, 100, 100, 2, 2, 5]):
        reads = (read(channels), *([read(channels, groups=8)] if 1 <= at <= 4 else []))
        channels = maker.add("dense", 8, reads, elements=size)
    maker.add(OUTPUT, 1, (read(channels),), channels=0)
    work = Work(np.array([0, *loads, 0], dtype=np.int64), "MAC", 1, "test")
    modelling = Modelling(batch_size=1, output_vertex=False)
    found = partition_graph(maker.graph(), work, 5, 0.1, modelling=modelling, effort=0.03)
    assert bound_of(found.problem, 0.1) <= found.evaluation.volume


def test_a_trace_of_a_layer_is_in_a_part() -> None:
    """Parts that must hold some of it may hold next to nothing: the bound was 2412 of 1920."""
    maker = GraphMaker()
    channels = maker.add("dense", 12, elements=5)
    for _ in range(2):
        channels = maker.add("dense", 12, (read(channels), read(channels, groups=12)), elements=5)
    last = maker.add("dense", 8, (read(channels),))
    maker.add("dense", 12, (read(np.union1d(channels, last)),), elements=20)
    work = Work(np.array([40, 3, 0, 40, 0], dtype=np.int64), "MAC", 1, "test")
    problem = Problem(maker.graph(), work, Modelling(batch_size=5), 5, 0.7)
    assert 0 < bound_of(problem, 0.02) <= 1920


WRONG = {
    "work": (np.array([-1.0, 1.0]), "work[0] is"),
    "classes": (np.array([0], dtype=np.int32), "classes has length 1"),
    "nets": (np.array([0, 7], dtype=np.int32), "nets[1] is 7"),
    "capacities": (np.array([0.1, 0.9]), "capacities are not in descending order"),
    "costs": (np.array([math.nan]), "costs[0] is"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arrays_are_checked(name: str) -> None:
    graph, work = chain([2], [3], [4])
    model = part_model(Problem(graph, work, Modelling(output_vertex=False), 2, 1.0))
    assert model is not None
    assert len(model.work) == 2
    values, said = WRONG[name]
    with pytest.raises(HypergraphError, match=re.escape(said)):
        _native.contents_bound(replace(model, **{name: values}), 1e6)


def test_nets_that_begin_where_others_end_have_slots_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six nets that end at a layer and five that begin there took more slots than there are.

    The last wrote over what a label says of mixtures, and the bound was above a partition. With
    readings there are fewer.
    """
    monkeypatch.setattr("hgpart.partition.bounds.part_model._through_readings", lambda nets: nets)
    maker = GraphMaker()
    sources = [maker.add("dense", 4, elements=size) for size in (17, 15, 4, 15, 10, 3)]
    joined = [read(np.concatenate(sources), partial=True)]
    maker.add("dense", 1, (*joined,), elements=1, weights=96)
    for size in (16, 19, 12, 15, 5):
        own = maker.add("dense", 24, elements=size)
        maker.add(
            "dense", 1, (read(own, partial=True),), elements=1, weights=96, tied_to=len(sources)
        )
    work = [46, 23, 55, 41, 31, 14, 19, 64, 7, 29, 17, 17, 13, 53, 18, 84, 7]
    modelling = Modelling(
        batch_size=1, input_vertex=False, output_vertex=False, bytes_per_element=1
    )
    of_tasks = Work(np.array(work, dtype=np.int64), "MAC", 1, "test")
    problem = Problem(maker.graph(), of_tasks, modelling, 2, 0.09461538521924208)
    model = part_model(problem)
    assert model is not None
    items = np.repeat(np.arange(len(model.work)), np.diff(model.pointers))
    ends = [items[model.nets == net][[0, -1]] for net in range(len(model.costs))]
    there = [sum(first <= at <= last for first, last in ends) for at in range(len(model.work))]
    assert max(there) == 9  # as many as there are slots for, beside those of groups
    divided = partition_graph(
        problem.graph, of_tasks, 2, problem.eps, modelling=modelling, effort=0.03
    )
    assert bound_of(problem, 0.02) <= divided.evaluation.volume


def test_less_work_than_parts_has_no_bound() -> None:
    """The largest capacity is below one unit of work: nothing can be said of what parts hold."""
    graph, _ = chain([4, 4], [4, 4], [1, 1])
    work = Work(np.array([0, 1, 0, 0][: len(graph.layers)], dtype=np.int64), "MAC", 1, "test")
    problem = Problem(graph, work, Modelling(batch_size=2), 12)
    assert not problem.capacities.any()
    assert bound_of(problem) == 0
