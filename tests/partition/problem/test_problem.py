from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from partitioned_models import chain, channel_graphs, modellings

from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.heaviest_task import heaviest_task, with_room
from hgpart.partition.problem.balance import capacities
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import over_links
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import Work

BARE = Modelling(input_vertex=False, output_vertex=False)


@given(channel_graphs(max_layers=6, max_tasks=8), modellings, st.integers(1, 4))
def test_what_it_knows_is_what_the_full_hypergraph_has(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, k: int
) -> None:
    graph, work = graph_and_work
    problem = Problem(graph, work, modelling, k, 0.1)
    full = problem.hypergraph(single_blocks(graph, modelling))
    assume(full.vertices > 0)
    assert problem.tasks == full.vertices
    assert problem.total == full.weights.sum()
    room = capacities(int(full.weights.sum()), [1] * k, 0.1)
    assert problem.capacities.tolist() == room.tolist()
    assert heaviest_task(problem).work == full.weights.max()
    assert problem.coarse.modelling.grain == "coarse"
    assert problem.at_grain(modelling.grain) is problem


def test_numbers_of_numpy_become_plain_ones() -> None:
    graph, work = chain([2, 2], [4, 4], [1, 1])
    problem = Problem(graph, work, BARE, np.int64(2), np.float64(0.5), tuple(np.array([1, 3])))
    assert [type(value) for value in (problem.k, problem.eps)] == [int, float]
    assert problem.speeds == (1.0, 3.0)
    assert problem.capacities.tolist() == [3, 9]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"k": 0}, "k is 0, expected a whole number of devices, at least 1"),
        ({"k": True}, "k is True"),
        ({"k": 2, "eps": -0.1}, "eps is -0.1, expected a number >= 0"),
        ({"k": 2, "speeds": (1.0,)}, "1 speeds for k=2, expected one for each device"),
        ({"k": 2, "speeds": (1.0, 0.0)}, "speed is 0.0, expected a number from 1e-09 to 1e+09"),
        ({"k": 2, "memory": MemoryLimits((1,))}, "1 memory limits for k=2"),
        ({"k": 2, "objective": over_links(np.ones((3, 3)))}, "link costs of 3 devices"),
    ],
)
def test_what_no_partition_can_be_is_refused(options: dict[str, object], says: str) -> None:
    graph, work = chain([2, 2], [4, 4], [1, 1])
    with pytest.raises(ArgumentError) as caught:
        Problem(graph, work, BARE, **options)
    assert says in str(caught.value)


def test_a_task_that_fits_nowhere() -> None:
    """Of 12 in all, one task of 8: with k = 2 it needs a third more than a half."""
    graph, work = chain([1, 4], [8, 4], [1, 1])
    problem = Problem(graph, work, BARE, 2, 0.1)
    heaviest = heaviest_task(problem)
    says = r"eps 0.1 can't be met with k=2: the heaviest task, .* is 66.7 % .* is 0.334$"
    with pytest.raises(InfeasibleError, match=says):
        with_room(problem, heaviest, best_effort=False)
    wanted = with_room(problem, heaviest, best_effort=True)
    assert (wanted.eps, wanted.least_eps, wanted.capacities.tolist()) == (0.1, 0.334, [8, 8])
    roomy = Problem(graph, work, BARE, 2, 0.4)
    assert with_room(roomy, heaviest, best_effort=False) is roomy
