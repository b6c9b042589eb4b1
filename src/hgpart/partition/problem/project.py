"""Parts of blocks -> parts of other blocks of the same model: down to single tasks, or finer."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.building import CnnHypergraph


def project(parts: Int32, source: CnnHypergraph, target: CnnHypergraph) -> Int32:
    """Give each vertex of `target` the part of the vertex of `source` that holds its first task.

    Exact where the blocks of `target` lie within those of `source`. Cells take the part of whole
    tasks, and all bands that of the only one.

    Parameters
    ----------
    parts : int32 array, shape (source vertices,)
    source, target : CnnHypergraph
        Blocks of one ChannelGraph with the same `Modelling`; but `source` may be coarse-grain, or
        without bands.

    Returns
    -------
    int32 array, shape (target vertices,)
    """
    by_slice = parts.reshape(source.modelling.slices, -1)
    held = containing(source, target)
    exists = target.in_bands >= 0
    in_bands = np.broadcast_to(source.in_bands[: len(exists), held], exists.shape)
    return by_slice[:, in_bands[exists]].ravel()


def containing(source: CnnHypergraph, target: CnnHypergraph) -> Int64:
    """The vertex of `source` that holds the first task of each of `target`, in the first band."""
    held = np.empty(target.in_bands.shape[1], dtype=np.int64)
    starts = np.searchsorted(target.vertex_layers[: len(held)], np.arange(len(target.layouts) + 1))
    for at, layout in enumerate(source.layouts):
        own = slice(int(starts[at]), int(starts[at + 1]))
        if layout is None or own.start == own.stop:
            continue
        tasks = target.blocks.rows[at][target.vertex_rows[own]]
        rows = np.searchsorted(source.blocks.rows[at], tasks, "right") - 1
        finish, columns = layout.finish + rows, target.vertex_columns[own]
        if not source.views[at].has_cells:
            held[own] = finish
            continue
        positions = target.blocks.columns[at][np.maximum(columns, 0)]
        cells = layout.cell(
            rows, np.searchsorted(source.blocks.columns[at], positions, "right") - 1
        )
        held[own] = np.where(columns < 0, finish, cells)
    return held
