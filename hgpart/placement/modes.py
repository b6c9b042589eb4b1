"""Partition of a graph -> that of the graph in another mode, or for other sizes of inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from hgpart.arrays import Int32, Int64
from hgpart.errors import PlacementError
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.layers.channel_graph import ChannelGraph, Layer
from hgpart.operators.calls import has_gradients
from hgpart.partition import Partition
from hgpart.partition.partition import evaluated
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import Work

M = TypeVar("M", bound=nn.Module)


def skeleton(model: M) -> M:
    """A copy of a model without its weights: the floating tensors of its state are on meta."""
    kept = {
        id(tensor): _without_storage(tensor)
        for tensor in model.state_dict(keep_vars=True).values()
        if isinstance(tensor, torch.Tensor) and has_gradients(tensor.dtype)
    }
    # What a model has computed of its weights, and keeps, torch does not copy with its history.
    for module in model.modules():
        for value in pytree.tree_leaves(vars(module)):
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                kept[id(value)] = value.detach()
    return copy.deepcopy(model, dict(kept))


def _without_storage(tensor: torch.Tensor) -> torch.Tensor:
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def carried_over(
    partition: Partition, work: Work, graph: ChannelGraph, other: ChannelGraph
) -> tuple[Partition, Work]:
    """Give each layer of another graph of the same model to those who have it in this one.

    Layers are known by their names. One that only the other graph has goes with the first layer
    that it reads: task by task where that makes as many channels as it has tasks, else whole; if it
    has parameters, and this graph none of them, then whole to part 0, which holds what is of no use
    here. Its work is not known, and counts as none.
    """
    views = partition.modelling.views(other)
    index = {layer.name: at for at, layer in enumerate(graph.layers)}
    used = {name for layer in graph.layers for name in layer.parameter_names}
    divided: list[_Divided] = []
    per_task = np.zeros(len(other.layers), dtype=np.int64)
    for at, view in enumerate(views):
        layer = view.layer
        known = index.get(layer.name)
        if known is not None and not _alike(graph.layers[known], layer):
            known = None
        if known is not None:
            per_task[at] = work.per_task[known]
        if not view.is_first:
            divided.append(replace(divided[view.first], parts=np.zeros(0, np.int32)))
        elif known is not None:
            divided.append(_as_it_is(partition, known))
        else:
            idle = bool(layer.parameter_names) and used.isdisjoint(layer.parameter_names)
            sources = () if idle else other.sources(layer)
            divided.append(_with_source(sources, other, view, divided))
    carried = Work(per_task, work.unit, work.units, work.source)
    blocks = Blocks(tuple(one.rows for one in divided), tuple(one.columns for one in divided))
    problem = Problem(
        other,
        carried,
        partition.modelling,
        partition.k,
        partition.eps,
        partition.speeds,
        partition.objective,
        partition.memory,
    )
    found = evaluated(
        problem,
        problem.hypergraph(blocks),
        np.concatenate([one.parts for one in divided]),
        seed=partition.seed,
        backend=partition.backend,
        start=partition.start,
        bound=0,
    )
    return found, carried


def check_same_layers(graph: ChannelGraph, other: ChannelGraph, sizes: str) -> None:
    """Raise a PlacementError unless a model has the same layers, but for sizes of maps."""
    for one, layer in zip_longest(graph.layers, other.layers):
        if one is None or layer is None or _facts(one) != _facts(layer):
            name = (layer or one).name
            raise PlacementError(
                f"inputs of {sizes}, with which layer {name} is not as the model was placed: "
                "accepted are sizes for which it has the same layers, channels and parameters"
            )


def _facts(layer: Layer) -> object:
    """What of a layer does not depend on the sizes of maps."""
    reads = [(one.channels.tolist(), one.groups, one.partial) for one in layer.reads]
    own = [(one.name, one.elements) for one in layer.own_parameters]
    parameters = own, layer.weights, layer.parameter_names
    return layer.name, layer.kind, layer.tasks, layer.channels, layer.tied_to, parameters, reads


@dataclass(frozen=True)
class _Divided:
    """Blocks of a layer's tasks and channels, who finishes each row, the parts of its vertices."""

    rows: Int64
    columns: Int64
    finish: Int32
    parts: Int32


def _alike(first: Layer, second: Layer) -> bool:
    def split(layer: Layer) -> list[tuple[int, int]]:
        return [(len(read.channels), read.groups) for read in layer.reads if read.partial]

    return (first.kind, first.tasks, split(first)) == (second.kind, second.tasks, split(second))


def _as_it_is(partition: Partition, at: int) -> _Divided:
    model = partition.model
    rows, columns, layout = model.blocks.rows[at], model.blocks.columns[at], model.layouts[at]
    if layout is None:  # it has no vertices
        nothing = np.zeros(0, np.int32)
        return _Divided(rows, columns, nothing, nothing)
    end = layout.finish + len(rows) - 1
    return _Divided(
        rows,
        columns,
        partition.parts[layout.finish : end],
        partition.parts[layout.row_starts[0] : end],
    )


def _with_source(
    sources: Iterable[int], graph: ChannelGraph, view: LayerVertices, divided: list[_Divided]
) -> _Divided:
    tasks = view.layer.tasks
    rows, finish = np.array([0, tasks]), np.zeros(1, dtype=np.int32)
    for source in sources:
        of_source = divided[source]
        if len(of_source.finish):
            finish = of_source.finish[:1]
            if graph.layers[source].tasks == tasks and not view.is_solid:
                rows, finish = of_source.rows, of_source.finish
            break
    columns = np.array([0, view.columns])
    # All cells of a row are where it is finished.
    parts = finish if view.split is None else np.concatenate([finish, finish])
    return _Divided(rows, columns, finish, parts)
