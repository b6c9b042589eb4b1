"""Devices, batch -> Divisions: the ways to divide the work, those that promise most first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hgpart.bench.plans import Subject, partition_of
from hgpart.bench.ways.way import numbers_of_replicas, way_of
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.machines.machine import Machine
from hgpart.partition import Partition
from hgpart.partition.partition import evaluated, uninterrupted
from hgpart.partition.problem.objectives import WIDE
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.topology import time_objective
from hgpart.partition.stages import solve
from hgpart.recommendation.replicas import MANY
from hgpart.work.figures import whole_work

ONE_DEVICE = "one device"
EPS = 0.1  # of what has no other


@dataclass(frozen=True)
class Division:
    """A way to divide the work of a step among devices.

    Attributes
    ----------
    name : str
        For people.
    k : int
        Devices.
    way : str
        Of `hgpart.bench`, which makes the partition; none on one device.
    eps : float
        Imbalance that a search is allowed.
    micro_batches : int or None
        Of a search for the least time of a step, not for the least volume: in how many.
    replicas : int
        Of the model, where one of them is simulated for all.
    """

    name: str
    k: int
    way: str = ""
    eps: float = EPS
    micro_batches: int | None = None
    replicas: int = 1

    @property
    def text(self) -> str:
        """With its devices."""
        return f"{self.name} on {self.k} devices" if self.k > 1 else self.name

    def partition(self, subject: Subject, machine: Machine) -> Partition:
        """Divide a model that way, for the first devices of a machine.

        Raises
        ------
        HgpartError
            If it can't be; says why.
        """
        of_division = replace(subject, k=self.k, eps=self.eps)
        if self.k > 1:
            way = way_of(self.way)
            of_division.check(way)
            if self.micro_batches is None:
                return partition_of(way, of_division)
            search = Search(subject.seed, subject.effort)
            return uninterrupted(solve(self._of_least_time(of_division, machine), search))
        problem = of_division.problem()
        model = problem.hypergraph(layer_blocks(problem.views))
        parts = np.zeros(model.vertices, dtype=np.int32)
        return evaluated(problem, model, parts, seed=subject.seed, backend="single", start="single")

    def _of_least_time(self, subject: Subject, machine: Machine) -> Problem:
        slices = min(self.k, subject.batch_size) if self.way == "sliced" else 1
        problem, whole = subject.problem(slices=slices), whole_work(subject.work, subject.graph)
        assert self.micro_batches is not None
        objective = time_objective(machine, self.k, whole, self.micro_batches)
        return replace(problem, objective=objective)


def divisions(devices: int) -> tuple[Division, ...]:
    """All ways for so many devices, and half, a quarter, ... of them.

    Of more than `MANY` those alone that are replicas of a few devices.

    Those that search for a partition come behind those that compute one.

    >>> [one.text for one in divisions(2)][:3]
    ['one device', 'data parallel on 2 devices', 'one weird trick on 2 devices']
    """
    found = [Division(ONE_DEVICE, 1)]
    k = devices
    while k > 1:
        found += _of(k) if k <= MANY else _of_many(k)
        k //= 2
    return tuple(found)


def _of_many(k: int) -> Iterator[Division]:
    for each in (1, 2, 4, 8):
        if k % each == 0:
            name = "data parallel" if each == 1 else f"{k // each} replicas of {each}"
            yield Division(name, k, f"hybrid-{k // each}", replicas=k // each)


def _of(k: int) -> Iterator[Division]:
    yield Division("data parallel", k, f"hybrid-{k}")
    yield Division("one weird trick", k, "weird-trick")
    yield Division("cut between layers", k, "layerwise")
    yield Division("filters for least time", k, "coarse", WIDE, 1)
    yield Division(f"slices and filters (eps {EPS:g})", k, "sliced")
    yield Division("filters for least time in 4", k, "coarse", WIDE, 4)
    yield Division("slices and filters for least time", k, "sliced", WIDE, 1)
    for replicas in numbers_of_replicas(k):
        if replicas < k and replicas & (replicas - 1) == 0:
            yield Division(f"{replicas} replicas of {k // replicas}", k, f"hybrid-{replicas}")
    yield Division(f"filters (eps {EPS:g})", k, "coarse")
    yield Division("slices and filters (eps 0.03)", k, "sliced", 0.03)
    yield Division("every layer in equal shares", k, "halves")
    yield Division("filters (eps 0.3)", k, "coarse", 0.3)
    yield Division("filters (eps 0.03)", k, "coarse", 0.03)
