"""Capacities, memory limits and objective -> Goal: what the native solver searches for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME, Objective

NANOSECONDS = 1e9
FINEST_LINK = 2**20  # the largest link cost is at most that many steps
FINEST_SPEED = 2**8  # the least slowness, where devices differ, in steps


@dataclass(frozen=True, eq=False)
class LayersOfTypes:
    """The layer of each type of a Symmetry, shape (types,), and the work of all vertices."""

    layers: Int32
    total: int


@dataclass(frozen=True, eq=False)
class Goal:
    """Limits and objective of a search, as the native code reads them.

    Attributes
    ----------
    capacities : int64 array, shape (k,)
        Largest work of each part.
    memory : int64 array, shape (k,) or (0,)
        Largest bytes of each part; empty where they are not limited.
    links : int64 array, shape (k * k,) or (0,)
    type_layers : int32 array, shape (types,) or (0,)
        Layer of each type, numbered from 0 without gaps; this and all below count for the objective
        "time" only.
    slowness : int64 array, shape (k,)
        How long each part takes for a unit of work; 1 for all where they are equally fast.
    work_time, link_time : float
        Nanoseconds of a unit of that, and of one of the links' costs.
    """

    capacities: Int64
    memory: Int64
    objective: int
    links: Int64
    type_layers: Int32
    slowness: Int64
    work_time: float
    link_time: float
    micro_batches: int


def goal_of(
    capacities: Int64,
    objective: Objective = VOLUME,
    memory: MemoryLimits | None = None,
    most_bytes: int = 2**40,
    of_layers: LayersOfTypes | None = None,
) -> Goal:
    """Put together a goal; of the objective "time" with the layers that the work is of.

    Link costs become whole numbers, as fine as 64 bits allow for `most_bytes` that may travel.
    """
    links, link_time = np.zeros(0, dtype=np.int64), 0.0
    if objective.links is not None:
        steps = max(1, min(FINEST_LINK, 2**61 // max(1, most_bytes)))
        dearest = max(float(objective.links.max()), 1e-300)
        links = np.rint(objective.links / dearest * steps).astype(np.int64).ravel()
        link_time = NANOSECONDS * dearest / steps
    if not objective.in_seconds:
        of_layers, link_time = None, 0.0
    layers = np.zeros(0) if of_layers is None else of_layers.layers
    total = 1 if of_layers is None else max(1, of_layers.total)
    slowness, unit = _slowness(objective.speeds or [1.0] * len(capacities), total)
    return Goal(
        capacities=capacities,
        memory=np.array([] if memory is None else memory.each.bytes, dtype=np.int64),
        objective=objective.number,
        links=links,
        type_layers=np.unique(layers, return_inverse=True)[1].astype(np.int32).ravel(),
        slowness=slowness,
        work_time=NANOSECONDS * objective.seconds / total * unit,
        link_time=link_time,
        micro_batches=objective.micro_batches,
    )


def _slowness(speeds: Sequence[float], total: int) -> tuple[Int64, float]:
    """How long parts take for a unit of work in whole numbers, and what 1 of these is.

    >>> slowness, unit = _slowness([1.0, 2.0, 0.5], 1000)
    >>> slowness.tolist(), (slowness * unit).tolist()
    ([512, 256, 1024], [1.0, 0.5, 2.0])
    """
    most, ratio = max(speeds), max(speeds) / min(speeds)
    steps = max(1, min(FINEST_SPEED, int(2**62 / (ratio * total)))) if ratio > 1 else 1
    slowness = np.rint([steps * most / speed for speed in speeds]).astype(np.int64)
    return slowness, 1 / (steps * most)
