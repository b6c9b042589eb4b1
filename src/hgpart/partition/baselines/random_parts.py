"""Problem -> a part for each task at random: the floor of any comparison."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.hypergraph.partition_files import blocks_of_parts
from hgpart.partition.problem.problem import Problem

MOST_TASKS = 2_000_000  # of more tasks, blocks get a part at random
MOST_CUTS = 7  # then, of a layer's tasks, and of the channels of each


def random_parts(problem: Problem, seed: int) -> tuple[CnnHypergraph, Int32]:
    """Draw the part of every task, uniformly and independently.

    Where there are too many tasks, layers are cut at random places, and every block gets a part.

    Returns
    -------
    CnnHypergraph and int32 array
        The blocks, and the part of each.
    """
    draw, k = np.random.default_rng(seed), problem.k
    if problem.tasks <= MOST_TASKS:
        parts = draw.integers(0, k, problem.tasks).astype(np.int32)
        return blocks_of_parts(problem.graph, problem.work, problem.modelling, parts)

    def cuts(view: LayerVertices) -> tuple[Int64, Int64]:
        tasks = view.layer.tasks
        rows = np.array([0, tasks]) if view.is_solid else _cuts(tasks, draw)
        return rows, np.array([0, 1]) if view.split is None else _cuts(view.columns, draw)

    model = problem.hypergraph(Blocks.cut(problem.views, cuts))
    return model, draw.integers(0, k, model.vertices).astype(np.int32)


def _cuts(size: int, draw: np.random.Generator) -> Int64:
    """Cut a run of `size` tasks or channels at random places."""
    count = min(size - 1, int(draw.integers(MOST_CUTS + 1)))
    inner = draw.choice(np.arange(1, size), count, replace=False)
    return np.array([0, *np.sort(inner).tolist(), size], dtype=np.int64)
