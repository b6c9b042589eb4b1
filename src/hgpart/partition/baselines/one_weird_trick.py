"""Problem over slices -> convolutions by slices, then linear layers by filters.

One weird trick (Krizhevsky 2014): convolutions have large maps and few parameters, the linear
layers behind them the other way round.
"""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Bool, Int32
from hgpart.errors import ArgumentError
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.layers.channel_graph import LINEAR, OUTPUT, ChannelGraph
from hgpart.partition.baselines.by_slices import by_turns, in_every_slice
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.problem.problem import Problem


def one_weird_trick(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Give each part its slices in front of the linear layers, of these its neurons in all slices.

    Each part gets the maps of the others' slices that its neurons read, and sends gradients of them
    back; parameters in front of the linear layers are summed over all parts.

    Raises
    ------
    ArgumentError
        If the model does not end in linear layers.
    """
    tail = linear_tail(problem.graph)
    if not tail.any():
        raise ArgumentError("the model does not end in linear layers")
    model, parts = in_every_slice(problem, *horizontal(problem.in_slices(1)))
    of_slice = np.repeat(by_turns(problem, problem.k), model.slice_vertices)
    return model, np.where(tail[model.vertex_layers], parts, of_slice)


def linear_tail(graph: ChannelGraph) -> Bool:
    """Whether each layer is linear with nothing but such layers behind it."""
    behind: dict[int, list[int]] = {at: [] for at in range(len(graph.layers))}
    for at, layer in enumerate(graph.layers):
        for source in graph.sources(layer):
            behind[source].append(at)
    tail = np.zeros(len(graph.layers), dtype=bool)
    for at in reversed(range(len(graph.layers))):
        readers = [reader for reader in behind[at] if graph.layers[reader].kind != OUTPUT]
        tail[at] = graph.layers[at].kind == LINEAR and all(tail[reader] for reader in readers)
    return tail
