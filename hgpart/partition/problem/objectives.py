"""Bytes from part to part -> what a partition is to have as little of as can be.

Examples
--------
>>> import numpy as np
>>> traffic = np.array([[0, 10, 0], [0, 0, 5], [20, 0, 0]])
>>> VOLUME.value(traffic), LARGEST.value(traffic)
(35, 30)
>>> over_links([[0, 1, 9], [1, 0, 9], [9, 9, 0]]).value(traffic)
235.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError

MOST_COST = 1e9  # of a byte on a link, relative to others
OBJECTIVES = ("volume", "largest")  # by name; links have costs


@dataclass(frozen=True, eq=False)
class Objective:
    """What the parts' traffic costs.

    Attributes
    ----------
    name : {"volume", "largest", "links"}
        All bytes that travel; those that one part sends and receives, of the part with most; or
        all bytes, each times the cost of the link that it takes.
    links : float64 array, shape (k, k), or None
        Cost of a byte from part s to part r at ``[s, r]``, of "links".
    """

    name: str
    links: NDArray[np.float64] | None = None

    def value(self, traffic: Int64) -> float:
        """Return what the bytes that part s sends to part r, shape (k, k), cost."""
        if self.name == "largest":
            return int((traffic.sum(axis=0) + traffic.sum(axis=1)).max())
        if self.links is None:
            return int(traffic.sum())
        return float((self.links * traffic).sum())

    def least(self, volume: int, k: int) -> float:
        """Return what traffic of at least that volume costs at least."""
        if self.name == "largest":
            return -(-2 * volume // k)
        if self.links is None:
            return volume
        between = self.links[~np.eye(k, dtype=bool)]
        return float(between.min()) * volume if k > 1 else 0.0


VOLUME, LARGEST = Objective("volume"), Objective("largest")


def objective_named(name: str) -> Objective:
    """Return the objective of a name.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    if name not in OBJECTIVES:
        raise ArgumentError(f"objective {name!r}: accepted are {', '.join(OBJECTIVES)}")
    return Objective(name)


def over_links(costs: Sequence[Sequence[float]] | NDArray[np.float64]) -> Objective:
    """Return the objective of k x k link costs; the diagonal does not count.

    Raises
    ------
    ArgumentError
        If they are not a square of numbers from 0 to 1e9, or all of them are 0.
    """
    try:
        links = np.array(costs, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        links = np.zeros(0)
    if links.ndim != 2 or links.shape[0] != links.shape[1]:
        raise ArgumentError("link costs are not a square of numbers, expected k rows of k numbers")
    if not ((links >= 0) & (links <= MOST_COST)).all():
        raise ArgumentError(f"a link cost is not a number from 0 to {MOST_COST:g}")
    np.fill_diagonal(links, 0.0)
    if len(links) > 1 and links.max() == 0:
        raise ArgumentError("all link costs are 0, expected one above 0")
    return Objective("links", links)
