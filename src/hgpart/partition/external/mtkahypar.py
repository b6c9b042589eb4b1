"""Hypergraph + capacities -> part of each vertex, by Mt-KaHyPar."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Float64, Int32, Int64
from hgpart.cores import usable_cores
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.external.isolated import partition_isolated

PRESET = "DETERMINISTIC_QUALITY"
FINEST_LINK = 100  # steps to which link costs are rounded, of which the dearest has all

MOST_MAPPED = 64  # devices that Mt-KaHyPar maps parts of a hypergraph onto


def mtkahypar(
    hypergraph: Hypergraph,
    capacities: Int64,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    links: Float64 | None = None,
    fixed: Int32 | None = None,
) -> Int32:
    """Partition with Mt-KaHyPar, on all cores that this process may use; see `backends`.

    The best of up to 16 runs is kept, fewer for larger hypergraphs.

    Parameters
    ----------
    links : float64 array, shape (k, k), optional
        Cost of a byte from part s to part r at ``[s, r]``: the parts are mapped onto a graph of
        devices with these costs, for the objective that Mt-KaHyPar calls steiner_tree.
    fixed : int32 array, shape (vertices,), optional
        Part of each vertex that may lie in no other; -1 for others.

    Notes
    -----
    With link costs a net costs the least tree of links that joins its parts, so that one part may
    pass on what it was sent (Heuer, "A direct k-way hypergraph partitioning algorithm for
    optimizing the Steiner tree metric", ALENEX 2024). In hgpart each reader gets a map from the
    part that makes it, so the two figures differ. Links cost the mean of both ways here.

    Its default preset returns something else each time that it runs on two threads. Its
    deterministic one is the same on any number of threads, but takes no notice of its seed:
    here the seed shuffles the vertices.
    """
    costs = [] if links is None else whole_costs(links)
    return partition_isolated(
        "mtkahypar",
        "pip install mtkahypar",
        hypergraph,
        capacities,
        seed=seed,
        time_limit=time_limit,
        settings={"preset": PRESET, "threads": usable_cores(), "links": costs},
        dearest=max((max(row) for row in costs), default=1),
        fixed=fixed,
    )


def whole_costs(links: Float64) -> list[list[int]]:
    """Return link costs as whole numbers from 1 on that are the same both ways; none if all equal.

    Equal ones are the volume, and with a graph of two devices Mt-KaHyPar 1.7 never ends.

    >>> whole_costs(np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 10.0], [11.0, 10.0, 0.0]]))
    [[0, 1, 10], [1, 0, 10], [10, 10, 0]]
    """
    both_ways = links + links.T
    between = both_ways[~np.eye(len(links), dtype=bool)]
    if len(set(between.tolist())) <= 1:
        return []
    steps = np.rint(FINEST_LINK * both_ways / both_ways.max()).astype(np.int64)
    steps = np.maximum(steps, 1)
    np.fill_diagonal(steps, 0)
    return [[int(cost) for cost in row] for row in steps // np.gcd.reduce(steps, axis=None)]
