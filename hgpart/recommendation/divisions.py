"""Devices, batch -> Divisions: the ways to divide the work, those that promise most first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hgpart.bench.plans import Subject, partition_of
from hgpart.bench.ways.way import numbers_of_replicas, way_of
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.partition import Partition
from hgpart.partition.partition import evaluated

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
    """

    name: str
    k: int
    way: str = ""
    eps: float = EPS

    @property
    def text(self) -> str:
        """With its devices."""
        return f"{self.name} on {self.k} devices" if self.k > 1 else self.name

    def partition(self, subject: Subject) -> Partition:
        """Divide a model that way.

        Raises
        ------
        HgpartError
            If it can't be; says why.
        """
        of_division = replace(subject, k=self.k, eps=self.eps)
        if self.k > 1:
            way = way_of(self.way)
            of_division.check(way)
            return partition_of(way, of_division)
        problem = of_division.problem()
        model = problem.hypergraph(layer_blocks(problem.views))
        parts = np.zeros(model.vertices, dtype=np.int32)
        return evaluated(problem, model, parts, seed=subject.seed, backend="single", start="single")


def divisions(devices: int) -> tuple[Division, ...]:
    """All ways for so many devices, and half, a quarter, ... of them.

    Those that search for a partition come behind those that compute one; a cut that is searched for
    by another objective than the volume has its place among them.

    >>> [one.text for one in divisions(2)][:3]
    ['one device', 'data parallel on 2 devices', 'one weird trick on 2 devices']
    """
    found = [Division(ONE_DEVICE, 1)]
    k = devices
    while k > 1:
        found += _of(k)
        k //= 2
    return tuple(found)


def _of(k: int) -> Iterator[Division]:
    yield Division("data parallel", k, f"hybrid-{k}")
    yield Division("one weird trick", k, "weird-trick")
    yield Division("cut between layers", k, "layerwise")
    yield Division(f"slices and filters (eps {EPS:g})", k, "sliced")
    for replicas in numbers_of_replicas(k):
        if replicas < k and replicas & (replicas - 1) == 0:
            yield Division(f"{replicas} replicas of {k // replicas}", k, f"hybrid-{replicas}")
    yield Division(f"filters (eps {EPS:g})", k, "coarse")
    yield Division("slices and filters (eps 0.03)", k, "sliced", 0.03)
    yield Division("every layer in equal shares", k, "halves")
    yield Division("filters (eps 0.3)", k, "coarse", 0.3)
    yield Division("filters (eps 0.03)", k, "coarse", 0.03)
