"""The catalogue: each way by its one name, what it needs, and ways of users."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from partitioned_models import MODELS, graph_of

from hgpart.bench.ways.way import MEANINGS, all_ways
from hgpart.compare.comparison import chosen_ways
from hgpart.errors import ArgumentError, BackendError
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition import ways as module
from hgpart.partition.baselines import random_parts
from hgpart.partition.partition import Partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways import (
    BUILT_IN,
    FORMER,
    TRAINING_NAMES,
    layers_that_compute,
    partition_by,
    way,
    way_named,
    ways,
)
from hgpart.recommendation.trials import trials, trials_within
from hgpart.work.figures import flops

CHEAP = ("layerwise", "horizontal", "incremental", "random")


@pytest.fixture(autouse=True)
def _without_those_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_of_users", {})


def problem(name: str, k: int = 3, eps: float = 0.2, **modelling: Any) -> Problem:
    graph = graph_of(name)
    return Problem(graph, flops(graph), Modelling(**modelling), k, eps)


def divided(name: str, model: str, seed: int = 0, k: int = 3, **modelling: Any) -> Partition:
    return way_named(name).partition(problem(model, k, **modelling), Search(seed, 0.1))


@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize("name", [*CHEAP, "coarse", "fine"])
def test_all_figures_are_those_of_the_parts(name: str, grain: str) -> None:
    found = divided(name, "plain", grain=grain)
    own = way_named(name).grain or grain
    assert (found.k, found.modelling.grain) == (3, own)
    again = evaluate(found.model.hypergraph, found.parts, 3)
    assert found.evaluation.volume == again.volume
    assert found.feasible == (again.imbalance <= 0.2)
    assert np.array_equal(found.parts, divided(name, "plain", grain=grain).parts)


@pytest.mark.parametrize("name", ["layerwise", "horizontal", "incremental"])
def test_a_batch_in_slices_is_divided_alike_in_each(name: str) -> None:
    whole = way_named(name).parts(problem("plain", batch_size=4), Search())
    model, parts = way_named(name).parts(problem("plain", batch_size=4, slices=2), Search())
    assert model.modelling.slices == 2
    assert np.array_equal(parts, np.tile(whole[1], 2))


@pytest.mark.parametrize("name", MODELS)
def test_layers_stay_whole_in_cuts_between_them(name: str) -> None:
    asked = problem(name, 2, grain="fine")
    if layers_that_compute(asked) is not None:
        asked = replace(asked, k=1)
    found = way_named("layerwise").partition(asked, Search())
    for layer in range(len(graph_of(name).layers)):
        assert len(np.unique(found.parts[found.model.vertex_layers == layer])) <= 1


def test_a_random_one_has_every_vertex_anywhere() -> None:
    first, second = (divided("random", "plain", seed, grain="fine") for seed in (0, 1))
    assert first.evaluation.volume != second.evaluation.volume
    assert np.bincount(first.parts, minlength=3).min() > 0.25 * len(first.parts)
    # Nearly no two filters are alike, so that nearly each is a block.
    assert [len(rows) for rows in first.model.blocks.rows] == [2, 17, 17, 17, 2]


@pytest.mark.parametrize("name", MODELS)
def test_too_many_tasks_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(random_parts, "MOST_TASKS", 0)
    found, most = divided("random", name, grain="fine"), random_parts.MOST_CUTS
    assert max(len(rows) for rows in found.model.blocks.rows) <= most + 2
    assert max(len(columns) for columns in found.model.blocks.columns) <= most + 2
    assert len(found.parts) == found.model.hypergraph.vertices


# ------------------------------------------------------------------ names


def test_every_way_has_one_name_and_a_line_of_words() -> None:
    for name, each in ways().items():
        assert each.name == name
        assert way_named(name) == each
        assert each.words
        assert "\n" not in each.words
    assert not FORMER.keys() & {*ways(), *BUILT_IN}
    assert set(FORMER.values()) <= {*ways(), *BUILT_IN}


@pytest.mark.parametrize(("former", "now"), FORMER.items())
def test_a_former_name_is_answered_with_the_present_one(former: str, now: str) -> None:
    with pytest.raises(ArgumentError, match=f"^way '{former}' is called {now} now$"):
        way_named(former)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("layerwize", r"accepted are coarse, .*, hybrid-R; did you mean layerwise\?"),
        ("replicated", r"did you mean replicated-stages\?"),
        ("hybrid-0", r"^way 'hybrid-0': accepted are"),
        ("hybrid-two", r"^way 'hybrid-two': accepted are"),
        ("", "did you mean"),
    ],
)
def test_what_is_no_way_is_refused(name: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as error:
        way_named(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "k", "why"),
    [
        ("layerwise", 4, "4 devices, but only 3 layers that compute"),
        ("hybrid-3", 4, "4 devices for 3 replicas: accepted are hybrid-2, data-parallel"),
        ("hybrid", 2, "need 4 devices or more"),
        ("transformed-parts", 2, "accepted are models of hgpart.transform"),
        ("least-time", 2, "the objective is volume: accepted is time"),
        ("data-parallel", 64, "64"),
    ],
)
def test_what_a_way_needs_is_said(name: str, k: int, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        divided(name, "plain", k=k)


# ------------------------------------------------------------------ ways of users


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
    assert "in-turns" in [each.name for each in trials_within(problem("plain"), (1,))]
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
