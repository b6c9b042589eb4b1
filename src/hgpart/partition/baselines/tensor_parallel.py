"""Problem -> dense layers in pairs, the first by filters, the second by the channels it reads.

Tensor parallelism of transformers (Megatron-LM, Shoeybi et al. 2019), for any model. What the first
layer of a pair makes, and attention heads between them, stays on its part; what the second one adds
up travels as partial sums, and the result to all parts: the two halves of a ring's all-reduce.
"""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.layers.channel_graph import ChannelGraph, Read
from hgpart.partition.baselines.by_slices import dealt
from hgpart.partition.problem.problem import Problem


def tensor_parallel(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Divide dense layers by filters and by channels in turns, all others in equal runs of tasks.

    A layer is divided by the channels it reads if only layers divided by filters made them. Filters
    whose maps a head or another task of a group reads are on that task's part. Partial sums of a
    task are added up where its run of the layer is.

    Returns
    -------
    CnnHypergraph and int32 array
        The fine-grain blocks, and the part of each vertex.
    """
    views, graph = problem.views, problem.graph
    of_task = _parts_of_tasks(problem)
    by_channels = _divided_by_channels(views, graph)

    def of_tasks(view: LayerVertices) -> Int64:
        return of_task[graph.first_task[view.first] :][: view.layer.tasks]

    def of_columns(view: LayerVertices) -> Int64:
        split = view.split
        if split is None or not by_channels[view.at]:
            return np.zeros(view.columns, dtype=np.int64)
        return np.where(split.channels >= 0, of_task[graph.task_of_channel[split.channels]], 0)

    def cuts(view: LayerVertices) -> tuple[Int64, Int64]:
        rows = np.array([0, view.layer.tasks]) if view.is_solid else _runs(of_tasks(view))
        groups = 1 if view.split is None else view.split.groups
        starts = np.arange(groups + 1) * (view.layer.tasks // groups)
        columns = np.arange(groups + 1) * (view.columns // groups)
        if view.split is not None:
            rows = np.union1d(rows, starts)
        return rows, np.union1d(columns, _runs(of_columns(view)))

    model = problem.hypergraph(Blocks.cut(views, cuts))
    layers, columns = model.vertex_layers, model.vertex_columns
    parts = np.empty(model.vertices, dtype=np.int32)
    for at in np.unique(layers).tolist():
        own, blocks = layers == at, model.blocks
        of_rows = of_tasks(views[at])[blocks.rows[at][:-1]][model.vertex_rows[own]]
        is_cell = (columns[own] >= 0) & bool(by_channels[at])
        of_cells = of_columns(views[at])[blocks.columns[at][:-1]][np.maximum(columns[own], 0)]
        parts[own] = np.where(is_cell, of_cells, of_rows)
    return model, parts


def _runs(parts: Int64) -> Int64:
    """Where runs of one part begin, and then the length.

    >>> _runs(np.array([0, 0, 1, 1, 1])).tolist()
    [0, 2, 5]
    """
    return np.flatnonzero(np.append(np.diff(parts, prepend=-1) != 0, True))


def _parts_of_tasks(problem: Problem) -> Int64:
    """The part of each task: that of a task that reads a few of its layer's maps, or its equal run.

    A head reads a few maps of a layer, and so does a residual add, which reads one.
    """
    graph, views = problem.graph, problem.views
    parts = np.full(graph.first_task[-1], -1, dtype=np.int64)
    for view in reversed(views):
        own = parts[graph.first_task[view.at] :][: view.layer.tasks]
        if view.is_solid:
            own[:] = max(own[0], 0)
            continue
        own[:] = np.where(own < 0, dealt(len(own), problem.rates), own)
        for read in view.layer.reads:
            if read.groups > 1:
                _ask(parts, graph, read, own)
    return parts


def _ask(parts: Int64, graph: ChannelGraph, read: Read, readers: Int64) -> None:
    """Put tasks that nobody asked for yet where the first task that reads their group is."""
    group = np.arange(len(read.channels)) * read.groups // len(read.channels)
    of_group = readers[-(-np.arange(read.groups) * len(readers) // read.groups)]
    tasks = graph.task_of_channel[read.channels]
    asked = (read.channels >= 0) & (parts[tasks] < 0)
    parts[tasks[asked]] = of_group[group[asked]]


def _divided_by_channels(views: tuple[LayerVertices, ...], graph: ChannelGraph) -> list[bool]:
    """Whether each layer is the second of a pair."""
    is_inside = [False] * len(views)  # a pair: what a layer makes is read where it is
    second = [False] * len(views)
    for view in views:
        split = view.split
        if split is not None and split.groups == 1:  # a residual that is added is no map it sums
            made_by = graph.layer_of_channel(split.channels[split.channels >= 0])
            second[view.at] = len(made_by) > 0 and all(is_inside[at] for at in np.unique(made_by))
        if any(read.groups == 1 for read in view.layer.reads):
            is_inside[view.at] = split is not None and not second[view.at]
        else:
            sources = graph.sources(view.layer)
            is_inside[view.at] = bool(sources) and all(is_inside[source] for source in sources)
        if view.first != view.at:  # the same vertices
            second[view.at] = second[view.first]
    return second
