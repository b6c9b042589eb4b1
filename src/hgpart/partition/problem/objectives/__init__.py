"""Objectives: the measures that a partition is to make small, one in each file.

Examples
--------
>>> import numpy as np
>>> traffic = np.array([[0, 10, 0], [0, 0, 5], [20, 0, 0]])
>>> VOLUME.value(traffic), LARGEST.value(traffic)
(35, 30)
>>> over_links([[0, 1, 9], [1, 0, 9], [9, 9, 0]]).value(traffic)
235.0

Three layers of 2 s in all, the middle one on two devices, where 10 bytes a second travel:

>>> work = np.array([[4, 0, 0], [0, 1, 3], [0, 0, 4]])
>>> once, many = (step_time(np.full((3, 3), 0.1), 2.0, number) for number in (1, 4))
>>> round(once.value(traffic, work), 3), round(many.value(traffic, work), 3)
(4.833, 3.958)
"""

from __future__ import annotations

from hgpart.errors import not_one_of
from hgpart.files.json_files import JsonObject
from hgpart.partition.problem.objectives.largest import LARGEST, Largest
from hgpart.partition.problem.objectives.link_costs import MOST_COST, LinkCosts, over_links
from hgpart.partition.problem.objectives.objective import Objective
from hgpart.partition.problem.objectives.seconds import (
    MICRO_BATCHES,
    MOST_MICRO_BATCHES,
    WIDE,
    Seconds,
    step_time,
)
from hgpart.partition.problem.objectives.volume import VOLUME, Volume

__all__ = [
    "LARGEST",
    "MICRO_BATCHES",
    "MOST_COST",
    "MOST_MICRO_BATCHES",
    "OBJECTIVES",
    "VOLUME",
    "WIDE",
    "LinkCosts",
    "Objective",
    "Seconds",
    "objective_named",
    "over_links",
    "read_objective",
    "step_time",
]

OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind for kind in (Volume, Largest, LinkCosts, Seconds)
}
WITHOUT_NUMBERS: dict[str, Objective] = {
    objective.name: objective for objective in (VOLUME, LARGEST)
}


def objective_named(name: str) -> Objective:
    """Return the objective of a name, if that is all there is to it.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    if name not in WITHOUT_NUMBERS:
        raise not_one_of("objective", name, WITHOUT_NUMBERS)
    return WITHOUT_NUMBERS[name]


def read_objective(head: JsonObject, k: int) -> Objective:
    """Read the objective of a plan file for k parts; the volume, where the file names none.

    Raises
    ------
    FormatError
        If a field is missing or not as it should be.
    """
    name = head.string("objective") if "objective" in head.fields else VOLUME.name
    if name not in OBJECTIVES:
        raise head.wrong("objective", str(not_one_of("objective", name, OBJECTIVES)))
    return OBJECTIVES[name].read(head, k)
