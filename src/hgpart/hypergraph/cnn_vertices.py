"""Blocks -> CnnVertices: the vertices of a CnnHypergraph, and where each layer's are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.modelling import LayerVertices, Modelling
from hgpart.layers.channel_graph import ChannelGraph


@dataclass(frozen=True)
class CnnVertices:
    """The vertices that a model's blocks make.

    They come slice by slice of the batch, in each slice band by band of the rows, and in each band
    layer by layer: those that have so many bands. Where tasks are split (fine-grain), a layer's
    f(row, column) come row by row, then its reductions r(row). A sum over rows has one column, and
    reductions in the first band alone. Elsewhere a layer has one vertex per row. A layer that is
    tied to an earlier one has no vertices of its own.

    Attributes
    ----------
    graph, blocks, modelling
        What the vertices were made from.
    views : tuple of LayerVertices
        The kinds of vertices of each layer.
    weights : int64 array, shape (vertices,)
        Work of each vertex.
    vertex_layers, vertex_rows : int32 arrays, shape (vertices,)
        The (first) layer of a vertex, and its row block there.
    vertex_columns : int32 array, shape (vertices,)
        The column block of a vertex; -1 for a reduction or a task without cells.
    layouts : tuple of Layout or None
        Numbers of each layer's vertices in the first band of the first slice; None for a layer
        without any. Those of the next slice are higher by `slice_vertices`.
    in_bands : int64 array, shape (bands, vertices of the first band)
        The vertex of each band, in the first slice, with the tasks of a vertex of the first band;
        -1 where its layer has fewer bands.
    """

    graph: ChannelGraph
    blocks: Blocks
    modelling: Modelling
    views: tuple[LayerVertices, ...]
    weights: Int64
    vertex_layers: Int32
    vertex_rows: Int32
    vertex_columns: Int32
    layouts: tuple[Layout | None, ...]
    in_bands: Int64

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return len(self.weights)

    @property
    def slice_vertices(self) -> int:
        """Number of vertices of each slice."""
        return len(self.weights) // self.modelling.slices

    @cached_property
    def vertex_bands(self) -> Int64:
        """The band of each vertex of a slice."""
        return np.nonzero(self.in_bands >= 0)[0]

    @cached_property
    def band_counts(self) -> Int64:
        """For each vertex of a slice, in how many bands its tasks have one."""
        counts: Int64 = (self.in_bands >= 0).sum(axis=0)[self.first_bands]
        return counts

    @cached_property
    def first_bands(self) -> Int64:
        """For each vertex of a slice, the one of the same tasks in the first band."""
        first = np.empty(self.slice_vertices, dtype=np.int64)
        exists = self.in_bands >= 0
        first[self.in_bands[exists]] = np.nonzero(exists)[1]
        return first

    @cached_property
    def task_vertices(self) -> tuple[Int64, ...]:
        """For each layer, the vertex that finishes each task: the reduction, or the task itself.

        In the first band of the first slice.
        """
        return tuple(
            np.zeros(0, np.int64)
            if layout is None
            else layout.finish + np.repeat(np.arange(len(rows) - 1), np.diff(rows))
            for layout, rows in zip(self.layouts, self.blocks.rows, strict=True)
        )


def band_by_band(bands: Int64) -> Int64:
    """Number vertices of some numbers of bands: those of the first band first, and so on.

    Returns
    -------
    int64 array, shape (bands, vertices)
        -1 where a vertex has fewer bands.

    >>> band_by_band(np.array([2, 1, 2])).tolist()
    [[0, 1, 2], [3, -1, 4]]
    """
    exists = bands > np.arange(bands.max(initial=1))[:, None]
    return np.where(exists, np.cumsum(exists).reshape(exists.shape) - 1, -1)


@dataclass(frozen=True)
class Layout:
    """The numbers of a layer's vertices.

    Attributes
    ----------
    finish : int
        The first vertex that finishes a row; ``finish + row`` finishes any other row.
    row_starts : int64 array, shape (rows,)
        In a layer with cells, the vertex of each row's first column block.
    row_columns : int64 array, shape (rows, 2)
        In a layer with cells, the first and last column block of each row (all of them, or those of
        the groups that the row's tasks read).
    """

    finish: int
    row_starts: Int64
    row_columns: Int64

    def cell(self, row: Int64, column: Int64) -> Int64:
        """Vertices f(row, column)."""
        vertices: Int64 = self.row_starts[row] + column - self.row_columns[row, 0]
        return vertices
