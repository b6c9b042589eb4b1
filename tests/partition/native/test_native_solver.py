"""The native solver: within eps, what its metrics say, the same for a seed, and hard cases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import (
    MODELS,
    GraphMaker,
    chain,
    channel_graphs,
    graph_of,
    modellings,
    read,
)

from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.blocks import full_vertices, single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.metrics import evaluate, part_loads
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.shares import work_of_layers
from hgpart.layers.channel_graph import INPUT, ChannelGraph
from hgpart.partition import Partition, partition_graph
from hgpart.partition.bounds.lower_bound import lower_bound
from hgpart.partition.native.annealing import Cooling, anneal
from hgpart.partition.native.goal import goal_of
from hgpart.partition.problem.balance import capacities
from hgpart.partition.problem.memory import MemoryLimits, part_memory
from hgpart.partition.problem.objectives import (
    LARGEST,
    VOLUME,
    Objective,
    over_links,
    step_time,
)
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.solution import Solution
from hgpart.partition.symmetry.divisions import Division
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.work.figures import Work, flops

BARE = Modelling(input_vertex=False, output_vertex=False, batch_size=1, bytes_per_element=1)


def solve(graph: ChannelGraph, work: Work, k: int, eps: float, **options: Any) -> Partition:
    """Search a fifth of what is usual: these models are tiny."""
    return partition_graph(graph, work, k, eps, backend="native", **{"effort": 0.2, **options})


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", MODELS)
def test_no_worse_than_kahypar_and_above_the_bound(name: str, grain: str) -> None:
    graph, modelling = graph_of(name), Modelling(grain=grain)
    work = flops(graph)
    try:
        other = partition_graph(graph, work, 3, 0.1, modelling=modelling, backend="kahypar")
    except InfeasibleError:
        return
    found = solve(graph, work, 3, 0.1, modelling=modelling)
    assert found.feasible
    assert found.evaluation.volume <= other.evaluation.volume
    assert lower_bound(Problem(graph, work, modelling, 3, 0.1)) <= found.evaluation.volume


@given(
    channel_graphs(max_layers=6, max_tasks=8),
    modellings,
    st.integers(1, 6),
    st.sampled_from([0, 0.001, 0.1, 1]),
)
def test_any_graph_is_within_eps_or_it_is_said_why_not(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, k: int, eps: float
) -> None:
    graph, work = graph_and_work
    k = max(1, min(k, full_vertices(modelling.views(graph))))
    try:
        found = solve(graph, work, k, eps, modelling=modelling, effort=0.05)
    except InfeasibleError:
        return
    assert found.feasible
    assert found.evaluation.imbalance <= eps + 1e-12


def test_threads_do_not_change_what_is_found() -> None:
    graph = graph_of("residual")
    found = symmetry_of(Problem(graph, flops(graph), Modelling(), 1))
    start = Division(
        [np.array([units]) for units in found.class_units],
        [np.zeros(1, np.int32) for _ in found.type_weights],
    )
    room = np.full(3, int(found.type_weights @ found.class_units[found.type_classes[:, 0]]) // 2)
    chains = [(start, Cooling(seed, 3000, 0.1, 1e-4, 2.0, 12)) for seed in range(4)]
    ranks = [
        [one.rank for one in anneal(found, goal_of(room), chains, threads=threads)[0]]
        for threads in (1, 3)
    ]
    assert ranks[0] == ranks[1]


@pytest.mark.parametrize("grain", ["coarse", pytest.param("fine", marks=pytest.mark.full)])
def test_the_same_seed_gives_the_same_partition(grain: str) -> None:
    graph, modelling = graph_of("residual"), Modelling(grain=grain)
    runs = [solve(graph, flops(graph), 3, 0.1, modelling=modelling, seed=5) for _ in range(2)]
    assert runs[0].parts.tolist() == runs[1].parts.tolist()
    for one, other in zip(runs[0].model.blocks.rows, runs[1].model.blocks.rows, strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("speeds", [[1, 1, 2], [0.1, 0.2, 0.4]])
def test_unequal_speeds(speeds: list[float]) -> None:
    graph = graph_of("residual")
    found = solve(graph, flops(graph), 3, 0.1, speeds=speeds)
    assert found.feasible


def test_two_towers_are_parted_for_nothing() -> None:
    graph = graph_of("branches")
    modelling = Modelling(output_vertex=False)
    assert solve(graph, flops(graph), 2, 0, modelling=modelling).evaluation.volume == 0


def test_depthwise_layers_are_parted_for_the_input_only() -> None:
    graph = graph_of("depthwise")
    modelling = Modelling(output_vertex=False, batch_size=1)
    found = solve(graph, flops(graph), 4, 0, modelling=modelling)
    assert found.evaluation.volume == 3 * 8 * 8 * 8 * 4


def test_as_many_parts_as_tasks() -> None:
    graph, work = chain([3, 2], [3, 2], [1, 1])
    modelling = Modelling(input_vertex=False, output_vertex=False)
    found = solve(graph, work, 5, 0, modelling=modelling)
    assert found.evaluation.loads.tolist() == [1] * 5


@pytest.mark.few(2)
@pytest.mark.parametrize("k", [3, 5, 7, 12])
def test_numbers_of_parts_that_are_no_power_of_two_balance_exactly(k: int) -> None:
    """Two layers of 420 tasks of work 3 and 5."""
    graph, work = chain([420, 420], [420 * 3, 420 * 5], [2, 1])
    found = solve(graph, work, k, 0)
    assert found.evaluation.loads.tolist() == [420 * 8 // k] * k


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_a_hundred_parts(grain: str) -> None:
    graph, work = chain([128, 256, 256], [128_000, 256_000, 256_000], [8, 4, 1])
    modelling = Modelling(grain=grain)
    found = solve(graph, work, 100, 0.1, modelling=modelling, effort=0.005)
    assert found.feasible
    assert found.evaluation.volume >= lower_bound(Problem(graph, work, modelling, 100, 0.1))


def test_one_part_less_than_there_are_tasks() -> None:
    """Two of the equal tasks share a part, which is 12 / 7 of the average."""
    graph, work = chain([4, 3], [4, 3], [1, 1])
    modelling = Modelling(input_vertex=False, output_vertex=False)
    found = solve(graph, work, 6, 1, modelling=modelling)
    assert found.evaluation.max_load == 2
    with pytest.raises(InfeasibleError):
        solve(graph, work, 6, 0.1, modelling=modelling)


def test_eps_of_a_thousandth() -> None:
    graph, work = chain([1000, 1000], [1000 * 7, 1000 * 11], [3, 1])
    found = solve(graph, work, 7, 0.001)
    assert found.evaluation.imbalance <= 0.001


def test_of_three_towers_in_two_parts_one_is_cut_where_it_must() -> None:
    """Maps of 6 tasks, of 4 elements each, are all that travels where a tower is cut."""
    maker = GraphMaker()
    for _ in range(3):
        image = maker.add(INPUT, 1, elements=40)
        maps = maker.add("dense", 6, (read(image, partial=True),), elements=4)
        maker.add("dense", 6, (read(maps, partial=True),), elements=4)
    graph, work = maker.graph(), Work(np.array([0, 10, 10] * 3), "MAC", 1, "test")
    modelling = Modelling(batch_size=1, bytes_per_element=1)
    assert solve(graph, work, 2, 0.34, modelling=modelling).evaluation.volume == 0
    assert solve(graph, work, 2, 0, modelling=modelling).evaluation.volume == 6 * 4


@pytest.mark.few(2)
@pytest.mark.parametrize("k", [2, 4, 8])
def test_depthwise_layers_alone_are_parted_for_nothing(k: int) -> None:
    graph = graph_of("depthwise")
    modelling = Modelling(input_vertex=False, output_vertex=False)
    found = solve(graph, flops(graph), k, 0, modelling=modelling)
    assert found.evaluation.imbalance == 0
    assert found.evaluation.volume == 0


def test_a_heavy_task_that_fills_a_part_has_it() -> None:
    """Half of all work is one task: only the maps that it reads travel."""
    maker = GraphMaker()
    image = maker.add(INPUT, 1, elements=40)
    maps = maker.add("dense", 10, (read(image, partial=True),), elements=4)
    maker.add("whole", 1, (read(maps),))
    graph, work = maker.graph(), Work(np.array([0, 10, 100]), "MAC", 1, "test")
    modelling = Modelling(batch_size=1, bytes_per_element=1)
    found = solve(graph, work, 2, 0, modelling=modelling)
    assert found.evaluation.loads.tolist() == [100, 100]
    assert found.evaluation.volume == 10 * 4


def test_one_heavy_task_is_alone() -> None:
    graph = graph_of("heavy")
    work = flops(graph)
    found = solve(graph, work, 2, 0.5)
    assert found.evaluation.max_load >= work.per_task.max()


def test_time_that_is_up_returns_the_best_so_far() -> None:
    graph = graph_of("residual")
    assert solve(graph, flops(graph), 3, 0.1, time_limit=0.001, effort=100).feasible


@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_progress_goes_up_to_1_and_no_volume_is_below_what_is_found(grain: str) -> None:
    graph, told = graph_of("residual"), []
    found = solve(
        graph,
        flops(graph),
        3,
        0.1,
        modelling=Modelling(grain=grain),
        on_progress=lambda done, volume: told.append((done, volume)),
    )
    shares = [done for done, _ in told]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] == 1
    assert all(volume >= found.evaluation.volume for _, volume in told if volume is not None)


def test_what_progress_raises_ends_the_search() -> None:
    graph = graph_of("residual")

    def stop(done: float, volume: int | None) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        solve(graph, flops(graph), 3, 0.1, effort=100, on_progress=stop)


def test_an_interrupt_returns_the_best_so_far() -> None:
    graph = graph_of("residual")

    def interrupt(done: float, volume: int | None) -> None:
        raise KeyboardInterrupt

    found = solve(graph, flops(graph), 3, 0.1, effort=100, on_progress=interrupt)
    assert found.feasible
    assert found.interrupted
    assert not solve(graph, flops(graph), 3, 0.1).interrupted


def test_an_interrupt_before_anything_fits_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It said that no partition was found; and before, it went on to split and refine."""
    graph, modelling = graph_of("plain"), Modelling()
    model = cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)
    overloaded = Solution(model, np.zeros(model.hypergraph.vertices, np.int32), 0, True)
    monkeypatch.setattr("hgpart.partition.stages.native_partition", lambda *_, **__: overloaded)
    monkeypatch.setattr("hgpart.partition.stages.split_and_improve", None)
    with pytest.raises(KeyboardInterrupt, match="before a partition within the limits was found"):
        solve(graph, flops(graph), 2, 0.1)
    best = solve(graph, flops(graph), 2, 0.1, best_effort=True)
    assert best.interrupted
    assert not best.feasible


def by_hand(graph: ChannelGraph, work: Work, k: int, room: int) -> Iterator[tuple[Any, np.ndarray]]:
    """Every partition of single tasks whose loads are within the room."""
    model = cnn_hypergraph(graph, work, single_blocks(graph, BARE), BARE)
    for parts in product(range(k), repeat=model.hypergraph.vertices):
        found = np.array(parts, dtype=np.int32)
        if part_loads(model.hypergraph, found, k).max() <= room:
            yield model, found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "objective",
    [
        *(VOLUME, LARGEST, over_links([[0, 1, 5], [1, 0, 5], [5, 5, 0]])),
        *(step_time(1e-2 * (1 - np.eye(3)), 1.0, many) for many in (1, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("limit", [None, 10])
def test_the_best_of_all_partitions_is_found(objective: Objective, limit: int | None) -> None:
    graph, work = chain([2, 2, 2], [40, 60, 60], [4, 2, 3])
    memory = None if limit is None else MemoryLimits((limit,) * 3, 0)
    room = int(capacities(160, [1] * 3, 0.3)[0])
    best = math.inf
    for model, parts in by_hand(graph, work, 3, room):
        if limit is None or part_memory(model, parts, 3, 0).max() <= limit:
            traffic = evaluate(model.hypergraph, parts, 3).traffic
            best = min(best, objective.value(traffic, work_of_layers(model, parts, 3)))
    assert best < math.inf
    found = solve(graph, work, 3, 0.3, modelling=BARE, objective=objective, memory=memory)
    assert found.objective_value == pytest.approx(best, rel=1e-6)
    assert found.gap >= 0


def test_more_parts_than_there_is_room_for_pairs_of() -> None:
    graph, work = chain([3000, 3000], [3000, 3000], [1, 1])
    with pytest.raises(ArgumentError, match="k is 6000, expected at most"):
        solve(graph, work, 6000, 10, objective=LARGEST)
