"""Problem -> its heaviest task, and the smallest eps that leaves room for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import InfeasibleError
from hgpart.hypergraph.channel_shares import channel_shares
from hgpart.hypergraph.metrics import imbalance
from hgpart.partition.problem.balance import capacities, pack, round_up
from hgpart.partition.problem.problem import Problem


@dataclass(frozen=True)
class HeaviestTask:
    """The heaviest vertex of the full hypergraph.

    Attributes
    ----------
    percent : float
        Share of all work, in percent.
    """

    name: str
    work: int
    percent: float

    def __str__(self) -> str:
        """The task, in a message."""
        return f"the heaviest task, {self.name}, is {self.percent:.3g} % of all work"


def heaviest_task(problem: Problem) -> HeaviestTask:
    """Find the heaviest vertex of the full hypergraph; the work of tied layers adds up."""
    names: dict[int, str] = {}
    weights: dict[int, Int64] = {}
    largest = max(problem.modelling.slice_work)
    for view in problem.views:
        if not view.exists:
            continue
        per_task = int(problem.work.per_task[view.at])
        if view.split is not None:
            cells = channel_shares(view.split, per_task)
            works = np.append(cells, per_task - cells.sum(axis=1))  # of cells, then reductions
            name = f"a filter channel of {view.layer.name}"
        else:
            works = np.array([per_task * view.tasks_per_row])
            name = f"{'all' if view.is_solid else 'a filter'} of {view.layer.name}"
        names.setdefault(view.first, name)
        tallest = int(np.diff(view.cell_cuts).max())
        works = -(-works * tallest // view.cell_cuts[-1])
        weights[view.first] = weights.get(view.first, 0) + largest * works
    at = max(weights, key=lambda index: int(weights[index].max()))
    work = int(weights[at].max())
    return HeaviestTask(names[at], work, 100 * work / max(1, problem.total))


def with_room(problem: Problem, heaviest: HeaviestTask, best_effort: bool) -> Problem:
    """The problem, if its heaviest task fits into a part; at best effort else with more room.

    Raises
    ------
    InfeasibleError
        If it does not fit; names the smallest eps known to do.
    """
    if heaviest.work <= problem.capacities.max():
        return problem
    smallest = _smallest_eps(problem, heaviest)
    if not best_effort:
        raise InfeasibleError(
            f"eps {problem.eps:g} can't be met with k={problem.k}: {heaviest}; the smallest eps "
            f"known to do is {round_up(_packed_imbalance(problem, smallest))}"
        )
    return replace(problem, least_eps=round_up(smallest))


def _smallest_eps(problem: Problem, heaviest: HeaviestTask) -> float:
    """The eps below which the heaviest task fits on no device."""
    exact = [Fraction(str(speed)) for speed in problem.rates]
    return float(heaviest.work * sum(exact) / (problem.total * max(exact)) - 1)


def _packed_imbalance(problem: Problem, smallest: float) -> float:
    """Imbalance of whole tasks, heaviest first, each put where there is most room."""
    first = np.cumsum([0, *(view.rows * view.bands for view in problem.views)])
    weights = np.zeros(int(first[-1]), dtype=np.int64)
    for view in problem.views:
        start, bands = int(first[view.first]), np.diff(view.cell_cuts)
        own = problem.work.per_task[view.at] * view.tasks_per_row * bands // view.cell_cuts[-1]
        weights[start : start + view.rows * view.bands] += np.repeat(own, view.rows)
    weights = np.outer(problem.modelling.slice_work, weights).ravel()
    parts = pack(weights, capacities(int(weights.sum()), problem.rates, smallest))
    loads = np.zeros(problem.k, dtype=np.int64)
    np.add.at(loads, parts, weights)
    return imbalance(loads, problem.rates)
