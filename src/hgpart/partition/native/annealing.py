"""Symmetry + goal + starts -> the best Division that annealing finds (native)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hgpart import _native
from hgpart.arrays import Int64
from hgpart.cores import usable_cores
from hgpart.partition.native.goal import Goal
from hgpart.partition.symmetry.divisions import Division
from hgpart.partition.symmetry.symmetry import Symmetry


@dataclass(frozen=True)
class Cooling:
    """Annealing schedule of a division.

    Attributes
    ----------
    hottest, coldest : float
        Temperatures at first and last, relative to the cost of the start.
    price : float
        First price of work above the capacities, in costs of the start per total work.
    most_rows : int
        Rows that a class may be divided into, or a few more than at the start.
    """

    seed: int
    steps: int
    hottest: float
    coldest: float
    price: float
    most_rows: int


@dataclass(frozen=True)
class Found:
    """A division that annealing found.

    Attributes
    ----------
    cost : int
        Its cost by the goal's objective.
    excess : float
        Work and memory above the parts' limits, as shares of all limits.
    """

    division: Division
    cost: int
    excess: float

    @property
    def rank(self) -> tuple[float, int]:
        """Sort key: less is better."""
        return self.excess, self.cost


@dataclass(frozen=True)
class _Chain:
    """A start and its schedule, as the native code reads them."""

    sizes: list[Int64]
    parts: list[np.ndarray]
    seed: int
    steps: int
    hottest: float
    coldest: float
    price: float
    most_rows: int


def anneal(
    symmetry: Symmetry,
    goal: Goal,
    chains: Sequence[tuple[Division, Cooling]],
    seconds: float = math.inf,
    threads: int | None = None,
    on_progress: Callable[[float], object] | None = None,
) -> tuple[list[Found], bool]:
    """Anneal each division by its schedule, on all usable cores; at least as good as it was.

    Several times a second `on_progress` gets the share of the steps that is done; what it raises
    ends the annealing.

    Returns
    -------
    list of Found
        The best division that each chain met before it ended or time was up.
    bool
        Whether Ctrl-C ended it.
    """
    packed = [
        _Chain(
            division.sizes,
            [np.ascontiguousarray(own, dtype=np.int32).ravel() for own in division.parts],
            **vars(schedule),
        )
        for division, schedule in chains
    ]
    results, interrupted = _native.anneal(
        symmetry, goal, packed, threads or usable_cores(), seconds, on_progress
    )
    divisions = [
        Found(_shaped(symmetry, sizes, parts), cost, excess)
        for sizes, parts, cost, excess in results
        if sizes
    ]
    return divisions, interrupted


def _shaped(symmetry: Symmetry, sizes: list[Int64], parts: list[np.ndarray]) -> Division:
    classes = symmetry.type_classes.tolist()
    return Division(
        sizes,
        [
            own if second < 0 else own.reshape(len(sizes[first]), len(sizes[second]))
            for own, (first, second) in zip(parts, classes, strict=True)
        ],
    )
