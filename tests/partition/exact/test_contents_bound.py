"""The bound of what one part can hold, against the least volume of all assignments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from least_volumes import assignments_within
from partitioned_models import GraphMaker, chain, channel_graphs, read

from hgpart.hypergraph.blocks import full_vertices, single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import INPUT, ChannelGraph
from hgpart.partition import partition_graph
from hgpart.partition.bounds.lower_bound import lower_bound
from hgpart.partition.exact import contents_bound as module
from hgpart.partition.exact.contents_bound import contents_bound
from hgpart.partition.problem.balance import capacities
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.divisions import Division, division_of
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.partition.symmetry.symmetry import Symmetry
from hgpart.work.figures import Work

MOST_ASSIGNMENTS = 20_000
MUCH = 2**60
BARE = Modelling(batch_size=1, input_vertex=False, output_vertex=False)


def spread(found: Symmetry, k: int) -> Division:
    """As many of each class in every part, more or less."""
    sizes = [np.ones(units, dtype=np.int64) for units in found.class_units]
    classes = found.type_classes[:, 0].tolist()
    parts = [np.arange(len(sizes[number]), dtype=np.int32) % k for number in classes]
    return Division(sizes, parts)


def bound_from(found: Symmetry, room: np.ndarray, start: Division) -> int:
    bound, interrupted = contents_bound(found, room, start, MUCH, 0, seed=0, deadline=math.inf)
    assert not interrupted
    return bound


@given(
    channel_graphs(max_layers=4, max_tasks=4),
    st.booleans(),
    st.lists(st.integers(1, 3), min_size=2, max_size=4),
    st.sampled_from([0, 0.1, 0.5]),
    st.integers(0, 9),
)
def test_never_above_the_least_volume(
    graph_and_work: tuple[ChannelGraph, Work],
    with_input: bool,
    speeds: list[int],
    eps: float,
    seed: int,
) -> None:
    """Whatever division comes first."""
    graph, work = graph_and_work
    modelling = Modelling(batch_size=1, input_vertex=with_input, output_vertex=False)
    total = int(work.per_task @ [layer.tasks for layer in graph.layers])
    k, vertices = len(speeds), full_vertices(modelling.views(graph))
    assume(vertices > 0 and k**vertices <= MOST_ASSIGNMENTS)
    room = capacities(total, speeds, eps)
    full = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    assignments, volumes = assignments_within(full.hypergraph, room)
    assume(len(volumes))
    parts = assignments[np.random.default_rng(seed).integers(len(assignments))]
    found = symmetry_of(Problem(graph, work, modelling, 1))
    start = division_of(found, full, parts)
    assert 0 <= bound_from(found, room, start) <= volumes.min()


def residual(blocks: int) -> tuple[ChannelGraph, Work]:
    """Pairs of dense layers, each pair's maps added to those of the pair before."""
    maker = GraphMaker()
    image = maker.add(INPUT, 1, channels=1)
    maps = maker.add("first", 6, (read(image),), elements=4)
    work = [0, 10]
    for _ in range(blocks):
        inner = maker.add("one", 6, (read(maps),), elements=4)
        outer = maker.add("other", 6, (read(inner),), elements=4)
        maps = maker.add("add", 6, (read(outer, groups=6), read(maps, groups=6)), elements=4)
        work += [100, 100, 1]
    return maker.graph(), Work(np.array(work), "MAC", 1, "test")


def test_higher_than_the_bound_of_chains_where_branches_join() -> None:
    """A pair's maps go on to the next pair, and beside it to the sum after: design, section 3."""
    graph, work = residual(4)
    partition = partition_graph(graph, work, 8, 0.1, modelling=BARE, effort=0.1)
    found, volume = symmetry_of(Problem(graph, work, BARE, 1)), partition.evaluation.volume
    room = capacities(int(partition.evaluation.loads.sum()), [1] * 8, 0.1)
    start = division_of(found, partition.model, partition.parts)
    raised, _ = contents_bound(found, room, start, volume, 0, seed=0, deadline=math.inf)
    assert lower_bound(Problem(graph, work, BARE, 8, 0.1)) < raised <= volume
    assert raised >= 0.85 * volume
    assert raised % (4 * 4) == 0  # maps of 4 elements of 4 bytes


def test_what_is_known_is_not_lowered() -> None:
    graph, work = residual(1)
    found = symmetry_of(Problem(graph, work, BARE, 1))
    room, start = capacities(310, [1, 1], 0.1), spread(found, 2)
    for deadline in (math.inf, -math.inf):
        raised = contents_bound(found, room, start, 10**6, 10**5, seed=0, deadline=deadline)
        assert raised == (10**5, False)
    assert contents_bound(found, room, start, 16, 16, seed=0, deadline=math.inf) == (16, False)


def test_what_is_too_large_for_cp_sat_keeps_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, work = chain([4, 4], [9, 8], [1, 1])
    found = symmetry_of(Problem(graph, work, BARE, 1))
    room, start = np.array([9, 9]), spread(found, 2)
    assert bound_from(found, room, start) > 0
    monkeypatch.setattr(module, "LARGEST_SUM", 1)
    assert bound_from(found, room, start) == 0


def test_nothing_that_is_cut_costs_nothing() -> None:
    maker = GraphMaker()
    maker.add(INPUT, 3, channels=3)
    graph, work = maker.graph(), Work(np.array([0]), "MAC", 1, "test")
    found = symmetry_of(Problem(graph, work, Modelling(batch_size=1), 1))
    assert bound_from(found, np.array([1, 1]), spread(found, 2)) == 0
