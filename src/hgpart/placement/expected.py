"""Blueprint -> what a pass should send, by the partition's hypergraph, not by the submodules."""

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
from hgpart.partition.problem.project import containing, project
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.shares.messages import messages, with_parameters


def expected(blueprint: Blueprint, dtype: torch.dtype, batch_size: int) -> Evaluation:
    """Figures of a forward pass whose floating tensors are sent in a type."""
    return _evaluated(blueprint, _between_parts(blueprint, dtype, batch_size))


def expected_gradients(blueprint: Blueprint, dtype: torch.dtype, batch_size: int) -> Evaluation:
    """Figures of a backward pass, which sends gradients of all that was sent, in reverse."""
    nets = _between_parts(blueprint, dtype, batch_size)
    returned = np.array(blueprint.returned)[nets.net_layers]
    evaluation = _evaluated(blueprint, replace(nets, costs=np.where(returned, nets.costs, 0)))
    return replace(evaluation, traffic=evaluation.traffic.T, messages=evaluation.messages.T)


def expected_weights(
    partition: Partition,
    owners: Partition,
    blueprint: Blueprint,
    dtype: torch.dtype,
    turn: int | None = None,
) -> Evaluation:
    """Figures of gradients of weights that slices of the batch have on several parts.

    As many bytes of weights go in the opposite direction. What does not learn is not sent.

    Parameters
    ----------
    partition : Partition
        Partition over slices.
    owners : Partition
        Partition of the model by owners of parameters; see `shares.owners`.
    turn : int, optional
        The only slice whose gradients are counted, where slices have batches in turns. Default:
        all slices.
    """
    k, whole = partition.k, _in_type(blueprint, dtype)
    modelling = replace(partition.modelling, bytes_per_element=None, training=True)
    model = cnn_hypergraph(whole, blueprint.work, owners.model.blocks, modelling)
    parts = project(partition.parts, partition.model, model)
    # The root of a net is a tile on the part that owns its parameters.
    slices = np.arange(modelling.slices)[:, None, None] * model.slice_vertices
    tiles = np.where(model.in_bands >= 0, model.in_bands, model.in_bands[0]) + slices
    of_owners = owners.parts[containing(owners.model, model)]
    if turn is not None:  # as if the owners had all other slices: they send themselves nothing
        parts[tiles[np.arange(modelling.slices) != turn]] = of_owners
    tiles = tiles.reshape(-1, model.in_bands.shape[1])
    owning = np.argmax(parts[tiles] == of_owners, axis=0)
    roots_on_owners = tiles[owning, np.arange(len(owning))].astype(np.int32)
    by_message = []
    for names, at_once in messages(whole, blueprint.parameter_shapes, blueprint.trainable):
        graph = with_parameters(whole, names)
        nets = replace(model, views=modelling.views(graph)).parameter_nets
        gathers = np.ones_like(nets.gathers)  # gradients, also of weights that are only read
        nets = replace(nets, roots=roots_on_owners[nets.roots], gathers=gathers)
        between = nets.of_parts(model.weights, parts, k)
        evaluation = evaluate(between, np.arange(k, dtype=np.int32), k, partition.problem.speeds)
        senders = (evaluation.traffic > 0).astype(evaluation.messages.dtype)
        by_message.append(replace(evaluation, messages=senders if at_once else evaluation.messages))
    return together(by_message, partition.problem.speeds)


def expected_statistics(
    partition: Partition, blueprint: Blueprint, dtype: torch.dtype, backward: bool
) -> Evaluation:
    """Figures of statistics of norms of the batch in a forward pass, or of their gradients.

    A net's bytes are those of both passes: half of them go to the owners, and half back.
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
    nets, parts = model.statistics_nets, np.arange(partition.k, dtype=np.int32)
    between = nets.of_parts(model.weights, partition.parts, partition.k)
    evaluation = evaluate(between, parts, partition.k, partition.problem.speeds)
    # Layers that share their vertices count together.
    counts = np.zeros(len(layers), dtype=np.int64)
    np.add.at(counts, [layer.tied_to for layer in layers], norms)
    of_nets = counts[model.vertex_layers[nets.roots]]
    # Of each norm, and of each slice that takes statistics of its own.
    slices = nets.roots // model.slice_vertices
    messages = np.zeros_like(evaluation.messages)
    for number in range(int(counts.max(initial=0))):
        for at in np.unique(slices):
            some = replace(nets, costs=np.where((of_nets > number) & (slices == at), nets.costs, 0))
            sent = some.of_parts(model.weights, partition.parts, partition.k)
            messages += evaluate(sent, parts, partition.k).messages
    return replace(
        evaluation,
        loads=np.zeros_like(evaluation.loads),
        traffic=(evaluation.traffic + evaluation.traffic.T) // 2,
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

    The sum of what all shares send and of their exchanges must be the same number, found in another
    way. None if a slice has no sample, which a plan does not cover.

    Parameters
    ----------
    partition : Partition
        Partition over slices.
    blueprints : sequence of Blueprint
        Blueprint of each share.
    sizes : sequence of int
        Samples of each micro-batch.
    learns : bool
        Whether gradients are computed.
    """
    first, total = blueprints[0], 0
    if len(blueprints) == 1:  # all slices have the same layout: there are none
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


def together(figures: Sequence[Evaluation], speeds: Sequence[float] | None) -> Evaluation:
    """Figures of several partitions of the same parts, run one after the other."""
    loads = reduce(add, (evaluation.loads for evaluation in figures))
    return Evaluation(
        k=figures[0].k,
        loads=loads,
        imbalance=imbalance(loads, speeds),
        volume=sum(evaluation.volume for evaluation in figures),
        cut_net=sum(evaluation.cut_net for evaluation in figures),
        traffic=reduce(add, (evaluation.traffic for evaluation in figures)),
        messages=reduce(add, (evaluation.messages for evaluation in figures)),
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
    nets = model.map_nets
    if blueprint.is_share:  # parameters that tasks read are copies, and not sent
        sent = [layer.kind != PARAMETER for layer in graph.layers]
        nets = nets.take(np.flatnonzero(np.array(sent)[nets.layers % len(sent)]))
    return nets.of_parts(model.weights, partition.parts, partition.k)


def _in_type(blueprint: Blueprint, dtype: torch.dtype) -> ChannelGraph:
    """The graph with floating tensors in the type in which they are sent."""
    placeholders = blueprint.traced.graph_module.graph.find_nodes(op="placeholder")
    as_traced = float_type(node.meta["val"] for node in placeholders)
    named = blueprint.traced.parameters
    # Neither tensors that the model converts itself, nor complex ones.
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
            replace(weight, element_bytes=dtype.itemsize) if weight.name in converted else weight
            for weight in layer.own_parameters
        )
        layers.append(replace(layer, own_parameters=own))
    return replace(blueprint.graph, layers=tuple(layers))


def float_type(tensors: Iterable[Any]) -> torch.dtype:
    """The type of the first floating tensor; float32 if there is none."""
    types = (tensor.dtype for tensor in tensors if isinstance(tensor, torch.Tensor))
    return next((dtype for dtype in types if dtype.is_floating_point), torch.float32)
