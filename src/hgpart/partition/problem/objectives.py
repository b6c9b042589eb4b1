"""Bytes from part to part, work -> what a partition is to have as little of as can be.

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

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError, not_one_of

MOST_COST = 1e9  # of a byte on a link, relative to others
OBJECTIVES = ("volume", "largest")  # by name; links and time have numbers
MOST_MICRO_BATCHES = 10**6
# Of "time", where nothing else is asked for: imbalance, and numbers of micro-batches.
WIDE = 1.0
MICRO_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True, eq=False)
class Objective:
    """What the parts' traffic costs, and with "time" their work.

    Attributes
    ----------
    name : {"volume", "largest", "links", "time"}
        All bytes that travel; those that one part sends and receives, of the part with most;
        all bytes, each times the cost of the link that it takes; or the seconds of a step, by an
        estimate.
    links : float64 array, shape (k, k), or None
        Cost of a byte from part s to part r at ``[s, r]``, of "links"; of "time" its seconds.
    seconds : float
        Of "time": all work of a step.
    micro_batches : int
        Of "time": m. With L the seconds that a part computes, and sends and receives, the part with
        most works on one micro-batch after the other, and the first of them goes through all
        layers, each as slow as the largest share of it: ((m - 1) max L + P) / m, where P adds up
        the largest shares of the layers and the links' seconds of the part with most of these. Of a
        cut between layers P is all work, and it is GPipe's (1 + (k - 1) / m) / k of that, if even;
        of replicas it is max L, however many micro-batches.
    """

    name: str
    links: NDArray[np.float64] | None = None
    seconds: float = 0.0
    micro_batches: int = 1

    def value(self, traffic: Int64, layer_work: Int64 | None = None) -> float:
        """Return what it is.

        Parameters
        ----------
        traffic : int64 array, shape (k, k)
            Bytes that part s sends to part r at ``[s, r]``.
        layer_work : int64 array, shape (layers, k)
            Work of each layer in each part, which only "time" asks for.
        """
        if self.name == "largest":
            return int((traffic.sum(axis=0) + traffic.sum(axis=1)).max())
        if self.links is None:
            return int(traffic.sum())
        cost = self.links * traffic
        if self.name == "links":
            return float(cost.sum())
        if layer_work is None:
            raise ArgumentError("no work of layers: objective 'time' is of work and traffic")
        sent = cost.sum(axis=0) + cost.sum(axis=1)
        each = layer_work * (self.seconds / max(1, int(layer_work.sum())))
        once = each.max(axis=1).sum() + sent.max()
        many = self.micro_batches
        return float(((many - 1) * (each.sum(axis=0) + sent).max() + once) / many)

    def least(self, volume: int, k: int) -> float:
        """Return what traffic of at least that volume costs at least; no time without work."""
        if self.name == "largest":
            return -(-2 * volume // k)
        if self.links is None:
            return volume
        between = self.links[~np.eye(k, dtype=bool)]
        cost = float(between.min()) * volume if k > 1 else 0.0
        return (self.seconds + 2 * cost) / k if self.name == "time" else cost


VOLUME = Objective("volume")
LARGEST = Objective("largest")


def objective_named(name: str) -> Objective:
    """Return the objective of a name.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    if name not in OBJECTIVES:
        raise not_one_of("objective", name, OBJECTIVES)
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


def step_time(
    links: Sequence[Sequence[float]] | NDArray[np.float64], seconds: float, micro_batches: int
) -> Objective:
    """Return the objective of the seconds of a step, with `Objective`'s numbers.

    Raises
    ------
    ArgumentError
        If the links' are not a square of numbers from 0 to 1e9, all of them are 0, or the others
        are out of range.
    """
    if not 0 <= seconds < math.inf:
        raise ArgumentError(f"a step of {seconds} s of work: accepted is 0 or more")
    if not 1 <= micro_batches <= MOST_MICRO_BATCHES:
        raise ArgumentError(
            f"{micro_batches} micro-batches: accepted are 1 to {MOST_MICRO_BATCHES}"
        )
    return Objective("time", over_links(links).links, float(seconds), int(micro_batches))
