"""Partition <-> the part of every task, one number per vertex in the order of `hgpart export`.

The full hypergraph (`single_blocks`) has 24 million vertices for fine-grain VGG16, so neither
direction builds it: a partition of blocks is repeated over their tasks, and a partition of tasks
is cut into the largest blocks that it keeps whole, which is exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import LARGEST_FULL, Blocks, full_vertices
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.cnn_vertices import band_by_band
from hgpart.hypergraph.modelling import LayerVertices, Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.sequences import equal_rows
from hgpart.work.figures import Work


def full_parts(model: CnnHypergraph, parts: Int32) -> Int32:
    """Give every vertex of the full hypergraph the part of its block.

    Parameters
    ----------
    parts : int32 array, shape (model.vertices,)
        Part of each vertex.

    Returns
    -------
    int32 array, shape (slices * full_vertices(model.views),)
        Part of each vertex of the full hypergraph.

    Raises
    ------
    ArgumentError
        If there are too many vertices.
    """
    slices = model.modelling.slices
    if (vertices := slices * full_vertices(model.views)) > LARGEST_FULL:
        raise ArgumentError(f"{vertices} vertices: accepted are up to {LARGEST_FULL}")
    return np.concatenate([_full_slice(model, own) for own in parts.reshape(slices, -1)])


def _full_slice(model: CnnHypergraph, parts: Int32) -> Int32:
    bands = [np.where(own >= 0, parts[own], -1) for own in model.in_bands]
    return np.concatenate([_full_band(model, band, own) for band, own in enumerate(bands)])


def _full_band(model: CnnHypergraph, band: int, parts: Int32) -> Int32:
    pieces = [np.zeros(0, np.int32)]
    for at, (view, layout) in enumerate(zip(model.views, model.layouts, strict=True)):
        if layout is None or not view.is_first:
            continue
        cuts = model.blocks.rows[at]
        rows = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts) // view.tasks_per_row)
        if view.has_cells and band < view.bands:
            positions = _positions(view)
            columns = np.searchsorted(model.blocks.columns[at], positions, "right") - 1
            cells = layout.cell(rows[:, None], columns)
            pieces.append(parts[cells].ravel())
        if band < len(view.row_cuts) - 1:
            pieces.append(parts[layout.finish + rows])
    return np.concatenate(pieces)


def blocks_of_parts(
    graph: ChannelGraph, work: Work, modelling: Modelling, parts: Int32
) -> tuple[CnnHypergraph, Int32]:
    """Cut the layers into the largest blocks that a partition of all tasks keeps whole.

    Parameters
    ----------
    parts : int32 array, shape (slices * full_vertices(modelling.views(graph)),)
        Part of every vertex of the full hypergraph.

    Returns
    -------
    CnnHypergraph and int32 array
        The blocks, and the part of each; volume and loads are those of the full hypergraph.

        The blocks, and the part of each; volume and loads are those of the full hypergraph.
    ------
    ArgumentError
        If there is not one part for each vertex.
    """
    views = modelling.views(graph)
    expected = modelling.slices * full_vertices(views)
    if len(parts) != expected:
        raise ArgumentError(f"{len(parts)} parts, expected one for each of {expected} vertices")
    own = [view for view in views if view.is_own]
    in_bands = band_by_band(np.concatenate([view.vertex_bands for view in own]))
    # Vertices with the same parts in all slices and bands have one number.
    by_tile = np.where(in_bands >= 0, parts.reshape(modelling.slices, -1)[:, in_bands], -1)
    alike, first = equal_rows(by_tile.reshape(-1, in_bands.shape[1]).T.astype(np.int64))
    blocks, numbers = _largest_blocks(views, alike.astype(np.int32))
    of_blocks = by_tile[:, :, first[numbers]]
    model = cnn_hypergraph(graph, work, blocks, modelling)
    return model, of_blocks[:, model.in_bands >= 0].astype(np.int32).ravel()


def _largest_blocks(views: Sequence[LayerVertices], parts: Int32) -> tuple[Blocks, Int32]:
    """The blocks that a partition of all vertices keeps whole, and the part of each."""
    pieces = [np.zeros(0, np.int32)]
    first = 0

    def cuts(view: LayerVertices) -> tuple[Int64, Int64]:
        nonlocal first
        if not view.exists:
            return np.array([0, view.layer.tasks]), np.array([0, view.columns])
        own = parts[first : first + view.count]
        first += view.count
        rows, columns, parts_of_blocks = _cut_layer(view, own)
        pieces.append(parts_of_blocks)
        return rows, columns

    return Blocks.cut(views, cuts), np.concatenate(pieces)


def _cut_layer(view: LayerVertices, parts: Int32) -> tuple[Int64, Int64, Int32]:
    """The largest blocks of a layer's tasks: their rows, their columns, and the part of each."""
    if view.split is not None:
        return _cut_split(view, parts)
    return _cut_whole(view, parts) if view.total is None else _cut_sums(view, parts)


def _cut_whole(view: LayerVertices, parts: Int32) -> tuple[Int64, Int64, Int32]:
    """The largest blocks of tasks that are not split, and their parts."""
    cuts = _changes(parts[:, None])
    return cuts * view.tasks_per_row, np.array([0, 1]), parts[cuts[:-1]]


def _cut_sums(view: LayerVertices, parts: Int32) -> tuple[Int64, Int64, Int32]:
    """The largest blocks of sums over rows, and the parts of their cells and of their vertices."""
    by_row = parts.reshape(2, -1)
    cuts = _changes(by_row.T)
    return cuts * view.tasks_per_row, np.array([0, 1]), by_row[:, cuts[:-1]].ravel()


def _cut_split(view: LayerVertices, parts: Int32) -> tuple[Int64, Int64, Int32]:
    """The largest blocks of split tasks: their rows, their columns, and the part of each block."""
    assert view.split is not None
    tasks, groups, per_task = view.layer.tasks, view.split.groups, view.columns_per_task
    cells = parts[:-tasks].reshape(tasks, per_task)
    finish = parts[-tasks:]
    starts = -(-np.arange(groups + 1) * tasks // groups)
    rows = np.union1d(np.union1d(_changes(cells), _changes(finish[:, None])), starts)
    columns = [np.array([view.columns])]
    for group, (begin, end) in enumerate(itertools.pairwise(starts.tolist())):
        own = cells[rows[(rows >= begin) & (rows < end)]]
        columns.append(group * per_task + _changes(own.T)[:-1])
    cuts = np.unique(np.concatenate(columns))
    positions = _positions(view)
    parts_of_cells = [cells[row][np.isin(positions[row], cuts)] for row in rows[:-1].tolist()]
    return rows, cuts, np.concatenate([*parts_of_cells, finish[rows[:-1]]])


def _positions(view: LayerVertices) -> Int64:
    """Positions in a split layer's read that each task reads, shape (rows, channels per group).

    A sum over rows has one position for all channels.
    """
    if view.split is None:
        return np.zeros((view.rows, 1), dtype=np.int64)
    groups = np.arange(view.layer.tasks) * view.split.groups // view.layer.tasks
    return groups[:, None] * view.columns_per_task + np.arange(view.columns_per_task)


def _changes(lines: Int32) -> Int64:
    """Places where consecutive lines of a table differ, with 0 before and their number after."""
    differ = (lines[1:] != lines[:-1]).any(axis=1)
    return np.concatenate([[0], np.flatnonzero(differ) + 1, [len(lines)]])
