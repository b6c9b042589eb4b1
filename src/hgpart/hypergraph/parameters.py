"""CnnVertices -> parameters, gradients and batch statistics of each vertex, once for all slices."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int64
from hgpart.hypergraph.channel_shares import row_shares
from hgpart.hypergraph.cnn_vertices import CnnVertices
from hgpart.layers.channel_graph import PARAMETER

# Sums of maps and of their squares in the forward pass, and two sums of gradients in the backward.
NUMBERS_A_CHANNEL = 4


def vertex_parameters(model: CnnVertices) -> tuple[Int64, Int64]:
    """Parameter elements of each vertex, and their bytes; they add up to the model's.

    A filter channel has its weights; the vertex that finishes a task (the reduction, or the whole
    task) has the rest: biases, and the scales of norms.

    Returns
    -------
    two int64 arrays, shape (vertices of the first band,)
        They hold for a vertex in every slice and band.
    """
    elements = np.zeros(model.in_bands.shape[1], dtype=np.int64)
    in_bytes = np.zeros(model.in_bands.shape[1], dtype=np.int64)
    for at, (view, layout) in enumerate(zip(model.views, model.layouts, strict=True)):
        if layout is None:
            continue
        layer, rows = view.layer, model.blocks.rows[at]
        finish = slice(layout.finish, layout.finish + len(rows) - 1)
        for count, size in view.parameters:
            own = np.diff(count * rows // layer.tasks)
            elements[finish] += own
            in_bytes[finish] += own * size
        if view.split is not None:
            weights = row_shares(view, layer.weights // layer.tasks, model.blocks)
            cells = slice(int(layout.row_starts[0]), layout.finish)
            for totals, size in (elements, 1), (in_bytes, view.weight_bytes):
                totals[cells] += np.concatenate(weights) * size
                totals[finish] -= np.array([row.sum() for row in weights]) * size
    return elements, in_bytes


def vertex_gradients(model: CnnVertices) -> Int64:
    """Bytes of the gradients of each vertex in each tile; 0 where nothing is trained.

    Returns
    -------
    int64 array, shape (vertices of the first band,)
    """
    return vertex_parameters(model)[1] * model.modelling.training


def read_parameters(model: CnnVertices) -> dict[int, tuple[int, int]]:
    """Parameters that others read as data: per layer, the vertex that holds them, and bytes."""
    return {
        at: (layout.finish, view.parameter_bytes)
        for at, (view, layout) in enumerate(zip(model.views, model.layouts, strict=True))
        if layout is not None and view.layer.kind == PARAMETER
    }


def vertex_statistics(model: CnnVertices) -> Int64:
    """Bytes of the statistics that the norms of each vertex take together, in each tile.

    The vertex that finishes a task has them: two numbers forward and two backward for each channel
    that the task's norms normalise. 0 where nothing is trained, or nothing is shared: each slice
    takes its own, and its layer has one band.

    Returns
    -------
    int64 array, shape (vertices of the first band,)
    """
    in_bytes = np.zeros(model.in_bands.shape[1], dtype=np.int64)
    if not model.modelling.training:
        return in_bytes
    of_batch = model.modelling.norms == "batch"
    for at, (view, layout) in enumerate(zip(model.views, model.layouts, strict=True)):
        if layout is not None and (of_batch or view.bands > 1):
            rows = model.blocks.rows[at]
            channels = np.diff(view.layer.batch_statistics * rows // view.layer.tasks)
            bytes_per_channel = NUMBERS_A_CHANNEL * view.element_bytes
            in_bytes[layout.finish : layout.finish + len(channels)] += channels * bytes_per_channel
    return in_bytes
