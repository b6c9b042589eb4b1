"""Partition <-> the part of every task: the vertex order of `hgpart export`, one number a vertex.

The full hypergraph (`single_blocks`) has 24 million vertices for fine-grain VGG16, so neither
direction builds it: a partition of blocks is repeated over their tasks, and a partition of tasks
is cut into the largest blocks that it keeps whole, which is exact.
"""

from __future__ import annotations

import numpy as np

from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import LARGEST_FULL, Blocks, Modelling, full_vertices, layer_vertices
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.hypergraph import Int32, Int64
from hgpart.layers.channel_graph import ChannelGraph, Layer, Read
from hgpart.work.figures import Work


def full_parts(
    graph: ChannelGraph, model: CnnHypergraph, modelling: Modelling, parts: Int32
) -> Int32:
    """Give every vertex of the full hypergraph the part of its block.

    Parameters
    ----------
    graph, model, modelling
        The model's graph, its blocks, and how they were made.
    parts : int32 array, shape (model.vertices,)

    Returns
    -------
    int32 array, shape (full_vertices(graph, modelling),)

    Raises
    ------
    ArgumentError
        If there are too many vertices.
    """
    if (vertices := full_vertices(graph, modelling)) > LARGEST_FULL:
        raise ArgumentError(f"{vertices} vertices: accepted are up to {LARGEST_FULL}")
    pieces = [np.zeros(0, np.int32)]
    for at, (layer, layout) in enumerate(zip(graph.layers, model.layouts, strict=True)):
        if layout is None or layer.tied_to != at:
            continue
        if modelling.is_solid(layer) and modelling.split_read(layer) is None:
            pieces.append(parts[layout.finish : layout.finish + 1])
            continue
        rows = np.repeat(np.arange(len(model.blocks.rows[at]) - 1), np.diff(model.blocks.rows[at]))
        read = modelling.split_read(layer)
        if read is not None:
            positions = _positions(layer, read)
            columns = np.searchsorted(model.blocks.columns[at], positions, "right") - 1
            cells = layout.cell(rows[:, None], columns)
            pieces.append(parts[cells].ravel())
        pieces.append(parts[layout.finish + rows])
    return np.concatenate(pieces)


def blocks_of_parts(
    graph: ChannelGraph, work: Work, modelling: Modelling, parts: Int32
) -> tuple[CnnHypergraph, Int32]:
    """Cut the layers into the largest blocks that a partition of all tasks keeps whole.

    Parameters
    ----------
    parts : int32 array, shape (full_vertices(graph, modelling),)
        Part of every vertex of the full hypergraph.

    Returns
    -------
    CnnHypergraph and int32 array
        The blocks, and the part of each; volume and loads are those of the full hypergraph.

    Raises
    ------
    ArgumentError
        If there is not one part for each vertex.
    """
    expected = full_vertices(graph, modelling)
    if len(parts) != expected:
        raise ArgumentError(f"{len(parts)} parts, expected one for each of {expected} vertices")
    rows: list[Int64] = []
    columns: list[Int64] = []
    pieces = [np.zeros(0, np.int32)]
    first = 0
    for at, layer in enumerate(graph.layers):
        if not modelling.has_vertices(layer) or layer.tied_to != at:
            tied = layer.tied_to != at and modelling.has_vertices(layer)
            rows.append(rows[layer.tied_to] if tied else np.array([0, layer.tasks]))
            columns.append(columns[layer.tied_to] if tied else _one_column(layer, modelling))
            continue
        count = layer_vertices(layer, modelling)
        own = parts[first : first + count]
        first += count
        read = modelling.split_read(layer)
        if read is None:
            cuts = _changes(own[:, None]) if len(own) == layer.tasks else np.array([0, layer.tasks])
            rows.append(cuts)
            columns.append(np.array([0, 1]))
            pieces.append(own if len(own) == 1 else own[cuts[:-1]])
            continue
        per_group = len(read.channels) // read.groups
        cells = own[: -layer.tasks].reshape(layer.tasks, per_group)
        finish = own[-layer.tasks :]
        cuts = np.union1d(_changes(cells), _changes(finish[:, None]))
        if read.groups > 1:
            starts = -(-np.arange(read.groups) * layer.tasks // read.groups)
            cuts = np.union1d(cuts, starts)
        column_cuts = [np.array([len(read.channels)])]
        for group in range(read.groups):
            begin, end = (-(-side * layer.tasks // read.groups) for side in (group, group + 1))
            within = _changes(
                cells[np.unique(np.maximum(cuts[(cuts >= begin) & (cuts < end)], begin))].T
            )
            column_cuts.append(group * per_group + within[:-1])
        rows.append(cuts)
        columns.append(np.unique(np.concatenate(column_cuts)))
        positions = _positions(layer, read)
        for row in cuts[:-1].tolist():
            pieces.append(cells[row][np.isin(positions[row], columns[at])])
        pieces.append(finish[cuts[:-1]])
    model = cnn_hypergraph(graph, work, Blocks(tuple(rows), tuple(columns)), modelling)
    return model, np.ascontiguousarray(np.concatenate(pieces), dtype=np.int32)


def _positions(layer: Layer, read: Read) -> Int64:
    """Positions in a split layer's read that each task reads, shape (tasks, channels a group)."""
    per_group = len(read.channels) // read.groups
    groups = np.arange(layer.tasks) * read.groups // layer.tasks
    return groups[:, None] * per_group + np.arange(per_group)


def _one_column(layer: Layer, modelling: Modelling) -> Int64:
    read = modelling.split_read(layer)
    return np.array([0, 1 if read is None else len(read.channels)])


def _changes(lines: Int32) -> Int64:
    """Where consecutive lines of a table differ, between 0 and their number."""
    differ = (lines[1:] != lines[:-1]).any(axis=1)
    return np.concatenate([[0], np.flatnonzero(differ) + 1, [len(lines)]])
