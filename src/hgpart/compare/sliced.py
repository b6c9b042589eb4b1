"""Strategies that divide the batch too: partitions of a model's tasks over slices of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from hgpart.arrays import Int32
from hgpart.compare.outcomes import Strategy, Task
from hgpart.compare.step_traffic import step_flows, together
from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.metrics import imbalance
from hgpart.partition.baselines.by_slices import data_parallel, hybrid, opposed_replicas, replica
from hgpart.partition.baselines.known_ways import Way, numbers_of_replicas, stages_of_rooms
from hgpart.partition.baselines.one_weird_trick import one_weird_trick
from hgpart.partition.number_of_slices import numbers_of_slices
from hgpart.partition.partition import uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve, solve_in_slices

EFFORT_OF_REPLICAS = 0.1  # of native, for each number of replicas


def _native(task: Task) -> Way:
    problem, search = task.problem("coarse"), Search(task.seed)
    if task.slices is None:
        found = uninterrupted(solve_in_slices(problem, search))
    else:
        found = uninterrupted(solve(problem.in_slices(task.slices), search))
    return found.model, found.parts


def _divided(task: Task, slices: int, linear: str | None = None) -> Problem:
    """What is to be partitioned, of at least a sample a slice: smaller batches have no meaning."""
    modelling = replace(
        task.modelling,
        grain="coarse",
        linear=linear or task.modelling.linear,
        batch_size=max(slices, task.modelling.batch_size),
        slices=slices,
    )
    return Problem(task.graph, task.work, modelling, task.k, task.eps)


def _data_parallel(task: Task) -> Way:
    return data_parallel(_divided(task, task.k))


def _one_weird_trick(task: Task) -> Way:
    return one_weird_trick(_divided(task, task.k, linear="neuron"))


def _opposed_replicas(task: Task) -> Way:
    return opposed_replicas(_divided(task, 2))


def _hybrid(task: Task) -> Way:
    """The best number of replicas, each divided among its devices by the native solver."""
    problem = _divided(task, min(task.k, task.modelling.batch_size))
    numbers = numbers_of_replicas(problem)
    if not numbers:
        raise ArgumentError(
            f"{task.k} devices and {task.modelling.batch_size} samples: equal replicas of several "
            "devices need 4 devices or more, no prime number, and a sample for each replica"
        )
    return _best(task, _hybrids(task, numbers))


def _hybrids(task: Task, numbers: Iterable[int]) -> Iterator[Way]:
    for replicas in numbers:
        problem = task.problem("coarse").in_slices(replicas)
        search = Search(task.seed, EFFORT_OF_REPLICAS)
        found = uninterrupted(solve(replica(problem, replicas), search, best_effort=True))
        yield hybrid(problem, replicas, found.model, found.parts)


def _replicated_stages(task: Task) -> Way:
    problem = task.problem("coarse")
    numbers = numbers_of_slices(task.modelling.batch_size, task.k)
    ways = (
        way
        for slices in (numbers if task.slices is None else (task.slices,))
        for way in stages_of_rooms(problem.in_slices(slices))
    )
    return _best(task, ways)


def _best(task: Task, ways: Iterable[Way]) -> Way:
    """The way within eps that sends least in a step; of equal ones the first."""
    balanced = [way for way in ways if _imbalance(task.k, *way) <= task.eps]
    if not balanced:
        raise InfeasibleError(f"none is within eps {task.eps:g}")
    volumes = [together(step_flows(*way, task.k).values()).volume for way in balanced]
    return balanced[volumes.index(min(volumes))]


def _imbalance(k: int, model: CnnHypergraph, parts: Int32) -> float:
    loads = np.zeros(k, dtype=np.int64)
    np.add.at(loads, parts, model.weights)
    return imbalance(loads)


SLICED = (
    Strategy(
        "sliced-native",
        "coarse-grain hypergraph over slices of the batch, by native",
        True,
        _native,
    ),
    Strategy(
        "hybrid",
        "replicas of several devices each, the best number of them (DistBelief, HyPar-Flow)",
        True,
        _hybrid,
    ),
    Strategy(
        "replicated-stages",
        "cuts between layers, each stage on one device or divided by samples (PipeDream)",
        True,
        _replicated_stages,
    ),
    Strategy(
        "opposed-replicas",
        "two copies cut between layers, in opposite order on the same devices (GEMS)",
        False,
        _opposed_replicas,
    ),
    Strategy(
        "data-parallel",
        "the model on every device, gradients all-reduced in a ring",
        False,
        _data_parallel,
        ring=True,
    ),
    Strategy(
        "parameter-server",
        "the model on every device, gradients to one of them and back (thesis 5.1.8)",
        False,
        _data_parallel,
    ),
    Strategy(
        "one-weird-trick",
        "data-parallel but for the linear layers at the end (Krizhevsky 2014)",
        False,
        _one_weird_trick,
        ring=True,
    ),
)
