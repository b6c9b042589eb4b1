"""Annealing: what a chain returns is the best that it has met."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioned_models import chain, channel_graphs, modellings

from hgpart.blocks import Modelling
from hgpart.graph import ChannelGraph
from hgpart.objectives import LARGEST, VOLUME, Objective
from hgpart.partition.annealing import Schedule, anneal
from hgpart.partition.divisions import Division
from hgpart.partition.goal import Goal, goal_of
from hgpart.partition.symmetry import Symmetry, symmetry
from hgpart.work import Work


def random_division(found: Symmetry, k: int, seed: int) -> Division:
    """Two rows of each class where it has two units, their vertices anywhere."""
    random = np.random.default_rng(seed)
    sizes = [np.array([1, units - 1] if units > 1 else [1]) for units in found.class_units.tolist()]
    shapes = [
        [len(sizes[number]) for number in numbers if number >= 0]
        for numbers in found.type_classes.tolist()
    ]
    return Division(sizes, [random.integers(0, k, shape).astype(np.int32) for shape in shapes])


def goal_near(found: Symmetry, k: int, objective: Objective, slack: float) -> Goal:
    units = np.append(found.class_units, 1)[found.type_classes].prod(axis=1)
    return goal_of(np.full(k, int(found.type_weights @ units * slack) // k), objective)


def assert_no_step_makes_it_worse(
    found: Symmetry, goal: Goal, start: Division, seed: int, price: float
) -> None:
    """Of one seed, a chain of n steps begins as one of n + 1 does: it has met all states but one.

    Up to 1024 steps, for which the temperature stays.
    """
    chains = [(start, Schedule(seed, steps, 0.1, 1e-4, price, 8)) for steps in range(120)]
    ranks = [one.rank for one in anneal(found, goal, chains, threads=1)[0]]
    assert all(after <= before for before, after in pairwise(ranks))


@pytest.mark.parametrize("price", [0.1, 4.0])
@pytest.mark.parametrize("objective", [VOLUME, LARGEST], ids=str)
def test_a_step_that_saves_by_overloading_a_part_does_not_lose_the_best(
    objective: Objective, price: float
) -> None:
    """The best was kept only where a step raised the energy, and this one lowers it."""
    graph, work = chain([24, 24, 24], [24 * 7, 24 * 11, 24 * 13], [5, 3, 1])
    found = symmetry(graph, work, Modelling(input_vertex=False, output_vertex=False))
    for seed in range(5):
        start = random_division(found, 2, seed)
        goal = goal_near(found, 2, objective, 1.1)
        assert_no_step_makes_it_worse(found, goal, start, seed, price)


@settings(max_examples=30)
@given(
    channel_graphs(),
    modellings,
    st.integers(2, 4),
    st.sampled_from([VOLUME, LARGEST]),
    st.sampled_from([1.0, 1.2, 2.0]),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.1, 4.0]),
)
def test_a_chain_returns_the_best_that_it_has_met(
    graph_and_work: tuple[ChannelGraph, Work],
    modelling: Modelling,
    k: int,
    objective: Objective,
    slack: float,
    seed: int,
    price: float,
) -> None:
    found = symmetry(*graph_and_work, modelling)
    start = random_division(found, k, seed)
    assert_no_step_makes_it_worse(found, goal_near(found, k, objective, slack), start, seed, price)
