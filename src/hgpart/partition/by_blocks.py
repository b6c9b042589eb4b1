"""Problem + a partitioner of hypergraphs -> Solution: blocks of equal work, then split ones."""

from __future__ import annotations

import math

import numpy as np

from hgpart.hypergraph.blocks import divide
from hgpart.partition.backends import Backend
from hgpart.partition.baselines.layerwise import layerwise_within
from hgpart.partition.improving import rank, refine, split_and_improve
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.solution import Solution

# Blocks for each part, so that a block is a small share of a part; more for fine-grain, where a
# layer's blocks are a grid. With more, KaHyPar merges them again and finds nothing better, unless
# eps is so small that it needs smaller ones to balance.
BLOCKS_PER_PART = {"coarse": 16, "fine": 32}
MOST_BLOCKS_PER_PART = 64
BLOCK_OF_EPS = 1.5  # a block's share of a part, at most, in units of eps


def by_blocks(problem: Problem, search: Search, partitioner: Backend) -> Solution:
    """Have a general partitioner divide blocks, then split and move them."""
    room, blocks = problem.capacities, tile_blocks(problem)
    model = problem.hypergraph(divide(problem.graph, problem.work, problem.modelling, blocks))
    parts = partitioner(
        model.hypergraph, room, seed=search.seed, time_limit=search.part().time_limit
    )
    parts, start = refine(search, model, parts, room), None
    cut = layerwise_within(problem)
    if cut is not None:
        # So that no cut between layers within eps is ever better.
        cut_parts = refine(search, model, cut.astype(np.int32)[model.vertex_layers], room)
        if rank(model, cut_parts, room) < rank(model, parts, room):
            parts, start = cut_parts, "layerwise"
    model, parts = split_and_improve(problem, search, model, parts)
    return Solution(model, parts, start=start)


def tile_blocks(problem: Problem) -> int:
    """Number of blocks of each tile, so that those of all are small shares of a part."""
    blocks = problem.k * _blocks_per_part(problem.modelling.grain, problem.eps)
    return math.ceil(blocks / (problem.modelling.slices * problem.modelling.bands))


def _blocks_per_part(grain: str, eps: float) -> int:
    needed = math.ceil(1 / max(eps * BLOCK_OF_EPS, 1 / MOST_BLOCKS_PER_PART))
    return max(BLOCKS_PER_PART[grain], needed)
