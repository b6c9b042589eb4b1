"""TracedModel + ChannelGraph -> LayerModule: the operators of one layer, on their own."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from hgpart.layers.channel_graph import ChannelGraph, Layer
from hgpart.operators.table import callable_of
from hgpart.tracing.batches import at_batch
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import holds_tensors, results_read


@dataclass(frozen=True)
class LayerModule:
    """The operators of one layer, on their own.

    Attributes
    ----------
    module : torch.fx.GraphModule
        Called with the operands, it returns the results as a tuple.
    operands : tuple of fx.Node
        Nodes of the traced graph whose values the layer reads: maps of other layers, inputs,
        parameters and buffers.
    results : tuple of fx.Node
        Nodes of the traced graph whose values the layer makes for others; empty for a norm of
        which only the statistics are used.
    """

    module: fx.GraphModule
    operands: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]


def layer_module(
    traced: TracedModel,
    graph: ChannelGraph,
    layer: Layer,
    batch_size: int,
    device: torch.device | str = "cpu",
) -> LayerModule:
    """Cut a layer out of the traced graph, with the re-indexing in front of it.

    Sizes that depend on the batch become numbers, so that a layer needs no tensor just for its
    size; tensors that the operators create are on `device`.

    >>> from torch import nn
    >>> from hgpart.layers.layering import channel_graph
    >>> from hgpart.tracing.traced_model import example_inputs, trace
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4))
    >>> traced = trace(model, example_inputs(model, (3, 5, 5)))
    >>> graph = channel_graph(traced)
    >>> alone = layer_module(traced, graph, graph.layers[2], batch_size=7)
    >>> [node.name for node in alone.operands], graph.layers[2].operators
    (['p_3_weight', 'p_3_bias', 'relu'], ('linear',))
    >>> alone.module(torch.zeros(4, 72), torch.zeros(4), torch.zeros(7, 8, 3, 3))[0].shape
    torch.Size([7, 4])
    """
    nodes = {node.name: node for node in traced.graph_module.graph.nodes}
    all_operators = {name for each_layer in graph.layers for name in each_layer.operators}
    elsewhere = all_operators - {*layer.operators}
    results = results_read(nodes[layer.operators[-1]], traced.results)
    operands, inside = set(), set()
    waiting = list(results) or [nodes[layer.operators[-1]]]
    while waiting:
        node = waiting.pop()
        if node in inside or node in operands or not holds_tensors(node):
            continue
        if node.op == "placeholder" or _maker(node).name in elsewhere:
            operands.add(node)
        else:
            inside.add(node)
            waiting.extend(node.all_input_nodes)

    def copied(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return copies[value] if value in copies else at_batch(value.meta["val"], batch_size)
        return torch.device(device) if isinstance(value, torch.device) else value

    alone = fx.Graph()
    taken = tuple(node for node in nodes.values() if node in operands)
    copies = {node: alone.placeholder(node.name) for node in taken}
    for node in nodes.values():
        if node in inside:
            copy = alone.create_node(
                node.op,
                callable_of(node),
                map_aggregate(node.args, copied),
                map_aggregate(node.kwargs, copied),
                node.name,
            )
            copies[node] = copy
    alone.output(tuple(copies[node] for node in results))
    return LayerModule(fx.GraphModule(traced.graph_module, alone), taken, results)


def _maker(node: fx.Node) -> fx.Node:
    """The operator that made a value, perhaps as one of several results."""
    while node.target is operator.getitem:
        assert isinstance(node.args[0], fx.Node)
        node = node.args[0]
    return node
