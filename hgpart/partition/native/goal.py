"""Capacities, memory limits and objective -> Goal: what the native solver searches for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int64
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME, Objective

NUMBERS = {"volume": 0, "largest": 1, "links": 2}  # as in native/goal.hpp
FINEST_LINK = 2**20  # the largest link cost is at most that many steps


@dataclass(frozen=True, eq=False)
class Goal:
    """What a division is searched for, as the native code reads it.

    Attributes
    ----------
    capacities : int64 array, shape (k,)
        Largest work of each part.
    memory : int64 array, shape (k,) or (0,)
        Largest bytes of each part; empty where they are not limited.
    objective : int
    links : int64 array, shape (k * k,) or (0,)
    """

    capacities: Int64
    memory: Int64
    objective: int
    links: Int64


def goal_of(
    capacities: Int64,
    objective: Objective = VOLUME,
    memory: MemoryLimits | None = None,
    most_bytes: int = 2**40,
) -> Goal:
    """Put together a goal.

    Link costs become whole numbers, as fine as 64 bits allow for `most_bytes` that may travel.
    """
    links = np.zeros(0, dtype=np.int64)
    if objective.links is not None:
        steps = min(FINEST_LINK, 2**61 // max(1, most_bytes))
        links = np.rint(objective.links / max(objective.links.max(), 1e-300) * max(1, steps))
        links = links.astype(np.int64).ravel()
    return Goal(
        capacities=capacities,
        memory=np.array([] if memory is None else memory.each.bytes, dtype=np.int64),
        objective=NUMBERS[objective.name],
        links=links,
    )
