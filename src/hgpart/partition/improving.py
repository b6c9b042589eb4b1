"""Parts of blocks -> better ones of smaller blocks: split, and moved one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hgpart import _native
from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks, halve
from hgpart.hypergraph.building import CnnHypergraph, evaluate_parts
from hgpart.partition.problem.balance import pack
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.project import project
from hgpart.partition.problem.search import Search
from hgpart.partition.steering.obeying import Obeying

# Split blocks are improved up to this size even when the balance holds already.
MAX_SPLIT_VERTICES = 20_000
MAX_IMPROVED_PINS = 4_000_000

# A search for balance goes on down to single tasks, up to this size: 1 GB or so.
MAX_BALANCED_VERTICES = 5_000_000
MAX_BALANCED_PINS = 30_000_000

# Refinement keeps a count for each net and part: 2 GB.
MAX_REFINED_COUNTS = 2**29


def split_and_improve(
    problem: Problem, search: Search, model: CnnHypergraph, parts: Int32
) -> tuple[CnnHypergraph, Int32]:
    """Halve blocks and move the halves, as long as that is small or the balance asks for it.

    Returns the coarsest blocks that hold the best partition.
    """
    room, obeying = problem.capacities, Obeying(problem)
    best, best_parts, best_rank = model, parts, rank(model, parts, room)
    while search.left > 0:
        balanced = best_rank[0] == 0
        blocks = halve(model.blocks, problem.views)
        if _same(blocks, model) or (balanced and model.vertices > MAX_SPLIT_VERTICES):
            break
        if _most_vertices(blocks) > MAX_BALANCED_VERTICES:
            break
        finer = problem.hypergraph(blocks)
        pins = int(finer.nets.sizes().sum())
        if pins > (MAX_IMPROVED_PINS if balanced else MAX_BALANCED_PINS):
            break
        parts = project(parts, model, finer)
        parts = refine(search, finer, parts, room, obeying.may_lie(finer, parts))
        model = finer
        if (own := rank(model, parts, room)) < best_rank:
            best, best_parts, best_rank = model, parts, own
    if best_rank[0] > 0:
        # Heaviest first is the surest way to balance, whatever travels.
        parts = obeying.parts(model, pack(model.weights, room))
        parts = refine(search, model, parts, room, obeying.may_lie(model, parts))
        if rank(model, parts, room) < best_rank:
            best, best_parts = model, parts
    return best, best_parts


def refine(
    search: Search,
    model: CnnHypergraph,
    parts: Int32,
    room: Int64,
    may_lie: NDArray[np.bool_] | None = None,
) -> Int32:
    """Move single vertices, each to where it may lie, as long as the counts of that have room."""
    if len(model.nets.costs) * len(room) > MAX_REFINED_COUNTS:
        return parts
    return _native.refine(model.hypergraph, parts, room, search.seed, search.left, may_lie)


def rank(model: CnnHypergraph, parts: Int32, room: Int64) -> tuple[float, int]:
    """Largest overload, relative to its part's capacity, then volume: less is better."""
    evaluation = evaluate_parts(model, parts, len(room))
    over = np.maximum(evaluation.loads - room, 0)
    return float((over / np.maximum(room, 1)).max()), evaluation.volume


def _most_vertices(blocks: Blocks) -> int:
    """A bound on the vertices that blocks make, without making them."""
    return sum(
        (len(rows) - 1) * len(columns)
        for rows, columns in zip(blocks.rows, blocks.columns, strict=True)
    )


def _same(blocks: Blocks, model: CnnHypergraph) -> bool:
    pairs = zip(
        (*blocks.rows, *blocks.columns), (*model.blocks.rows, *model.blocks.columns), strict=True
    )
    return all(len(cuts) == len(other_cuts) for cuts, other_cuts in pairs)
