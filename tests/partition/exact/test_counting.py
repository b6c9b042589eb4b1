"""The exact backend against all assignments of small models, and what it refuses."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from least_volumes import least_volume
from partitioned_models import GraphMaker, chain, channel_graphs, graph_of, read, with_capacities
from strategies import hypergraphs

from hgpart.errors import ArgumentError, InfeasibleError, MissingPackageError
from hgpart.hypergraph.blocks import full_vertices, single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import communication_volume, part_loads
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import INPUT, ChannelGraph
from hgpart.partition import Partition, partition_graph
from hgpart.partition.bounds.lower_bound import lower_bound
from hgpart.partition.exact.counting import exact
from hgpart.partition.exact.counts import solve_counts
from hgpart.partition.exact.cp_sat import Answer, Solver
from hgpart.partition.exact.net_pins import class_variables
from hgpart.partition.native.search import native_partition
from hgpart.partition.problem.balance import capacities
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.solution import Solution
from hgpart.partition.symmetry.divisions import Division, blocks_of
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.partition.symmetry.symmetry import Symmetry
from hgpart.work.figures import Work, flops

MOST_ASSIGNMENTS = 20_000
MOST_VARIABLES = 1_000


def together(found: Symmetry) -> Division:
    """All vertices in part 0."""
    return Division(
        [np.array([units]) for units in found.class_units],
        [np.zeros(1, np.int32) for _ in found.type_weights],
    )


def assert_least(graph: ChannelGraph, work: Work, modelling: Modelling, room: np.ndarray) -> None:
    """The counts program finds the least volume, without a start that is any good."""
    full = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling).hypergraph
    best = least_volume(full, room)
    found = symmetry_of(Problem(graph, work, modelling, 1))
    solved = solve_counts(found, room, together(found), None, 0, seed=0, deadline=math.inf)
    if best is None:
        assert solved.division is None
        return
    assert solved.division is not None
    model, parts = blocks_of(Problem(graph, work, modelling, 1), found, solved.division)
    assert communication_volume(model.hypergraph, parts, len(room)) == best == solved.bound
    assert (part_loads(model.hypergraph, parts, len(room)) <= room).all()
    assert lower_bound(with_capacities(graph, work, modelling, room)) <= best


@given(
    channel_graphs(max_layers=4, max_tasks=4),
    st.booleans(),
    st.lists(st.integers(1, 3), min_size=2, max_size=4),
    st.sampled_from([0, 0.1, 0.5]),
)
def test_least_volume_of_any_small_graph(
    graph_and_work: tuple[ChannelGraph, Work], with_input: bool, speeds: list[int], eps: float
) -> None:
    graph, work = graph_and_work
    modelling = Modelling(batch_size=1, input_vertex=with_input, output_vertex=False)
    total = int(work.per_task @ [layer.tasks for layer in graph.layers])
    k, vertices = len(speeds), full_vertices(modelling.views(graph))
    assume(vertices > 0 and k**vertices <= MOST_ASSIGNMENTS)
    assume(
        sum(class_variables(symmetry_of(Problem(graph, work, modelling, 1)), k)) < MOST_VARIABLES
    )
    assert_least(graph, work, modelling, capacities(total, speeds, eps))


@pytest.mark.parametrize("room", [[12, 12, 12], [12, 13, 14], [9, 15, 16], [36, 7, 12]])
@pytest.mark.parametrize(("cyclic", "variables"), [(False, 67), (True, 57)])
def test_least_volume_where_counts_do_not_say_how_units_lie(
    room: list[int], cyclic: bool, variables: int
) -> None:
    """Nets of three pins of a unit: covers; another of two of these pins: all ways of a unit."""
    maker = GraphMaker()
    image = maker.add(INPUT, 1, channels=1)
    first = maker.add("dense", 3, (read(image, partial=True),), elements=5, weights=3)
    second = maker.add("norm", 3, (read(first, groups=3),), elements=3)
    both = (read(first, groups=3), read(second, groups=3))
    maker.add("norm", 3, both if cyclic else both[:1], elements=2)
    graph, work = maker.graph(), Work(np.array([0, 3, 5, 4]), "MAC", 1, "test")
    modelling = Modelling(batch_size=1, input_vertex=False, output_vertex=False)
    assert class_variables(symmetry_of(Problem(graph, work, modelling, 1)), 3) == [variables]
    assert_least(graph, work, modelling, np.array(room))


@given(
    hypergraphs(max_vertices=7, max_nets=6, min_nets=1, max_weight=20),
    st.lists(st.integers(1, 3), min_size=2, max_size=3),
)
def test_least_volume_of_any_small_hypergraph(hypergraph: Hypergraph, speeds: list[int]) -> None:
    room = capacities(int(hypergraph.weights.sum()), speeds, 0.2)
    best = least_volume(hypergraph, room)
    assume(best is not None)
    parts = exact(hypergraph, room)
    assert communication_volume(hypergraph, parts, len(room)) == best
    assert (part_loads(hypergraph, parts, len(room)) <= room).all()


# ------------------------------------------------------------------ as a backend


def solve(graph: ChannelGraph, work: Work, k: int, eps: float, **options: Any) -> Partition:
    return partition_graph(graph, work, k, eps, backend="exact", **{"effort": 0.05, **options})


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["plain", "residual", "depthwise", "tied", "branches"])
def test_proven_optimal_and_no_worse_than_native(name: str) -> None:
    graph = graph_of(name)
    native = partition_graph(graph, flops(graph), 3, 0.1, backend="native", effort=0.01)
    found = solve(graph, flops(graph), 3, 0.1)
    assert found.feasible
    assert (found.backend, found.gap) == ("exact", 0.0)
    assert found.lower_bound == found.evaluation.volume <= native.evaluation.volume


def test_the_same_seed_gives_the_same_partition() -> None:
    graph = graph_of("residual")
    one, other = (solve(graph, flops(graph), 3, 0.1, seed=5) for _ in range(2))
    assert one.parts.tolist() == other.parts.tolist()


def test_what_native_proves_itself_needs_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hgpart.partition.exact.cp_sat.OwnProcess", None)
    found = solve(graph_of("branches"), flops(graph_of("branches")), 1, 0)
    assert (found.evaluation.volume, found.lower_bound, found.gap) == (0, 0, 0.0)


LONG = chain([64] * 10, [64 * n for n in (7, 11, 13, 17, 19, 23, 29, 31, 37, 41)], [9] * 10)


@pytest.mark.full
def test_time_that_is_up_leaves_a_gap() -> None:
    """At least what native finds, and at least its bound."""
    graph, work = LONG
    found = solve(graph, work, 8, 0.03, time_limit=2)
    assert found.feasible
    least = lower_bound(Problem(graph, work, found.modelling, 8, 0.03))
    assert least <= found.lower_bound < found.evaluation.volume
    assert found.gap == pytest.approx(1 - found.lower_bound / found.evaluation.volume)


def test_unequal_speeds() -> None:
    graph = graph_of("residual")
    found = solve(graph, flops(graph), 3, 0.1, speeds=[0.1, 0.2, 0.4])
    assert found.feasible
    assert found.lower_bound == found.evaluation.volume


def test_what_does_not_fit_is_infeasible() -> None:
    graph, work = chain([3, 2], [9, 8], [1, 1])
    modelling = Modelling(input_vertex=False, output_vertex=False)
    with pytest.raises(InfeasibleError, match="no partition within eps 0 was found"):
        solve(graph, work, 2, 0, modelling=modelling)


def test_fine_grain_is_refused() -> None:
    graph = graph_of("plain")
    with pytest.raises(ArgumentError, match=r"^grain is 'fine', expected 'coarse' .* native$"):
        solve(graph, flops(graph), 2, 0.1, modelling=Modelling(grain="fine"))


@pytest.mark.full
@pytest.mark.long
def test_where_no_program_counts_what_one_part_holds_bounds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many parts, or a class whose units can lie in too many ways."""
    monkeypatch.setattr("hgpart.partition.exact.counting.solve_counts", None)
    graph, work = LONG
    found = solve(graph, work, 16, 0.1, time_limit=20)
    assert lower_bound(Problem(graph, work, found.modelling, 16, 0.1)) < found.lower_bound
    assert found.lower_bound <= found.evaluation.volume
    maker = GraphMaker()
    maps = before = maker.add(INPUT, 12, channels=12)
    for _ in range(6):
        before = maker.add("add", 12, (read(maps, groups=12), read(before, groups=12)))
    graph, work = maker.graph(), Work(np.array([0, 3, 1, 1, 1, 1, 1]), "MAC", 1, "test")
    assert solve(graph, work, 8, 0.1, time_limit=5).feasible


def test_a_hypergraph_that_is_too_large_is_refused() -> None:
    """A path of vertices, all of which differ."""
    vertices, k = 300, 100
    hypergraph = Hypergraph(
        weights=np.arange(100, 100 + vertices),
        costs=np.ones(vertices - 1, dtype=np.int64),
        pointers=np.arange(0, 2 * vertices - 1, 2),
        pins=np.array([[at, at + 1] for at in range(vertices - 1)], dtype=np.int32).ravel(),
        gathers=np.zeros(vertices - 1, dtype=np.bool_),
        net_layers=np.zeros(vertices - 1, dtype=np.int32),
    )
    with pytest.raises(
        ArgumentError, match=r"^k is 100, .* 119,800 variables .* 400 of them for vertices like"
    ):
        exact(hypergraph, np.full(k, 1000))


def test_costs_beyond_62_bits_are_refused() -> None:
    hypergraph = Hypergraph(
        weights=np.array([1, 1, 1, 2], dtype=np.int64),
        costs=np.array([2**59 + 1, 2**59], dtype=np.int64),
        pointers=np.array([0, 2, 4], dtype=np.int64),
        pins=np.array([0, 1, 1, 2], dtype=np.int32),
        gathers=np.zeros(2, dtype=np.bool_),
        net_layers=np.zeros(2, dtype=np.int32),
    )
    with pytest.raises(ArgumentError, match=r"^the costs add up to .* expected at most 1\.15e\+18"):
        exact(hypergraph, np.array([1, 1, 3]))


def test_missing_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    graph = graph_of("plain")
    with pytest.raises(MissingPackageError, match=r"ortools is not installed: pip install ortools"):
        solve(graph, flops(graph), 2, 0.1)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C while CP-SAT solves the counts program; a runner in the background ignores it else."""

    class InterruptedSolver(Solver):
        def solve(self, *arguments: Any) -> Answer:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            return super().solve(*arguments)

    monkeypatch.setattr("hgpart.partition.exact.counts.Solver", InterruptedSolver)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def assert_interrupted(found: Partition) -> None:
    assert found.feasible
    assert found.interrupted


def test_one_ctrl_c_ends_it_in_the_native_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """That returned its best, and the counts program began as if nothing had been."""

    def interrupt(done: float, volume: int | None) -> None:
        raise KeyboardInterrupt

    def start(problem: Problem, search: Search, bound: int) -> Solution:
        return native_partition(problem, replace(search, on_progress=interrupt), bound)

    monkeypatch.setattr("hgpart.partition.exact.counting.native_partition", start)
    monkeypatch.setattr("hgpart.partition.exact.counting.contents_bound", None)
    monkeypatch.setattr("hgpart.partition.exact.counting.solve_counts", None)
    graph, work = LONG
    assert_interrupted(solve(graph, work, 8, 0.03, time_limit=600))


@pytest.mark.full
@pytest.mark.long
def test_ctrl_c_returns_the_best_of_a_model(interrupted: None) -> None:
    graph, work = LONG
    assert_interrupted(solve(graph, work, 8, 0.03, time_limit=600))


@pytest.mark.few(1)
@pytest.mark.parametrize("step", ["_Covering._contents", "_Prices.volume_and_prices"])
def test_ctrl_c_returns_the_best_where_one_part_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """While the bound is prepared, and between its searches; nothing begins after it."""

    def interrupt(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"hgpart.partition.exact.contents_bound.{step}", interrupt)
    monkeypatch.setattr("hgpart.partition.exact.counting.solve_counts", None)
    graph, work = LONG
    assert_interrupted(solve(graph, work, 8, 0.03, time_limit=600))


def test_ctrl_c_in_a_search_for_the_bound_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    search, searches = Solver.solve, []

    def solve_and_say_so(*arguments: Any) -> Answer:
        searches.append(replace(search(*arguments), interrupted=True))
        return searches[-1]

    monkeypatch.setattr(Solver, "solve", solve_and_say_so)
    monkeypatch.setattr("hgpart.partition.exact.counting.solve_counts", None)
    graph, work = LONG
    assert_interrupted(solve(graph, work, 8, 0.03, time_limit=600))
    assert len(searches) == 1


def test_a_cp_sat_that_ends_its_process_leaves_the_partition_unproven(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It took the user's program with it, where it aborts: google/or-tools#5025."""
    aborting = tmp_path / "child.py"
    aborting.write_text("import os; os.abort()")
    monkeypatch.setattr("hgpart.partition.exact.cp_sat.CHILD", aborting)
    graph = graph_of("residual")
    found = solve(graph, flops(graph), 3, 0.1)
    assert found.feasible
    assert not found.interrupted
    assert found.lower_bound == lower_bound(Problem(graph, flops(graph), found.modelling, 3, 0.1))
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2  # of what one part can hold, and of the counts
    assert all(line.startswith("hgpart: warning: CP-SAT was ended by SIGABRT") for line in warnings)


def test_ctrl_c_reaches_the_caller_of_a_backend(interrupted: None) -> None:
    graph, work = LONG
    modelling = Modelling()
    full = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling).hypergraph
    with pytest.raises(KeyboardInterrupt):
        exact(full, capacities(int(full.weights.sum()), [1] * 8, 0.03), time_limit=600)
