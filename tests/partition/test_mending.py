"""A plan that exists is changed: few weights move, counted filter by filter."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import hgpart
from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.partition_files import full_parts
from hgpart.partition.mending import Mended, mend
from hgpart.partition.partition import Partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve

EFFORT = 0.1


@pytest.fixture(scope="module")
def before() -> Partition:
    module, shape = hgpart.load_model("lenet5", device="meta")
    graph = hgpart.channel_graph(hgpart.trace(module, hgpart.example_inputs(module, shape)))
    return hgpart.partition_graph(graph, hgpart.flops(graph), 4, 0.2, effort=EFFORT)


def mended(before: Partition, k: int, **asked: Any) -> Mended:
    speeds = asked.pop("speeds", None)
    own = before.problem
    problem = Problem(own.graph, own.work, own.modelling, k, 0.2, speeds)
    return mend(before, problem, Search(effort=EFFORT), solve, **asked)


def moved_by_definition(before: Partition, after: Partition, without: int | None) -> float:
    """Bytes of filters that a device computes now and did not before; one slice, one band."""
    return moved_by_filters(before, full_parts(after.model, after.parts), without)


def moved_by_filters(before: Partition, new: np.ndarray, without: int | None) -> float:
    names = [device for device in range(before.k) if device != without]
    old = full_parts(before.model, before.parts)
    moved, first = 0.0, 0
    for view in before.model.views:
        size = view.parameter_bytes / view.layer.tasks
        for task in range(first, first + view.layer.tasks):
            moved += size * (new[task] >= len(names) or names[new[task]] != old[task])
        first += view.layer.tasks
    return moved


def test_a_device_leaves(before: Partition) -> None:
    after = mended(before, 3, without=[1])
    assert after.partition.feasible
    assert after.moved == round(moved_by_definition(before, after.partition, 1))


def test_a_bound_on_what_moves_is_kept_and_costs_volume(before: Partition) -> None:
    speeds = [1.0, 1.0, 1.0, 0.5]
    anything = mended(before, 4, speeds=speeds)
    total = sum(view.parameter_bytes for view in before.model.views)
    little = mended(before, 4, speeds=speeds, move_at_most=total // 20)
    assert little.moved == round(moved_by_definition(before, little.partition, None))
    assert little.moved <= total // 20
    assert little.partition.feasible
    assert anything.partition.evaluation.volume <= little.partition.evaluation.volume


def test_nothing_moves_where_nothing_has_changed(before: Partition) -> None:
    after = mended(before, 4, move_at_most=0)
    assert after.moved == 0
    assert after.partition.evaluation.volume == before.evaluation.volume


def test_a_device_that_comes_has_no_weights(before: Partition) -> None:
    after = mended(before, 5)
    assert after.moved == round(moved_by_definition(before, after.partition, None))
    assert np.unique(after.partition.parts).max() == 4
    # Equal devices have the parts that they have most weights of: no exchange of two moves less.
    full = full_parts(after.partition.model, after.partition.parts)
    for one, other in combinations(range(5), 2):
        device = np.arange(5)
        device[[one, other]] = other, one
        assert after.moved <= round(moved_by_filters(before, device[full], None))


def test_constraints_hold_beside_a_start(before: Partition) -> None:
    own = before.problem
    wanted = hgpart.constraints(["conv1=2"], no_split=["fc1"])
    problem = Problem(own.graph, own.work, own.modelling, 4, 0.4, constraints=wanted)
    after = mend(before, problem, Search(effort=EFFORT), solve, move_at_most=10**9)
    assert after.partition.broken == ()


@pytest.mark.parametrize(
    "k, asked, why",
    [
        (3, {"without": [4]}, "the plan has devices 0 to 3"),
        (3, {"without": [0, 1, 2, 3]}, "these are all devices of the plan"),
        (2, {"without": [0]}, "3 devices are left of the plan for k=2"),
        (3, {"move_at_most": -1}, "accepted is 0 or more"),
    ],
)
def test_what_can_not_be_is_refused(
    before: Partition, k: int, asked: dict[str, Any], why: str
) -> None:
    with pytest.raises(ArgumentError, match=why):
        mended(before, k, **asked)


def test_too_small_a_bound_names_the_fewest_bytes(before: Partition) -> None:
    with pytest.raises(InfeasibleError, match="the fewest are"):
        mended(before, 3, without=[0], move_at_most=1)


@pytest.mark.parametrize("searches", [1, 2])
def test_ctrl_c_in_a_later_search_leaves_the_best_by_then(before: Partition, searches: int) -> None:
    """The first search moves too much, the second little; a third would seek less volume."""
    calls: list[Problem] = []

    def solve_some(problem: Problem, search: Search) -> Partition:
        calls.append(problem)
        if len(calls) > searches:
            raise KeyboardInterrupt
        return solve(problem, search)

    own = before.problem
    problem = Problem(own.graph, own.work, own.modelling, 4, 0.2, [1.0, 1.0, 1.0, 0.5])
    most = sum(view.parameter_bytes for view in before.model.views) // 20
    asked = before, problem, Search(effort=EFFORT), solve_some
    if searches == 1:
        with pytest.raises(KeyboardInterrupt, match="that moves so few bytes"):
            mend(*asked, move_at_most=most)
        return
    after = mend(*asked, move_at_most=most)
    assert after.partition.interrupted
    assert after.moved <= most
