"""Hypergraph + capacities -> part of each vertex, by annealing over classes of equal ones."""

from __future__ import annotations

import math
import time

from hgpart import _native
from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.external.contract import check_request, easy_parts
from hgpart.partition.native.annealing import Cooling, anneal
from hgpart.partition.native.goal import goal_of
from hgpart.partition.problem.balance import pack
from hgpart.partition.symmetry.vertex_classes import (
    division_of_parts,
    parts_of_division,
    vertex_classes,
)

STEPS = 100_000  # of each annealing


def native(
    hypergraph: Hypergraph, capacities: Int64, *, seed: int = 0, time_limit: float | None = None
) -> Int32:
    """Partition any hypergraph by its classes of equal vertices; see `backends`.

    A model is better partitioned by `native_partition`, which knows more of it.
    """
    check_request(hypergraph, capacities, seed, time_limit)
    easy = easy_parts(hypergraph, capacities)
    if easy is not None:
        return easy
    k, start = len(capacities), pack(hypergraph.weights, capacities)
    seed %= 2**62  # four chains of each in 64 bits
    deadline = math.inf if time_limit is None else time.monotonic() + time_limit
    symmetry = vertex_classes(hypergraph)
    division = division_of_parts(symmetry, start, k)
    chains = [
        (division, Cooling(4 * seed + chain, STEPS, hottest, 1e-5, 4.0, 4 * k))
        for chain, hottest in enumerate((0.1, 0.03, 0.01, 0.003))
    ]
    results, interrupted = anneal(
        symmetry, goal_of(capacities), chains, deadline - time.monotonic()
    )
    if interrupted:
        raise KeyboardInterrupt
    best = min(results, key=lambda one: one.rank)
    parts = parts_of_division(symmetry, best.division)
    return _native.refine(hypergraph, parts, capacities, seed, deadline - time.monotonic())
