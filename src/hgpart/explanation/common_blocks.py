"""Two partitions of one modelling -> the parts of each on blocks that both keep whole."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition import Partition


def are_alike(first: Modelling, second: Modelling) -> bool:
    """Whether two models of a graph have the same tasks as vertices."""
    fields = ("grain", "linear", "slices", "bands", "input_vertex", "output_vertex", "batch_size")
    return all(getattr(first, name) == getattr(second, name) for name in fields)


def on_common_blocks(first: Partition, second: Partition) -> tuple[CnnHypergraph, Int32, Int32]:
    """The hypergraph of blocks that both partitions keep whole, and the parts of each.

    Figures of both stay what they are, as blocks are exact.
    """
    blocks = Blocks(
        rows=_united(first.model.blocks.rows, second.model.blocks.rows),
        columns=_united(first.model.blocks.columns, second.model.blocks.columns),
    )
    common = first.problem.hypergraph(blocks)
    return common, _refined(first, common), _refined(second, common)


def _united(first: tuple[Int64, ...], second: tuple[Int64, ...]) -> tuple[Int64, ...]:
    return tuple(np.union1d(*cuts) for cuts in zip(first, second, strict=True))


def _refined(partition: Partition, common: CnnHypergraph) -> Int32:
    """The part of each vertex of smaller blocks."""
    model, slices = partition.model, partition.modelling.slices
    held_by = _blocks_of(model, common)
    of_slice = np.empty(common.slice_vertices, dtype=np.int64)
    for own, smaller in zip(model.in_bands, common.in_bands, strict=True):
        there = smaller >= 0
        of_slice[smaller[there]] = own[held_by[there]]
    parts: Int32 = partition.parts.reshape(slices, -1)[:, of_slice].ravel()
    return parts


def _blocks_of(model: CnnHypergraph, common: CnnHypergraph) -> Int64:
    """For each vertex of smaller blocks in the first band, the vertex that it is a piece of."""
    count = common.in_bands.shape[1]
    vertices = np.empty(count, dtype=np.int64)
    layers, rows = common.vertex_layers[:count], common.vertex_rows[:count]
    columns = common.vertex_columns[:count]
    for at, layout in enumerate(model.layouts):
        own = np.flatnonzero(layers == at)
        if layout is None or not len(own):
            continue
        firsts = common.blocks.rows[at][rows[own]]
        row = np.searchsorted(model.blocks.rows[at], firsts, "right") - 1
        is_cell = columns[own] >= 0
        starts = common.blocks.columns[at][np.maximum(columns[own], 0)]
        column = np.searchsorted(model.blocks.columns[at], starts, "right") - 1
        whole = layout.finish + row
        vertices[own] = whole
        vertices[own[is_cell]] = layout.cell(row[is_cell], column[is_cell])
    return vertices
