"""Problem -> of divisions with several numbers of replicas or slices, the one that sends least."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hgpart.arrays import Int32
from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.metrics import imbalance
from hgpart.partition.baselines.by_slices import data_parallel, hybrid, replica, slices_for
from hgpart.partition.baselines.known_ways import Parts, numbers_of_replicas, stages_of_rooms
from hgpart.partition.number_of_slices import numbers_for
from hgpart.partition.partition import uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve
from hgpart.partition.step_traffic import step_flows, together
from hgpart.partition.ways.way import Divide

EFFORT_OF_REPLICAS = 0.1  # of a search, for each number of replicas that is tried


def hybrid_of(replicas: int) -> Divide:
    """A number of replicas on equally many devices, each divided by native."""

    def divide(problem: Problem, search: Search) -> Parts:
        if replicas == problem.k:
            return data_parallel(problem)
        own = uninterrupted(solve(replica(problem, replicas), search, best_effort=True))
        return hybrid(problem, replicas, own.model, own.parts)

    return divide


def best_hybrid(problem: Problem, search: Search) -> Parts:
    """Replicas of several devices each, the number of them that sends least.

    Raises
    ------
    ArgumentError
        If devices or samples are too few for any number.
    InfeasibleError
        If none is within eps.
    """
    batch_size = problem.modelling.batch_size
    numbers = numbers_of_replicas(problem.in_slices(min(problem.k, batch_size)))
    if not numbers:
        raise ArgumentError(
            f"{problem.k} devices and {batch_size} samples: equal replicas of several "
            "devices need 4 devices or more, no prime number, and a sample for each replica"
        )

    def divided(at: int, count: int) -> Parts:
        short = search.part(1 / (len(numbers) - at), EFFORT_OF_REPLICAS)
        sliced = problem.in_slices(slices_for(problem, count))
        own: Parts = hybrid_of(count)(sliced, short)
        return own

    return _least_step(problem, (divided(at, count) for at, count in enumerate(numbers)))


def best_stages(problem: Problem, search: Search) -> Parts:
    """Replicated stages, in the number of slices that sends least; see `stages_in_slices`."""
    divided = (
        stages
        for slices in numbers_for(problem)
        for stages in stages_of_rooms(problem.in_slices(slices))
    )
    return _least_step(problem, divided)


def stages_in_slices(problem: Problem, search: Search) -> Parts:
    """Cuts between layers, each stage on one device or divided by the problem's slices.

    Raises
    ------
    InfeasibleError
        If none is within eps.
    """
    return _least_step(problem, stages_of_rooms(problem))


def _least_step(problem: Problem, candidates: Iterable[Parts]) -> Parts:
    """The candidate within eps that sends least in a step; the first of equal ones."""
    balanced = [parts for parts in candidates if _imbalance(problem, *parts) <= problem.eps]
    if not balanced:
        raise InfeasibleError(f"none is within eps {problem.eps:g}")
    volumes = [together(step_flows(*parts, problem.k).values()).volume for parts in balanced]
    return balanced[volumes.index(min(volumes))]


def _imbalance(problem: Problem, model: CnnHypergraph, parts: Int32) -> float:
    loads = np.zeros(problem.k, dtype=np.int64)
    np.add.at(loads, parts, model.weights)
    return imbalance(loads, problem.speeds)
