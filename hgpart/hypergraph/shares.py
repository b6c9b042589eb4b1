"""CnnHypergraph + parts -> what each part holds: work, parameters, maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.building import CnnHypergraph, row_shares
from hgpart.hypergraph.metrics import traffic


@dataclass(frozen=True)
class PartShares:
    """What each of k parts holds.

    Attributes
    ----------
    parameters, parameter_bytes : int64 arrays, shape (k,)
        Parameter elements, and their bytes.
    activation_bytes : int64 array, shape (k,)
        Feature maps that the part makes, and maps and partial sums that it receives, for one
        batch.
    layer_work : int64 array, shape (layers, k)
        Work of each layer in each part; that of tied layers stands with the first of them.
    layer_tasks : int64 array, shape (layers, k)
        Tasks of each layer that each part finishes.
    """

    parameters: Int64
    parameter_bytes: Int64
    activation_bytes: Int64
    layer_work: Int64
    layer_tasks: Int64


def part_shares(model: CnnHypergraph, parts: Int32, k: int) -> PartShares:
    """Add up what each part holds; parameters add up to the model's, each element once."""
    layers = len(model.views)
    layer_work = np.zeros((layers, k), dtype=np.int64)
    np.add.at(layer_work, (model.vertex_layers, parts), model.weights)
    layer_tasks = np.zeros((layers, k), dtype=np.int64)
    parameters = np.zeros(k, dtype=np.int64)
    parameter_bytes = np.zeros(k, dtype=np.int64)
    made = np.zeros(k, dtype=np.int64)
    for at, (view, layout) in enumerate(zip(model.views, model.layouts, strict=True)):
        if layout is None:
            continue
        layer, rows = view.layer, model.blocks.rows[at]
        sizes = np.diff(rows)
        finishing = parts[layout.finish + np.arange(len(sizes))]
        np.add.at(layer_tasks[at], finishing, sizes)
        np.add.at(made, finishing, sizes * view.map_bytes)
        held = np.diff(layer.parameters * rows // layer.tasks)
        own = np.zeros(k, dtype=np.int64)
        if view.split is not None:
            cells = slice(int(layout.row_starts[0]), layout.finish)
            weights = row_shares(view, layer.weights // layer.tasks, model.blocks)
            np.add.at(own, parts[cells], np.concatenate(weights))
            held -= [row.sum() for row in weights]
        np.add.at(own, finishing, held)
        parameters += own
        parameter_bytes += own * view.element_bytes
    between = model.nets.of_parts(model.weights, parts, k)
    received = traffic(between, np.arange(k, dtype=np.int32), k).sum(axis=0)
    return PartShares(parameters, parameter_bytes, made + received, layer_work, layer_tasks)
