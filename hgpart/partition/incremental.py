"""ChannelGraph + work -> tasks in order, a part after the other (thesis 5.1.3 and 5.1.4)."""

from __future__ import annotations

import numpy as np

from hgpart.blocks import Modelling, single_blocks
from hgpart.grains import CnnHypergraph, vertex_weights
from hgpart.graph import ChannelGraph
from hgpart.hypergraph import Int32, Int64
from hgpart.partition_files import blocks_of_parts
from hgpart.work import Work


def incremental(
    graph: ChannelGraph, work: Work, modelling: Modelling, k: int
) -> tuple[CnnHypergraph, Int32]:
    """Give tasks to a part, first layer first, until its work exceeds the average.

    Coarse-grain this is the thesis's filter-wise incremental partitioning, fine-grain its
    channel-wise one: channels of filters in order, a filter's reduction with its last channel.

    Returns
    -------
    CnnHypergraph and int32 array
        The largest blocks that the partition keeps whole, and the part of each vertex.
    """
    weights = vertex_weights(graph, work, single_blocks(graph, modelling), modelling)
    parts = _fill(weights, k)
    first = 0
    for at, layer in enumerate(graph.layers):
        if not modelling.has_vertices(layer) or layer.tied_to != at:
            continue
        read = modelling.split_read(layer)
        if read is None:
            first += 1 if modelling.is_solid(layer) else layer.tasks
            continue
        channels = len(read.channels) // read.groups
        cells = slice(first, first + layer.tasks * channels)
        first = cells.stop + layer.tasks
        parts[cells.stop : first] = parts[cells].reshape(layer.tasks, channels)[:, -1]
    return blocks_of_parts(graph, work, modelling, parts)


def _fill(weights: Int64, k: int) -> Int32:
    """Part of each vertex in order; the last part takes what is left.

    >>> _fill(np.array([3, 3, 3, 1, 1, 1]), 2).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    reach = np.cumsum(weights)
    parts = np.empty(len(weights), dtype=np.int32)
    start, filled = 0, 0
    for part in range(k):
        # More than the average: (reach - filled) * k > total, in whole numbers.
        bound = filled + int(reach[-1]) // k
        end = int(np.searchsorted(reach, bound, "right")) + 1
        if part == k - 1:
            end = len(weights)
        end = min(end, len(weights))
        parts[start:end] = part
        if end == len(weights):
            break
        start, filled = end, int(reach[end - 1])
    return parts
