"""Hypergraph + capacities -> part of each vertex, by Mt-KaHyPar."""

from __future__ import annotations

from hgpart.arrays import Int32, Int64
from hgpart.cores import usable_cores
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.external.isolated import partition_isolated

PRESET = "DETERMINISTIC_QUALITY"


def mtkahypar(
    hypergraph: Hypergraph, capacities: Int64, *, seed: int = 0, time_limit: float | None = None
) -> Int32:
    """Partition with Mt-KaHyPar, on all cores that this process may use; see `backends`.

    The best of up to 16 runs is kept, fewer for larger hypergraphs.

    Notes
    -----
    Its default preset returns something else each time that it runs on two threads. Its
    deterministic one is the same on any number of threads, but takes no notice of its seed:
    here the seed shuffles the vertices.
    """
    return partition_isolated(
        "mtkahypar",
        "pip install mtkahypar",
        hypergraph,
        capacities,
        seed=seed,
        time_limit=time_limit,
        settings={"preset": PRESET, "threads": usable_cores()},
    )
