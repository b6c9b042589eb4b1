"""Problem with bands of rows -> Solution: named ways and partitions without bands, refined.

Each start is improved by moving single tiles of blocks; none that is known is better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hgpart.arrays import Int32
from hgpart.hypergraph.blocks import divide
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.baselines.spatial import rows_then_filters
from hgpart.partition.by_blocks import tile_blocks
from hgpart.partition.improving import rank, refine, split_and_improve
from hgpart.partition.native.any_hypergraph import native
from hgpart.partition.native.search import native_partition
from hgpart.partition.native.sliced import sliced_partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.solution import Solution

Start = tuple[str, CnnHypergraph, Int32]


def banded_partition(problem: Problem, search: Search) -> Solution:
    """Divide a model whose layers have bands; never worse than any start.

    On Ctrl-C it is the best by then, if there is one.
    """
    room = problem.capacities
    best: Solution | None = None
    best_rank = np.inf, 0
    try:
        for name, model, parts in _starts(problem, search):
            for own in (parts, refine(search, model, parts, room)):
                if (own_rank := rank(model, own, room)) < best_rank:
                    best, best_rank = Solution(model, own, start=name), own_rank
            if search.left <= 0:
                break
        assert best is not None
        model, parts = split_and_improve(problem, search, best.model, best.parts)
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, interrupted=True)
    return replace(best, model=model, parts=parts)


def _starts(problem: Problem, search: Search) -> Iterator[Start]:
    for model, parts in rows_then_filters(problem):
        yield "rows-then-filters", model, parts
    whole = problem.in_bands(1)
    solve = native_partition if whole.modelling.slices == 1 else sliced_partition
    solution = solve(whole, search.part(0.5), 0)
    yield ("coarse", *in_every_band(problem, solution.model, solution.parts))
    if solution.interrupted:
        raise KeyboardInterrupt
    blocks = divide(problem.graph, problem.work, problem.modelling, tile_blocks(problem))
    model, limit = problem.hypergraph(blocks), search.part().time_limit
    found_parts = native(model.hypergraph, problem.capacities, seed=search.seed, time_limit=limit)
    yield "any", model, found_parts


def in_every_band(
    problem: Problem, model: CnnHypergraph, parts: Int32
) -> tuple[CnnHypergraph, Int32]:
    """A partition of the model without bands, the same for each band."""
    banded = problem.hypergraph(model.blocks)
    by_slice = parts.reshape(problem.modelling.slices, -1)
    return banded, by_slice[:, banded.first_bands].ravel()
