"""Hypergraph + partition -> Evaluation: the costs of the partition, computed from definitions.

Examples
--------
Filters 0 and 1 (one layer) are read by filters 2 and 3 (the next), whose maps nothing reads:

>>> import numpy as np
>>> from hgpart.hypergraph.hypergraph import Hypergraph
>>> hypergraph = Hypergraph(
...     weights=np.array([3, 3, 5, 5], dtype=np.int64),
...     costs=np.array([10, 10, 40, 40], dtype=np.int64),
...     pointers=np.array([0, 3, 6, 7, 8], dtype=np.int64),
...     pins=np.array([0, 2, 3, 1, 2, 3, 2, 3], dtype=np.int32),
...     gathers=np.array([False, False, False, False]),
...     net_layers=np.array([0, 0, 1, 1], dtype=np.int32),
... )

Part 0 computes filters 0, 1 and 2; it sends the maps of filters 0 and 1 to part 1:

>>> evaluation = evaluate(hypergraph, np.array([0, 0, 0, 1], dtype=np.int32), 2)
>>> evaluation.loads.tolist()
[11, 5]
>>> evaluation.imbalance
0.375
>>> evaluation.volume
20
>>> evaluation.traffic.tolist()
[[0, 20], [0, 0]]
>>> evaluation.messages.tolist()
[[0, 1], [0, 0]]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hgpart import _native
from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError
from hgpart.hypergraph.hypergraph import Hypergraph


def part_loads(hypergraph: Hypergraph, parts: Int32, k: int) -> Int64:
    """Sum the weights of each part's vertices.

    Parameters
    ----------
    parts : int32 array, shape (vertices,)
        Part of each vertex, 0 to k - 1.
    k : int
        Number of parts; a part may be empty.

    Returns
    -------
    int64 array, shape (k,)
        Work of each part, in the unit of the weights.

    Raises
    ------
    HypergraphError
        If an array is not as documented, or the sum of all weights exceeds 64 bits.

    Notes
    -----
    Thesis 2.5, ``W_k``.
    """
    return _native.part_loads(hypergraph, parts, k)


def imbalance(loads: Int64 | Sequence[int], speeds: Sequence[float] | None = None) -> float:
    """Excess of the most loaded part over its share of the work.

    ``max_p load_p / (total * speed_p / sum(speeds)) - 1``; a k-way partition is balanced when
    this is at most eps. It is computed in rational numbers and rounded once, so that a part with
    exactly (1 + eps) times its share compares as equal. 0.0 when there is no work.

    Parameters
    ----------
    loads : int64 array, shape (k,)
        Work of each part, >= 0.
    speeds : sequence of float, length k, optional
        Relative speed of each part's device, > 0. Default: equal speeds.

    Raises
    ------
    ArgumentError
        If there is no load or a negative one, or if `speeds` has another length or an entry that
        is not positive and finite.

    Notes
    -----
    Thesis 2.5: ``W_k <= W_avg (1 + eps)``.

    Examples
    --------
    >>> imbalance([5, 9, 10])
    0.25
    >>> imbalance([5, 5, 10], speeds=[1, 1, 2])
    0.0
    """
    work = [int(load) for load in loads]
    if not work:
        raise ArgumentError("got no loads, expected the load of at least one part")
    if min(work) < 0:
        raise ArgumentError(f"load is {min(work)}, expected 0 or more")
    speeds = [1.0] * len(work) if speeds is None else speeds
    if len(speeds) != len(work):
        raise ArgumentError(f"got {len(speeds)} speeds for {len(work)} parts")
    for speed in speeds:
        if not (math.isfinite(speed) and speed > 0):
            raise ArgumentError(f"speed is {speed}, expected a positive number")
    total = sum(work)
    if total == 0:
        return 0.0
    exact = [Fraction(float(speed)) for speed in speeds]
    longest = max(load / speed for load, speed in zip(work, exact, strict=True))
    return float(longest * sum(exact) / total - 1)


def communication_volume(hypergraph: Hypergraph, parts: Int32, k: int) -> int:
    """Bytes that cross between parts in one forward pass (connectivity - 1, ``km1``).

    The sum over nets of cost * (lambda - 1), with lambda the number of parts among a net's pins:
    each other part of a net receives the root's map once, or sends the root its partial sum once.

    Parameters
    ----------
    parts : int32 array, shape (vertices,)
        Part of each vertex, 0 to k - 1.
    k : int
        Number of parts.

    Raises
    ------
    HypergraphError
        If an array is not as documented, or the volume exceeds 64 bits.

    Notes
    -----
    Thesis 3.2, ``cutsize_con``.
    """
    return _native.communication_volume(hypergraph, parts, k)


def cut_net(hypergraph: Hypergraph, parts: Int32, k: int) -> int:
    """Sum the costs of the nets whose pins lie in more than one part, in bytes.

    Parameters
    ----------
    parts : int32 array, shape (vertices,)
        Part of each vertex, 0 to k - 1.
    k : int
        Number of parts.

    Raises
    ------
    HypergraphError
        If an array is not as documented, or the sum exceeds 64 bits.

    Notes
    -----
    Thesis 2.5, ``cutsize_cutnet``.
    """
    return _native.cut_net(hypergraph, parts, k)


def traffic(hypergraph: Hypergraph, parts: Int32, k: int) -> Int64:
    """Bytes that each part sends to each other part in one forward pass.

    The part of a net's root sends the net's cost to every other part among its pins or, where
    the net gathers, receives it from each of them. All entries add up to the communication
    volume; the diagonal is 0.

    Parameters
    ----------
    parts : int32 array, shape (vertices,)
        Part of each vertex, 0 to k - 1.
    k : int
        Number of parts, at most 16384.

    Returns
    -------
    int64 array, shape (k, k)
        Entry ``[s, r]`` is what part s sends to part r.

    Raises
    ------
    HypergraphError
        If an array is not as documented, or the communication volume exceeds 64 bits.
    """
    return _native.traffic(hypergraph, parts, k)


def messages(hypergraph: Hypergraph, parts: Int32, k: int) -> Int64:
    """Count the messages that each part sends to each other part in one forward pass.

    Everything that a layer sends from one part to another is one message: a message is a distinct
    (layer, sender, receiver) over the nets of cost > 0.

    Parameters
    ----------
    parts : int32 array, shape (vertices,)
        Part of each vertex, 0 to k - 1.
    k : int
        Number of parts, at most 16384.

    Returns
    -------
    int64 array, shape (k, k)
        Entry ``[s, r]`` is the number of messages from part s to part r.

    Raises
    ------
    HypergraphError
        If an array is not as documented.
    """
    return _native.messages(hypergraph, parts, k)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The costs of a k-way partition: the figures of the thesis's tables, and their sources.

    Attributes
    ----------
    k : int
        Number of parts.
    loads : int64 array, shape (k,)
        Work of each part.
    imbalance : float
        See `imbalance`; for the speeds that the partition was evaluated with.
    volume : int
        Communication volume of one forward pass, in bytes.
    cut_net : int
        Sum of the costs of the cut nets, in bytes.
    traffic : int64 array, shape (k, k)
        Bytes that part s sends to part r, at ``[s, r]``.
    messages : int64 array, shape (k, k)
        Messages that part s sends to part r, at ``[s, r]``.
    """

    k: int
    loads: Int64
    imbalance: float
    volume: int
    cut_net: int
    traffic: Int64
    messages: Int64

    @property
    def max_load(self) -> int:
        """Work of the most loaded part (thesis: Max Work)."""
        return int(self.loads.max())

    @property
    def min_load(self) -> int:
        """Work of the least loaded part (thesis: Min Work)."""
        return int(self.loads.min())

    @property
    def average_load(self) -> float:
        """Work of all parts, divided by k (thesis: Avg. Work)."""
        return int(self.loads.sum()) / self.k

    @property
    def max_over_min(self) -> float:
        """Maximum over minimum load (thesis: Max/Min); infinite when a part has no work."""
        return self.max_load / self.min_load if self.min_load else math.inf

    @property
    def max_over_average(self) -> float:
        """Maximum over average load (thesis: Max/avg); 1 when there is no work."""
        return self.max_load / self.average_load if self.max_load else 1.0

    @property
    def sent(self) -> Int64:
        """Bytes that each part sends, shape (k,)."""
        sent: Int64 = self.traffic.sum(axis=1)
        return sent

    @property
    def received(self) -> Int64:
        """Bytes that each part receives, shape (k,)."""
        received: Int64 = self.traffic.sum(axis=0)
        return received

    @property
    def max_part_volume(self) -> int:
        """The most bytes that one part sends (thesis: Max Comm.)."""
        return int(self.sent.max())

    @property
    def average_part_volume(self) -> float:
        """Communication volume, divided by k (thesis: Avg Comm.)."""
        return self.volume / self.k

    @property
    def max_over_average_part_volume(self) -> float:
        """Maximum over average bytes that a part sends (thesis: Max/Avg comm); 1 if none are."""
        return self.max_part_volume / self.average_part_volume if self.volume else 1.0

    @property
    def message_count(self) -> int:
        """Number of messages in one forward pass."""
        return int(self.messages.sum())


def evaluate(
    hypergraph: Hypergraph, parts: Int32, k: int, speeds: Sequence[float] | None = None
) -> Evaluation:
    """Compute all metrics of a partition from any source.

    Parameters
    ----------
    parts : int32 array, shape (vertices,)
        Part of each vertex, 0 to k - 1.
    k : int
        Number of parts, at most 16384.
    speeds : sequence of float, length k, optional
        Relative speed of each part's device, for the imbalance. Default: equal speeds.

    Raises
    ------
    HypergraphError
        If an array is not as documented, or a sum exceeds 64 bits.
    ArgumentError
        If the speeds are not k positive numbers.
    """
    sent = traffic(hypergraph, parts, k)  # first: it refuses a k that takes minutes below
    loads = part_loads(hypergraph, parts, k)
    return Evaluation(
        k=k,
        loads=loads,
        imbalance=imbalance(loads, speeds),
        volume=communication_volume(hypergraph, parts, k),
        cut_net=cut_net(hypergraph, parts, k),
        traffic=sent,
        messages=messages(hypergraph, parts, k),
    )
