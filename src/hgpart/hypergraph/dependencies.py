"""CnnHypergraph + parts -> the graph of the parts' shares of layers: who needs maps from whom."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np

from hgpart.arrays import Int32
from hgpart.hypergraph.building import CnnHypergraph


def dependencies(model: CnnHypergraph, parts: Int32) -> nx.DiGraph:
    """Return the graph whose nodes are shares of layers, named by layer and part.

    A node has the layer's `kind`, the `part`, and the `tasks` and `work` of the share. An edge runs
    from a share to each share that reads its maps or partial sums. `bytes` are those of a batch;
    they are sent if the parts differ, once per part even if several of its shares read them. Layers
    that share a weight are one node, named after the first. Where the batch is in slices, a task
    counts once per slice; work is in the unit of the weights.

    Parameters
    ----------
    parts : int32 array, shape (model.vertices,)
        Part of each vertex.

    Raises
    ------
    HypergraphError
        If there is not a part >= 0 for each vertex.
    """
    most = max(1, int(parts.max(initial=0)) + 1)
    placed = model.vertex_layers.astype(np.int64) * most + parts
    keys, shares = np.unique(placed, return_inverse=True)
    between = model.map_nets.of_parts(model.weights, shares.astype(np.int32), len(keys))
    tasks = np.zeros(len(keys), dtype=np.int64)
    by_slice = shares.reshape(model.modelling.slices, -1)
    for layer, vertices in zip(model.graph.layers, model.task_vertices, strict=True):
        if layer is model.graph.layers[layer.tied_to]:
            np.add.at(tasks, by_slice[:, vertices], 1)
    layers = [model.graph.layers[key // most] for key in keys.tolist()]
    names = [(layer.name, key % most) for layer, key in zip(layers, keys.tolist(), strict=True)]
    graph = nx.DiGraph()
    for at, (layer, name) in enumerate(zip(layers, names, strict=True)):
        facts = {"tasks": int(tasks[at]), "work": int(between.weights[at])}
        graph.add_node(name, kind=layer.kind, part=name[1], **facts)
    nbytes: Counter[tuple[int, int]] = Counter()
    for net, cost in enumerate(between.costs.tolist()):
        root, *readers = between.pins[between.pointers[net] : between.pointers[net + 1]].tolist()
        for reader in readers:
            nbytes[(reader, root) if between.gathers[net] else (root, reader)] += cost
    for (source, reader), count in sorted(nbytes.items()):
        graph.add_edge(names[source], names[reader], bytes=count)
    return graph
