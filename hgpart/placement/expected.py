"""Blueprint -> what a pass should send, by the partition's hypergraph and not the submodules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch

from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import Evaluation, evaluate, imbalance
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.placement.blueprint import Blueprint
from hgpart.work.figures import Work


def expected(blueprint: Blueprint, dtype: torch.dtype, batch_size: int) -> Evaluation:
    """The figures of a forward pass, in which floating tensors travel in a type."""
    return _evaluated(blueprint, _between_parts(blueprint, dtype, batch_size))


def expected_gradients(blueprint: Blueprint, dtype: torch.dtype, batch_size: int) -> Evaluation:
    """Those of a backward pass, which sends gradients of what was sent, the other way."""
    nets = _between_parts(blueprint, dtype, batch_size)
    returned = np.array(blueprint.returned)[nets.net_layers]
    found = _evaluated(blueprint, replace(nets, costs=np.where(returned, nets.costs, 0)))
    return replace(found, traffic=found.traffic.T, messages=found.messages.T)


def expected_weights(
    partition: Partition, work: Work, blueprint: Blueprint, dtype: torch.dtype
) -> Evaluation:
    """Those of the gradients of weights that slices of the batch lie on several parts of.

    Weights go the other way, as many bytes. Of layers without parameters to learn there are none.
    """
    graph = _in_type(blueprint, dtype)
    modelling = replace(partition.modelling, bytes_per_element=None, training=True)
    model = cnn_hypergraph(graph, work, partition.model.blocks, modelling)
    learns = [not blueprint.trainable.isdisjoint(one.parameter_names) for one in graph.layers]
    nets = model.parameter_nets
    own = model.vertex_layers[nets.roots]
    costs = np.where(np.array(learns)[own], nets.costs, 0)
    between = replace(nets, costs=costs).of_parts(model.weights, partition.parts, partition.k)
    return evaluate(between, np.arange(partition.k, dtype=np.int32), partition.k, partition.speeds)


def together(found: Sequence[Evaluation], speeds: Sequence[float] | None) -> Evaluation:
    """The figures of several partitions of the same parts, run one after the other."""
    loads = reduce(add, (one.loads for one in found))
    return Evaluation(
        k=found[0].k,
        loads=loads,
        imbalance=imbalance(loads, speeds),
        volume=sum(one.volume for one in found),
        cut_net=sum(one.cut_net for one in found),
        traffic=reduce(add, (one.traffic for one in found)),
        messages=reduce(add, (one.messages for one in found)),
    )


def _evaluated(blueprint: Blueprint, between: Hypergraph) -> Evaluation:
    k = blueprint.partition.k
    return evaluate(between, np.arange(k, dtype=np.int32), k, blueprint.partition.speeds)


def _between_parts(blueprint: Blueprint, dtype: torch.dtype, batch_size: int) -> Hypergraph:
    """The hypergraph whose vertices are the parts, for a batch."""
    partition = blueprint.partition
    graph = _in_type(blueprint, dtype)
    modelling = replace(partition.modelling, batch_size=batch_size, bytes_per_element=None)
    model = cnn_hypergraph(graph, blueprint.work, partition.model.blocks, modelling)
    return model.nets.of_parts(model.weights, partition.parts, partition.k)


def _in_type(blueprint: Blueprint, dtype: torch.dtype) -> ChannelGraph:
    """The graph as its floating tensors travel."""
    as_traced = float_type(
        node.meta["val"]
        for node in blueprint.traced.graph_module.graph.find_nodes(op="placeholder")
    )
    layers = tuple(
        replace(layer, bytes_per_element=dtype.itemsize)
        if nodes and nodes[0].meta["val"].dtype == as_traced  # not what the model converts to
        else layer
        for layer, nodes in zip(blueprint.graph.layers, blueprint.results, strict=True)
    )
    return replace(blueprint.graph, layers=layers)


def float_type(tensors: Iterable[Any]) -> torch.dtype:
    """The type of the first floating tensor; float32 where there is none."""
    found = (one.dtype for one in tensors if isinstance(one, torch.Tensor))
    return next((dtype for dtype in found if dtype.is_floating_point), torch.float32)
