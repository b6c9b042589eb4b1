"""ChannelGraph + work -> tasks in order, a part after the other (thesis 5.1.3 and 5.1.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.hypergraph.blocks import Blocks, Modelling, layer_vertices
from hgpart.hypergraph.building import CnnHypergraph, channel_shares, cnn_hypergraph
from hgpart.hypergraph.hypergraph import Int32, Int64
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.work.figures import Work


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
    ends = _ends(_runs(graph, work, modelling), k)
    first = np.zeros(len(graph.layers), dtype=np.int64)  # vertex of each layer, all numbered
    rows: list[Int64] = []
    columns: list[Int64] = []
    count = 0
    for at, layer in enumerate(graph.layers):
        read = modelling.split_read(layer)
        if layer.tied_to != at:
            rows.append(rows[layer.tied_to])
            columns.append(columns[layer.tied_to])
            continue
        first[at] = count
        cut = ends - count
        every = 1 if read is None else len(read.channels)
        tasks, channels = layer.tasks, 1 if read is None else every // read.groups
        if not modelling.has_vertices(layer) or (read is None and modelling.is_solid(layer)):
            cut = cut[:0]
        if modelling.has_vertices(layer):
            count += layer_vertices(layer, modelling)
        cut = cut[(cut > 0) & (cut < tasks * channels)]
        groups = 1 if read is None else read.groups
        starts = np.arange(groups + 1) * (tasks // groups)
        rows.append(np.unique(np.concatenate([starts, cut // channels, -(-cut // channels)])))
        within = cut[cut % channels > 0]
        group = within // channels // (tasks // groups)
        starts = np.arange(groups + 1) * channels
        columns.append(np.unique(np.concatenate([starts, group * channels + within % channels])))
    model = cnn_hypergraph(graph, work, Blocks(tuple(rows), tuple(columns)), modelling)

    layers, column = model.vertex_layers, model.vertex_columns
    numbers = np.empty(model.vertices, dtype=np.int64)  # in the sequence
    for at in np.unique(layers).tolist():
        layer, own = graph.layers[at], layers == at
        read = modelling.split_read(layer)
        channels = 1 if read is None else len(read.channels) // read.groups
        last = column[own] < 0
        place = np.where(last, channels - 1, model.blocks.columns[at][np.maximum(column[own], 0)])
        numbers[own] = model.blocks.rows[at][model.vertex_rows[own]] * channels + place % channels
        numbers[own] += first[at]
    return model, np.searchsorted(ends, numbers, "right").astype(np.int32)


@dataclass(frozen=True)
class _Run:
    """Weights that are repeated some times."""

    weights: Int64
    times: int

    @property
    def total(self) -> int:
        return int(self.weights.sum()) * self.times


def _runs(graph: ChannelGraph, work: Work, modelling: Modelling) -> list[_Run]:
    """The weights of all vertices of the full hypergraph, in order."""
    each: dict[int, int] = {}  # of a task, tied layers' together
    shares: dict[int, Int64] = {}  # of the channels that split it
    for at, layer in enumerate(graph.layers):
        if not modelling.has_vertices(layer):
            continue
        first, own = layer.tied_to, int(work.per_task[at])
        each[first] = each.get(first, 0) + own
        if (read := modelling.split_read(layer)) is not None:
            shares[first] = shares.get(first, 0) + channel_shares(read, own)
    runs = []
    for at, own in each.items():
        layer = graph.layers[at]
        if at in shares:
            times = layer.tasks // len(shares[at])
            runs += [_Run(group, times) for group in shares[at]]
            runs += [_Run(own - group.sum(keepdims=True), times) for group in shares[at]]
        elif modelling.is_solid(layer):
            runs.append(_Run(np.array([own * layer.tasks]), 1))
        else:
            runs.append(_Run(np.array([own]), layer.tasks))
    return runs


def _ends(runs: list[_Run], k: int) -> Int64:
    """Behind which vertex each part but the last ends; fewer where there is no more work.

    >>> _ends([_Run(np.array([3]), 3), _Run(np.array([1]), 3)], 2).tolist()
    [3]
    """
    reach = np.cumsum([run.total for run in runs])
    counts = np.cumsum([0, *(len(run.weights) * run.times for run in runs)])
    ends: list[int] = []
    filled = 0
    for _ in range(k - 1):
        # More than the average: (reach - filled) * k > total, in whole numbers.
        bound = filled + int(reach[-1]) // k
        at = int(np.searchsorted(reach, bound, "right"))
        if at == len(runs):
            break
        run = runs[at]
        times, rest = divmod(bound - (int(reach[at]) - run.total), int(run.weights.sum()))
        own = np.cumsum(run.weights)
        place = int(np.searchsorted(own, rest, "right"))
        filled = int(reach[at]) - run.total + times * int(own[-1]) + int(own[place])
        ends.append(int(counts[at]) + times * len(run.weights) + place + 1)
    return np.array(ends, dtype=np.int64)
