"""Problem -> a part for each task at random: the floor of any comparison."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.partition_files import blocks_of_parts
from hgpart.partition.problem.problem import Problem


def random_parts(problem: Problem, seed: int) -> tuple[CnnHypergraph, Int32]:
    """Draw the part of every coarse-grain task, uniformly and independently.

    Returns
    -------
    CnnHypergraph and int32 array
        The largest blocks that the partition keeps whole, and the part of each vertex.
    """
    coarse = problem.coarse
    parts = np.random.default_rng(seed).integers(0, coarse.k, coarse.tasks).astype(np.int32)
    return blocks_of_parts(coarse.graph, coarse.work, coarse.modelling, parts)
