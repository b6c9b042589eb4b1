"""Problem -> how many blocks of each tile a partitioner of hypergraphs gets."""

from __future__ import annotations

import math

from hgpart.partition.problem.problem import Problem

# Blocks for each part, so that a block is a small share of a part; more for fine-grain, where a
# layer's blocks are a grid. With more, KaHyPar merges them again and finds nothing better, unless
# eps is so small that it needs smaller ones to balance.
BLOCKS_PER_PART = {"coarse": 16, "fine": 32}
MOST_BLOCKS_PER_PART = 64
BLOCK_OF_EPS = 1.5  # a block's share of a part, at most, in units of eps


def tile_blocks(problem: Problem) -> int:
    """Number of blocks of each tile, so that those of all are small shares of a part."""
    blocks = problem.k * _blocks_per_part(problem.modelling.grain, problem.eps)
    return math.ceil(blocks / (problem.modelling.slices * problem.modelling.bands))


def _blocks_per_part(grain: str, eps: float) -> int:
    needed = math.ceil(1 / max(eps * BLOCK_OF_EPS, 1 / MOST_BLOCKS_PER_PART))
    return max(BLOCKS_PER_PART[grain], needed)
