"""Ways of users: listed everywhere, and checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from partitioned_models import graph_of

from hgpart.bench.ways.way import MEANINGS, all_ways
from hgpart.compare.comparison import chosen_ways
from hgpart.errors import ArgumentError, BackendError
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways import of_users
from hgpart.partition.ways.catalogue import partition_by, ways
from hgpart.partition.ways.of_users import TRAINING_NAMES, way
from hgpart.recommendation.trials import trials, trials_within
from hgpart.work.figures import flops


@pytest.fixture(autouse=True)
def _without_those_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_users, "_registered", {})


def test_a_users_way_is_listed_everywhere_and_its_figures_are_ours() -> None:
    @way("in-turns", "task after task", needs=lambda problem: "odd" if problem.k % 2 else None)
    def in_turns(problem: Problem, search: Search) -> Any:
        return np.arange(problem.tasks) % problem.k

    graph = graph_of("plain")
    found = partition_by("in-turns", graph, flops(graph), 2)
    assert (found.backend, found.k) == ("in-turns", 2)
    assert np.bincount(found.parts).tolist() == [25, 25]
    assert ways()["in-turns"].words == "task after task"
    assert "in-turns" in [each.name for each in chosen_ways(None)]
    assert "in-turns" in [each.name for each in all_ways(2)]
    assert "in-turns" in [each.name for each in trials(2)]
    problem = Problem(graph, flops(graph), Modelling(), 2, 0.2)
    assert "in-turns" in [each.name for each in trials_within(problem, (1,))]
    with pytest.raises(ArgumentError, match=r"^odd$"):
        partition_by("in-turns", graph, flops(graph), 3)


def test_a_users_way_may_have_slices() -> None:
    @way("halves-of-the-batch", slices=lambda problem: 2)
    def halves(problem: Problem, search: Search) -> Any:
        return [int(at >= problem.tasks // 2) for at in range(problem.tasks)]

    graph = graph_of("plain")
    found = partition_by("halves-of-the-batch", graph, flops(graph), 2)
    alike = partition_by("data-parallel", graph, flops(graph), 2)
    assert found.modelling.slices == 2
    assert found.evaluation.volume == alike.evaluation.volume


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([0, 1], "way 'wrong': 2 parts: accepted are 50, one for each vertex, or 48"),
        (np.zeros(50), "accepted are whole numbers, in one list or array"),
        ([2] * 50, "way 'wrong': part 2: accepted are 0 to 1"),
        ([-1] * 50, "way 'wrong': part -1: accepted are 0 to 1"),
        (None, "accepted are whole numbers, in one list or array"),
        ([[0], [0, 1]], "way 'wrong': parts: accepted are whole numbers"),
    ],
)
def test_what_a_users_way_returns_is_checked(returned: Any, said: str) -> None:
    way("wrong")(lambda problem, search: returned)
    graph = graph_of("plain")
    with pytest.raises(BackendError, match=said):
        partition_by("wrong", graph, flops(graph), 2)


def test_what_goes_wrong_in_a_users_way_is_its_own_error() -> None:
    way("broken")(lambda problem, search: 1 / 0)
    graph = graph_of("plain")
    with pytest.raises(BackendError, match=r"^way 'broken': ZeroDivisionError: division by zero$"):
        partition_by("broken", graph, flops(graph), 2)


def test_a_partition_of_another_problem_is_refused() -> None:
    """A way returned 4 parts where 2 were asked for, and stood in a table as 2."""
    graph = graph_of("plain")
    four = partition_by("horizontal", graph, flops(graph), 4)
    larger = Modelling(batch_size=8)
    way("four")(lambda problem, search: four)
    with pytest.raises(BackendError, match=r"^way 'four' returned parts 0 to 3, expected 0 to 1$"):
        partition_by("four", graph, flops(graph), 2)
    assert partition_by("four", graph, flops(graph), 4).evaluation.volume == four.evaluation.volume
    with pytest.raises(BackendError, match=r"^way 'four' returned a partition of another problem"):
        partition_by("four", graph, flops(graph), 4, modelling=larger)


def test_a_users_way_whose_search_ctrl_c_ended_ends_the_command() -> None:
    """What it had by then was shown as its result."""
    graph = graph_of("plain")
    ended = replace(partition_by("horizontal", graph, flops(graph), 2), interrupted=True)
    way("ended")(lambda problem, search: ended)
    with pytest.raises(KeyboardInterrupt):
        partition_by("ended", graph, flops(graph), 2)


@pytest.mark.parametrize("asked", ["needs", "slices"])
def test_what_goes_wrong_in_what_a_way_needs_is_its_own_error_too(asked: str) -> None:
    way("broken", **{asked: lambda problem: problem.devices})(lambda problem, search: [0])
    graph = graph_of("plain")
    with pytest.raises(BackendError, match=r"^way 'broken': AttributeError: "):
        partition_by("broken", graph, flops(graph), 2)


def test_names_that_bench_has_for_itself_are_reserved() -> None:
    assert {*TRAINING_NAMES, "single"} == {*MEANINGS}


@pytest.mark.parametrize("name", ["coarse", "hybrid-2", "single", "ddp", "halves", "fine-kahypar"])
def test_a_built_in_name_is_not_taken(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"^way '{name}' is built in"):
        way(name)
    for wrong in ("", "A", "a:b", "a,b", "-a", "a\n"):
        with pytest.raises(ArgumentError, match="accepted are small letters"):
            way(wrong)
