"""ChannelGraph -> a part for each task at random: the floor of any comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hgpart.blocks import Modelling, full_vertices
from hgpart.grains import CnnHypergraph
from hgpart.graph import ChannelGraph
from hgpart.hypergraph import Int32
from hgpart.partition_files import blocks_of_parts
from hgpart.work import Work


def random_parts(
    graph: ChannelGraph, work: Work, modelling: Modelling, k: int, seed: int
) -> tuple[CnnHypergraph, Int32]:
    """Draw the part of every coarse-grain task, uniformly and independently.

    Returns
    -------
    CnnHypergraph and int32 array
        The largest blocks that the partition keeps whole, and the part of each vertex.
    """
    coarse = replace(modelling, grain="coarse")
    parts = np.random.default_rng(seed).integers(0, k, full_vertices(graph, coarse))
    return blocks_of_parts(graph, work, coarse, parts.astype(np.int32))
