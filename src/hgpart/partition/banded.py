"""Problem with bands of rows -> Solution: named ways and partitions without bands, refined.

Each start is improved by moving single tiles of blocks; none that is known is better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hgpart.arrays import Int32
from hgpart.errors import InfeasibleError
from hgpart.hypergraph.blocks import divide
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.baselines.spatial import rows_then_filters, spatial
from hgpart.partition.by_blocks import tile_blocks
from hgpart.partition.improving import rank, refine, split_and_improve
from hgpart.partition.native.any_hypergraph import native
from hgpart.partition.native.search import native_partition
from hgpart.partition.native.sliced import sliced_partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.solution import Solution

Start = tuple[str, CnnHypergraph, Int32]


def banded_partition(problem: Problem, search: Search, bound: int) -> Solution:
    """Divide a model whose layers have bands; never worse than any start."""
    room = problem.capacities
    best: Solution | None = None
    best_rank = np.inf, 0
    for name, model, parts in _starts(problem, search):
        moved = refine(search, model, parts, room)
        for own in (parts, moved):
            if (own_rank := rank(model, own, room)) < best_rank:
                best, best_rank = Solution(model, own, start=name), own_rank
        if search.left <= 0 and best is not None:
            break
    assert best is not None
    model, parts = split_and_improve(problem, search, best.model, best.parts)
    return replace(best, model=model, parts=parts)


def _starts(problem: Problem, search: Search) -> Iterator[Start]:
    yield ("spatial", *spatial(problem))
    for model, parts in rows_then_filters(problem):
        yield "rows-then-filters", model, parts
    whole = problem.in_bands(1)
    solve = native_partition if whole.modelling.slices == 1 else sliced_partition
    try:
        solution = solve(whole, search, 0)
        yield ("coarse", *in_every_band(problem, solution.model, solution.parts))
    except InfeasibleError:  # a task is too heavy as a whole
        pass
    model = problem.hypergraph(
        divide(problem.graph, problem.work, problem.modelling, tile_blocks(problem))
    )
    yield "any", model, native(model.hypergraph, problem.capacities, seed=search.seed)


def in_every_band(
    problem: Problem, model: CnnHypergraph, parts: Int32
) -> tuple[CnnHypergraph, Int32]:
    """A partition of the model without bands, the same for each band."""
    banded = problem.hypergraph(model.blocks)
    by_slice = parts.reshape(problem.modelling.slices, -1)
    return banded, by_slice[:, banded.first_bands].ravel()
