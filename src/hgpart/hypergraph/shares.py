"""CnnHypergraph + parts -> the work, parameters and maps of each part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.metrics import traffic
from hgpart.hypergraph.nets import Nets
from hgpart.hypergraph.parameters import vertex_parameters
from hgpart.sequences import distinct_pairs


@dataclass(frozen=True)
class PartShares:
    """The work, parameters and maps that each of k parts holds.

    Attributes
    ----------
    parameters, parameter_bytes : int64 arrays, shape (k,)
        Numbers of parameter elements, and their bytes.
    activation_bytes : int64 array, shape (k,)
        Bytes, for one batch, of feature maps that the part makes, and of maps, partial sums and
        parameters that it receives from others.
    layer_work, layer_parameter_bytes, layer_map_bytes : int64 arrays, shape (layers, k)
        Work, bytes of parameters, and bytes of the maps that are made, of each layer in each part;
        tied layers count with the first of them.
    layer_tasks : int64 array, shape (layers, k)
        Number of tasks of each layer that each part finishes.
    """

    parameters: Int64
    parameter_bytes: Int64
    activation_bytes: Int64
    layer_work: Int64
    layer_parameter_bytes: Int64
    layer_map_bytes: Int64
    layer_tasks: Int64


def part_shares(model: CnnHypergraph, parts: Int32, k: int) -> PartShares:
    """Add up what each part holds; parameters add up to the model's, each element once.

    Where the batch is in slices, a part holds once what any of its slices needs.
    """
    layer_tasks = np.zeros((len(model.views), k), dtype=np.int64)
    parameters = np.zeros(k, dtype=np.int64)
    parameter_bytes, made = np.zeros_like(layer_tasks), np.zeros_like(layer_tasks)
    elements, in_bytes = vertex_parameters(model)
    by_slice = parts.reshape(model.modelling.slices, -1)
    every = np.tile(model.first_bands, len(by_slice))
    held, vertices = distinct_pairs(by_slice.ravel().astype(np.int64), every)
    np.add.at(parameters, held, elements[vertices])
    np.add.at(parameter_bytes, (model.vertex_layers[vertices], held), in_bytes[vertices])
    for samples, own in zip(model.modelling.samples, by_slice, strict=True):
        views = model.modelling.of_samples(samples).views(model.graph)
        for at, (view, layout) in enumerate(zip(views, model.layouts, strict=True)):
            if layout is None:
                continue
            sizes = np.diff(model.blocks.rows[at])
            finish = layout.finish + np.arange(len(sizes))
            for band, rows in enumerate(np.diff(view.row_cuts).tolist()):
                finishing = own[model.in_bands[band][finish]]
                np.add.at(layer_tasks[at], finishing, sizes)
                of_band = sizes * (view.map_bytes // view.height * rows)
                np.add.at(made[view.first], finishing, of_band)
    read = model.parameter_nets.take(np.flatnonzero(~model.parameter_nets.gathers))
    between = Nets.joined([model.map_nets, read]).of_parts(model.weights, parts, k)
    received = traffic(between, np.arange(k, dtype=np.int32), k).sum(axis=0)
    return PartShares(
        parameters,
        parameter_bytes.sum(axis=0),
        made.sum(axis=0) + received,
        work_of_layers(model, parts, k),
        parameter_bytes,
        made,
        layer_tasks,
    )


def work_of_layers(model: CnnHypergraph, parts: Int32, k: int) -> Int64:
    """Work of each layer in each part, shape (layers, k); tied layers count with the first."""
    work = np.zeros((len(model.views), k), dtype=np.int64)
    np.add.at(work, (model.vertex_layers, parts), model.weights)
    return work
