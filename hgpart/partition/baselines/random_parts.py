"""ChannelGraph -> a part for each task at random: the floor of any comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hgpart.hypergraph.blocks import Modelling, full_vertices
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.hypergraph import Int32
from hgpart.hypergraph.partition_files import blocks_of_parts
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.work.figures import Work


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
