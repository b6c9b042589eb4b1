"""Devices, or a Problem -> Trials: the ways to divide the work that are worth a simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hgpart.errors import ArgumentError
from hgpart.machines.machine import Machine
from hgpart.partition.baselines.known_ways import SHARES_OF_EPS, numbers_of_replicas
from hgpart.partition.baselines.spatial import heights_of
from hgpart.partition.partition import Partition
from hgpart.partition.problem.objectives import VOLUME, WIDE, Objective
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.topology import time_objective
from hgpart.partition.ways.built_in import FILTERS, HYBRID, SPATIAL
from hgpart.partition.ways.catalogue import way_named
from hgpart.partition.ways.of_users import ways_of_users
from hgpart.partition.ways.way import Way
from hgpart.recommendation.replicas import MANY
from hgpart.work.figures import whole_work

EPS = 0.1  # imbalance that ways which search are allowed, where nothing else is said
NARROW = (0.03, EPS)  # least volume within these, too, where more is allowed
LOW = 4  # heights of maps below which rows are not divided, from the second lowest on


@dataclass(frozen=True)
class Trial:
    """A way to divide the work of a step among devices, with what it is allowed.

    Attributes
    ----------
    k : int
        Number of devices.
    eps : float
        Imbalance that a search is allowed.
    micro_batches : int or None
        For the least time of a step: the micro-batches that it is estimated for.
    replicas : int
        Number of replicas of the model, where one of them is simulated for all.
    """

    way: Way
    k: int
    eps: float = EPS
    micro_batches: int | None = None
    replicas: int = 1

    @property
    def name(self) -> str:
        """The way, and what it is allowed if that is not the usual."""
        if self.micro_batches is not None:
            divided = f" (m={self.micro_batches})" * (self.micro_batches > 1)
            return f"{self.way.name}{divided}"
        allowed = self.way.searches and self.eps != EPS
        return f"{self.way.name} (eps {self.eps:.3g})" if allowed else self.way.name

    @property
    def text(self) -> str:
        """The name with its devices."""
        return f"{self.name} on {self.k} devices" if self.k > 1 else self.name

    def partition(self, problem: Problem, search: Search, machine: Machine) -> Partition:
        """Divide a problem that way, for the k fastest devices of a machine.

        Raises
        ------
        HgpartError
            If it can't be; says why.
        """
        speeds = machine.of_fastest(self.k).speeds
        problem = problem.free if self.k == 1 else problem  # others are compared with it
        if self.replicas > 1 and speeds is not None:
            raise ArgumentError(
                f"{self.k} devices that differ in speed: accepted are {MANY} at most, as replicas "
                "are simulated by one of them"
            )
        objective: Objective = VOLUME
        if self.micro_batches is not None:
            whole = whole_work(problem.work, problem.graph)
            trains = problem.modelling.training
            objective = time_objective(machine, self.k, whole, self.micro_batches, trains)
        memory = problem.memory if self.k == problem.k else None
        if self.replicas > 1 and problem.constraints:
            raise ArgumentError(
                f"{self.k} devices with constraints: accepted are {MANY} at most, as replicas are "
                "simulated by one of them"
            )
        if problem.constraints and machine.fastest(self.k) != tuple(range(self.k)):
            raise ArgumentError(
                f"{self.k} devices of {machine.k} with constraints: accepted are those that "
                "constraints number, and the fastest are others"
            )
        own = replace(
            problem,
            k=self.k,
            eps=self.eps,
            speeds=speeds,
            objective=objective,
            memory=memory,
        )
        return self.way.partition(own, search)


def trials(
    devices: int, heights: Sequence[int] = (), *, has_heads: bool = False
) -> tuple[Trial, ...]:
    """All ways for so many devices, and half, a quarter, ... of them; likeliest and fastest first.

    For more than `MANY` devices only ways that are replicas of a few, each on more than `MANY`.

    Parameters
    ----------
    heights : sequence of int
        Numbers of rows that the model's maps have, ascending; none if there is nothing to divide.
    has_heads : bool
        Whether the model has attention in several heads.

    >>> [trial.text for trial in trials(2)][:3]
    ['single', 'data-parallel on 2 devices', 'one-weird-trick on 2 devices']
    """
    listed = [Trial(way_named("single"), 1)]
    k = devices
    while k > (1 if devices <= MANY else MANY):
        listed += _of(k, heights, has_heads) if k <= MANY else _of_many(k)
        k //= 2
    return tuple(listed)


def _of_many(k: int) -> Iterator[Trial]:
    for devices in (1, 2, 4, 8):
        if k % devices == 0 and devices < k:
            name = "data-parallel" if devices == 1 else f"{HYBRID}{k // devices}"
            yield Trial(way_named(name), k, replicas=k // devices)


def _in_bands(heights: Sequence[int]) -> Iterator[str]:
    """Ways that divide rows in a moment: all of them, or those of tall maps alone."""
    if heights:
        yield "spatial"
        for rows in heights[1 : 1 + LOW]:
            yield from (f"{SPATIAL}{rows}", f"{FILTERS}{rows}")
        yield "spatial-data"


def _of(k: int, heights: Sequence[int], has_heads: bool) -> Iterator[Trial]:
    yield Trial(way_named("data-parallel"), k)
    for name in _in_bands(heights):
        yield Trial(way_named(name), k)
    yield Trial(way_named("one-weird-trick"), k)
    yield Trial(way_named("layerwise"), k)
    yield Trial(way_named("least-time"), k, WIDE, 1)
    yield Trial(way_named("sliced"), k)
    yield Trial(way_named("least-time"), k, WIDE, 4)
    yield Trial(way_named("least-time-sliced"), k, WIDE, 1)
    for replicas in range(2, k):
        if k % replicas == 0 and replicas & (replicas - 1) == 0:
            yield Trial(way_named(f"{HYBRID}{replicas}"), k)
    yield Trial(way_named("coarse"), k)
    if heights:
        yield Trial(way_named("tiled"), k)
    yield Trial(way_named("horizontal"), k)
    if has_heads:
        yield Trial(way_named("tensor-parallel"), k)
    yield Trial(way_named("coarse"), k, 0.3)
    yield Trial(way_named("coarse"), k, 0.03)
    for way in ways_of_users().values():
        yield Trial(way, k)


def trials_within(problem: Problem, micro_batches: Sequence[int]) -> Iterator[Trial]:
    """Ways for the k devices of a problem and within its eps, those that take a moment first.

    No estimate orders ways as a simulation does: the cut of least volume, the layers that balance
    best, replicas, and what the objective "time" finds for several numbers of micro-batches are
    each best somewhere.
    """
    k, eps = problem.k, problem.eps
    names = ["layerwise", "horizontal", "layerwise-volume", "incremental"]
    if problem.graph.has_heads:
        names.append("tensor-parallel")
    slices = min(k, problem.modelling.batch_size) if problem.divides_batch else 1
    if 1 < slices == k:
        hybrids = [f"{HYBRID}{count}" for count in numbers_of_replicas(problem.in_slices(k))]
        names += ["data-parallel", *hybrids, "one-weird-trick", "opposed-replicas"]
    heights = heights_of(problem.graph)
    for name in (*names, *_in_bands(heights)):
        yield Trial(way_named(name), k, eps)
    if slices > 1:
        for share in SHARES_OF_EPS:
            yield Trial(way_named("replicated-stages"), k, share * eps)
    for way in ways_of_users().values():
        yield Trial(way, k, eps)
    for narrow in (*(narrow for narrow in NARROW if narrow < eps), eps):
        yield Trial(way_named("coarse"), k, narrow)
    for count in micro_batches:
        yield Trial(way_named("least-time"), k, eps, count)
    if slices > 1:
        yield Trial(way_named("sliced"), k, eps)
        yield Trial(way_named("least-time-sliced"), k, eps, micro_batches[0])
    if heights:  # it takes longest
        yield Trial(way_named("tiled"), k, min(eps, EPS))
