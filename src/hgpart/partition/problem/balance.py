"""Speeds + eps -> capacity of each part; int64 weights and costs -> the int32 of partitioners."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError
from hgpart.hypergraph.hypergraph import Hypergraph

Number = int | float | Decimal | Fraction

LARGEST_INT64 = 2**63 - 1

# KaHyPar and Mt-KaHyPar add up weights and costs in int32, and neither looks at the sign.
LARGEST_SUM = 2**30

# Parts of a partition of a file, of which nothing else is known.
MOST_FITTED = 64

# KaHyPar's flow refinement computes (1 + 16 eps) average <= 16 capacity in int32.
LARGEST_CAPACITY = 2**27


def capacities(total: int, speeds: Sequence[Number], eps: Number) -> Int64:
    """Return the largest weight that each part may have.

    ``floor((1 + eps) * total * speeds[p] / sum(speeds))``, computed in rational numbers from the
    decimal digits of eps and of the speeds: 0.1 is one tenth, not the float next to it.

    Parameters
    ----------
    total : int
        Weight of all vertices, >= 0.
    speeds : sequence of k numbers
        Relative speed of each part's device, > 0; k ones for k equal devices.
    eps : number
        Imbalance allowed, >= 0.

    Returns
    -------
    int64 array, shape (k,)
        In the unit of `total`; what exceeds 64 bits is cut off there.

    Raises
    ------
    ArgumentError
        If there is no speed, one of them is not a positive number, or eps is negative or not
        a number.

    Examples
    --------
    >>> capacities(30, [1, 1, 1], 0.1).tolist()
    [11, 11, 11]
    >>> capacities(40, [1, 1, 2], 0).tolist()
    [10, 10, 20]
    """
    allowed = 1 + _exact("eps", eps)
    if allowed < 1:
        raise ArgumentError(f"eps is {eps}, expected 0 or more")
    exact = [_exact("speed", speed) for speed in speeds]
    if not exact:
        raise ArgumentError("got no speeds, expected one for each of at least one part")
    for speed in exact:
        if speed <= 0:
            raise ArgumentError(f"speed is {speed}, expected a positive number")
    share = allowed * total / sum(exact)
    floors = [min(int(share * speed), LARGEST_INT64) for speed in exact]
    return np.array(floors, dtype=np.int64)


def within(loads: Int64, speeds: Sequence[Number], eps: Number) -> bool:
    """Return whether every part's load is at most (1 + eps) times its share, exactly.

    Examples
    --------
    >>> within(np.array([11, 10, 9]), [1, 1, 1], 0.1), within(np.array([12, 9, 9]), [1, 1, 1], 0.1)
    (True, False)
    """
    return bool((loads <= capacities(int(loads.sum()), speeds, eps)).all())


def round_up(eps: float) -> float:
    """Three digits, not below the number itself.

    >>> round_up(0.15241), round_up(0.0)
    (0.153, 0.0)
    """
    if eps <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(eps)) - 2)
    return float(f"{math.ceil(eps / step) * step:.3g}")


def _exact(name: str, number: Number) -> Fraction:
    try:
        return Fraction(str(number))
    except ValueError:
        raise ArgumentError(f"{name} is {number}, expected a finite number") from None


def pack(weights: Int64, capacities: Int64) -> Int32:
    """Balance vertices that no net joins: heaviest first, each to the part with most room.

    Parameters
    ----------
    weights : int64 array, shape (vertices,)
    capacities : int64 array, shape (k,)

    Returns
    -------
    int32 array, shape (vertices,)
        Part of each vertex. The capacities may be exceeded where they are tight.

    Examples
    --------
    >>> pack(np.array([1, 5, 3]), np.array([5, 5])).tolist()
    [1, 0, 1]
    """
    parts = np.empty(len(weights), dtype=np.int32)
    rooms = [(-room, part) for part, room in enumerate(capacities.tolist())]
    heapq.heapify(rooms)
    for vertex in np.argsort(-weights, kind="stable").tolist():
        negative_room, part = rooms[0]
        parts[vertex] = part
        heapq.heapreplace(rooms, (negative_room + int(weights[vertex]), part))
    return parts


def scale_weights(weights: Int64, capacities: Int64) -> tuple[Int32, Int32]:
    """Return weights >= 1 and capacities in int32 whose sums do not wrap.

    A partition within the scaled capacities is within the true ones: weights are rounded up,
    capacities down. What that loses is at most one unit for each vertex of a part, of about
    2^30 units for all parts together; nothing is lost where the weights, divided by what
    divides them all, fit as they are.

    Parameters
    ----------
    weights : int64 array, shape (vertices,)
        All >= 0 and one > 0; their sum must fit in int64.
    capacities : int64 array, shape (k,)

    Notes
    -----
    KaHyPar ends the process at a weight of 0, so these vertices get the smallest unit. Where
    there is room, all others are multiplied by a factor F first, and a capacity c becomes
    ``(c + 1) F - 1``: as before, w F fits exactly when w does, and F - 1 weightless vertices
    fit beside it.

    Examples
    --------
    >>> weights, capacities = scale_weights(np.array([6, 9]), np.array([9, 10]))
    >>> weights.tolist(), capacities.tolist()
    ([2, 3], [3, 3])
    """
    unit = np.gcd.reduce(weights)
    weights = weights // unit
    total = int(weights.sum())
    room = [capacity // int(unit) for capacity in capacities.tolist()]
    needed = max(total, sum(room) + len(room), (max(room) + 1) * (LARGEST_SUM // LARGEST_CAPACITY))
    divisor = _divisor(needed)
    if divisor > 1:
        weights = -(-weights // divisor)
        room = [capacity // divisor for capacity in room]
    elif not weights.all():
        factor = LARGEST_SUM // needed
        weights = weights * factor
        room = [(capacity + 1) * factor - 1 for capacity in room]
    return np.maximum(weights, 1).astype(np.int32), np.array(room, dtype=np.int32)


def scale_costs(costs: Int64, copies: Int64) -> Int32:
    """Return costs >= 1 in int32 such that no communication volume wraps.

    Parameters
    ----------
    costs : int64 array, shape (nets,)
        All > 0.
    copies : int64 array, shape (nets,)
        The most that connectivity - 1 of each net can be.

    Examples
    --------
    >>> scale_costs(np.array([20, 30]), np.array([1, 1])).tolist()
    [2, 3]
    """
    costs = costs // np.gcd.reduce(costs)
    most = int(np.dot(costs.astype(np.float64), copies))
    return np.maximum(costs // (most // LARGEST_SUM + 1), 1).astype(np.int32)


def _divisor(total: int) -> int:
    """The divisor by which numbers of such a sum fit into int32."""
    return max(1, -(-total // LARGEST_SUM))


@dataclass(frozen=True, eq=False)
class Fitted:
    """A hypergraph for partitioners that add up in int32.

    Attributes
    ----------
    weights_by, costs_by : int
        Divisors of the weights and costs; 1 where they fit.
    rounding : float
        The most that the weight of any vertices together differs by, of all weight.
    """

    hypergraph: Hypergraph
    weights_by: int
    costs_by: int
    rounding: float


def fitted(hypergraph: Hypergraph, k: int = MOST_FITTED) -> Fitted:
    """Divide weights and costs so that their sums, and volumes among k parts, fit in int32.

    They are rounded to the nearest number, to 1 at least where they are not 0; the partitioner
    makes what may be in a part of them by its own eps. What fits stays as it is.

    Examples
    --------
    >>> no, nets = np.zeros(0, np.int32), np.zeros(0, np.int64)
    >>> small = fitted(Hypergraph(np.array([2**33, 5 * 2**30, 0]), nets, nets, no, no > 0, no))
    >>> small.weights_by, small.hypergraph.weights.tolist(), small.rounding < 1e-9
    (13, [660764199, 412977625, 0], True)
    """
    weights_by = _divisor(int(hypergraph.weights.sum()))
    copies = np.clip(np.diff(hypergraph.pointers) - 1, 0, k - 1)
    costs_by = _divisor(int(np.dot(hypergraph.costs.astype(np.float64), copies)))
    weights = _rounded(hypergraph.weights, weights_by)
    off = np.abs(weights * weights_by - hypergraph.weights).sum()
    return Fitted(
        replace(hypergraph, weights=weights, costs=_rounded(hypergraph.costs, costs_by)),
        weights_by,
        costs_by,
        float(off / max(1, hypergraph.weights.sum())),
    )


def _rounded(values: Int64, by: int) -> Int64:
    return np.maximum((values + by // 2) // by, values > 0)
