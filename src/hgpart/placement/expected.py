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
from hgpart.hypergraph.nets import Nets
from hgpart.layers.channel_graph import PARAMETER, ChannelGraph
from hgpart.partition import Partition
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.shares.messages import messages, with_parameters
from hgpart.placement.shares.owners import in_blocks


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
    partition: Partition, owners: Partition, blueprint: Blueprint, dtype: torch.dtype
) -> Evaluation:
    """Those of the gradients of weights that slices of the batch lie on several parts of.

    Weights go the other way, as many bytes. What does not learn does not travel.

    Parameters
    ----------
    partition : Partition
        Over slices.
    owners : Partition
        Of the model, whose parts have the optimizers of what vertices have; see `shares.owners`.
    blueprint : Blueprint
    dtype : torch.dtype
    """
    k, whole = partition.k, _in_type(blueprint, dtype)
    modelling = replace(partition.modelling, bytes_per_element=None, training=True)
    model = cnn_hypergraph(whole, blueprint.work, owners.model.blocks, modelling)
    by_slice = partition.parts.reshape(modelling.slices, -1)
    parts = by_slice[:, in_blocks(partition.model, model)]
    # The root of a net is a slice that lies where its parameters belong to.
    slices = np.argmax(parts == owners.parts, axis=0)
    found = []
    for names, at_once in messages(whole, blueprint.parameter_shapes, blueprint.trainable):
        graph = with_parameters(whole, names)
        nets = replace(model, views=modelling.views(graph)).parameter_nets
        roots = nets.roots + slices[nets.roots].astype(np.int32) * model.slice_vertices
        gathers = np.ones_like(nets.gathers)  # gradients, of what others read, too
        nets = replace(nets, roots=roots.astype(np.int32), gathers=gathers)
        between = nets.of_parts(model.weights, parts.ravel(), k)
        one = evaluate(between, np.arange(k, dtype=np.int32), k, partition.problem.speeds)
        counts = (one.traffic > 0).astype(one.messages.dtype) if at_once else one.messages
        found.append(replace(one, messages=counts))
    return together(found, partition.problem.speeds)


def expected_statistics(
    partition: Partition, blueprint: Blueprint, dtype: torch.dtype, backward: bool
) -> Evaluation:
    """Those of statistics of norms of the batch in a forward pass, or of their gradients.

    A net's bytes are of both passes: half of them go to whom they belong to, and as many back.
    """
    graph, learns = _in_type(blueprint, dtype), blueprint.learns(inputs=False)
    norms = [len(blueprint.norms_of_batch.get(at, ())) for at in range(len(graph.layers))]
    if backward:
        norms = [count * some for count, some in zip(norms, learns, strict=True)]
    layers = [
        replace(layer, batch_statistics=layer.batch_statistics if count else 0)
        for layer, count in zip(graph.layers, norms, strict=True)
    ]
    graph = replace(graph, layers=tuple(layers))
    modelling = replace(partition.modelling, bytes_per_element=None, training=True)
    model = cnn_hypergraph(graph, blueprint.work, partition.model.blocks, modelling)
    nets, every = model.statistics_nets, np.arange(partition.k, dtype=np.int32)
    between = nets.of_parts(model.weights, partition.parts, partition.k)
    found = evaluate(between, every, partition.k, partition.problem.speeds)
    counts = np.zeros(len(layers), dtype=np.int64)  # of those that share their vertices together
    np.add.at(counts, [layer.tied_to for layer in layers], norms)
    of_nets = counts[model.vertex_layers[nets.roots]]
    messages = np.zeros_like(found.messages)
    for number in range(int(counts.max(initial=0))):
        some = replace(nets, costs=np.where(of_nets > number, nets.costs, 0))
        sent = some.of_parts(model.weights, partition.parts, partition.k)
        messages += evaluate(sent, every, partition.k).messages
    return replace(
        found,
        loads=np.zeros_like(found.loads),
        traffic=(found.traffic + found.traffic.T) // 2,
        messages=messages + messages.T,
    )


def planned_bytes(
    partition: Partition,
    blueprints: Sequence[Blueprint],
    dtype: torch.dtype,
    sizes: Sequence[int],
    learns: bool,
) -> int | None:
    """Bytes of all forward passes of a step by the plan's own hypergraph, over all slices.

    The sum of what all shares send, and of what they have in common, is the same number, found in
    another way. None where a slice has no sample: a plan says nothing of that.

    Parameters
    ----------
    partition : Partition
        Over slices.
    blueprints : sequence of Blueprint
        Of each share.
    dtype : torch.dtype
    sizes : sequence of int
        Samples of each micro-batch.
    learns : bool
        Whether gradients are computed.
    """
    first, total = blueprints[0], 0
    if len(blueprints) == 1:  # slices that lie alike are none
        partition = first.partition
    if min(sizes) < partition.modelling.slices:
        return None
    graph = _in_type(first, dtype)
    graph = with_parameters(graph, first.trainable)
    for number, size in enumerate(sizes):
        modelling = replace(
            partition.modelling, batch_size=size, bytes_per_element=None, training=learns
        )
        model = cnn_hypergraph(graph, first.work, partition.model.blocks, modelling)
        nets = model.map_nets, model.statistics_nets, *([] if number else [model.parameter_nets])
        between = Nets.joined(nets).of_parts(model.weights, partition.parts, partition.k)
        total += evaluate(between, np.arange(partition.k, dtype=np.int32), partition.k).volume
    return total


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
    return evaluate(between, np.arange(k, dtype=np.int32), k, blueprint.partition.problem.speeds)


def _between_parts(blueprint: Blueprint, dtype: torch.dtype, batch_size: int) -> Hypergraph:
    """The hypergraph whose vertices are the parts, for a batch."""
    partition = blueprint.partition
    graph = _in_type(blueprint, dtype)
    modelling = replace(partition.modelling, batch_size=batch_size, bytes_per_element=None)
    model = cnn_hypergraph(graph, blueprint.work, partition.model.blocks, modelling)
    nets = model.nets
    if blueprint.is_share:  # what tasks read of parameters are copies of weights
        sent = [layer.kind != PARAMETER for layer in graph.layers]
        nets = nets.take(np.flatnonzero(np.array(sent)[nets.layers % len(sent)]))
    return nets.of_parts(model.weights, partition.parts, partition.k)


def _in_type(blueprint: Blueprint, dtype: torch.dtype) -> ChannelGraph:
    """The graph as its floating tensors travel."""
    placeholders = blueprint.traced.graph_module.graph.find_nodes(op="placeholder")
    as_traced = float_type(node.meta["val"] for node in placeholders)
    named = blueprint.traced.parameters
    # Not what the model converts to, nor what is complex.
    converted = {
        named[node.name]
        for node in placeholders
        if node.name in named and node.meta["val"].dtype == as_traced
    }
    layers = []
    for layer, nodes in zip(blueprint.graph.layers, blueprint.results, strict=True):
        if nodes and nodes[0].meta["val"].dtype == as_traced:
            layer = replace(layer, bytes_per_element=dtype.itemsize)
        own = tuple(
            replace(one, element_bytes=dtype.itemsize) if one.name in converted else one
            for one in layer.own_parameters
        )
        layers.append(replace(layer, own_parameters=own))
    return replace(blueprint.graph, layers=tuple(layers))


def float_type(tensors: Iterable[Any]) -> torch.dtype:
    """The type of the first floating tensor; float32 where there is none."""
    found = (one.dtype for one in tensors if isinstance(one, torch.Tensor))
    return next((dtype for dtype in found if dtype.is_floating_point), torch.float32)
