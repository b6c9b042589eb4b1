"""ChannelGraph -> every layer's filters in k equal shares (thesis 5.1.2)."""

from __future__ import annotations

import numpy as np

from hgpart.hypergraph.blocks import Blocks, Modelling
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.hypergraph import Int32
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.work.figures import Work


def horizontal(
    graph: ChannelGraph, work: Work, modelling: Modelling, k: int
) -> tuple[CnnHypergraph, Int32]:
    """Cut every layer into k nearly equal runs of tasks, part p taking the p-th.

    A layer of fewer tasks than parts goes to as many parts as it has tasks, spread evenly; one
    that is a single vertex goes to part 0. Fine-grain tasks stay whole (thesis 5.1.4: the
    result is the same).

    Returns
    -------
    CnnHypergraph and int32 array
        The blocks, and the part of each vertex.
    """
    rows, columns = [], []
    for layer in graph.layers:
        read = modelling.split_read(layer)
        shares = 1 if modelling.is_solid(layer) else min(k, layer.tasks)
        rows.append(np.arange(shares + 1, dtype=np.int64) * layer.tasks // shares)
        columns.append(np.array([0, 1 if read is None else len(read.channels)]))
    model = cnn_hypergraph(graph, work, Blocks(tuple(rows), tuple(columns)), modelling)
    shares_of = np.array([len(cuts) - 1 for cuts in rows])[model.vertex_layers]
    return model, (model.vertex_rows.astype(np.int64) * k // shares_of).astype(np.int32)
