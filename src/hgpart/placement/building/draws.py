"""Random masks of a model, drawn whole and in the model's order, so that all parts use the same.

With the same seed they are the masks that the unpartitioned model draws, for any partition.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import fx

from hgpart.errors import PlacementError
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.operators.calls import argument, module_of
from hgpart.operators.table import operator_of
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.tracing.autograd_functions import operator_name
from hgpart.tracing.batches import at_batch
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import holds_tensors

aten = torch.ops.aten


def random_nodes(traced: TracedModel, graph: ChannelGraph) -> dict[fx.Node, str]:
    """Random operators that depend on no data, and the placeholder of what is drawn for each.

    For dropout its mask is drawn, whatever it drops.

    Raises
    ------
    PlacementError
        If another operator draws random numbers, as parts could not draw the same as the whole
        model.
    """
    draws: dict[fx.Node, str] = {}
    for node in traced.graph_module.graph.nodes:
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        named = f"{operator_name(node.target)} ({module_of(node) or 'the model itself'})"
        if node.kwargs.get("generator") is not None:
            raise PlacementError(f"{named} draws from a generator of its own: accepted is torch's")
        if operator_of(node).draws_in_order and not _lies_in_order(node.all_input_nodes[0]):
            raise PlacementError(
                f"{named} draws in the order of the memory, for a tensor whose memory is not in "
                "the order of its dimensions: accepted is one made by new_empty"
            )
        if operator_of(node).cut == "dropout" or not _depends_on_data(node, graph):
            draws[node] = f"draw_{len(draws)}"
        elif _draws(node):
            raise PlacementError(
                f"{named} draws random numbers that depend on maps, parameters or buffers: "
                "accepted are dropout, and numbers drawn for a shape"
            )
    return draws


def _lies_in_order(node: fx.Node) -> bool:
    """Whether a tensor's memory is in the order of its dimensions."""
    value = node.meta["val"]
    sizes = [at_batch(size, 2) for size in value.shape]
    strides = [at_batch(stride, 2) for stride in value.stride()]
    return torch.empty_strided(sizes, strides, device="meta").is_contiguous()


def _depends_on_data(node: fx.Node, graph: ChannelGraph) -> bool:
    """Whether a node uses more of maps, parameters and buffers than their shapes."""
    known = operator_of(node)
    if node.name in graph.ids or node.op in ("placeholder", "get_attr") or known.cut == "dropout":
        return True
    operands = () if known.makes else node.all_input_nodes
    return any(_depends_on_data(operand, graph) for operand in operands if holds_tensors(operand))


def _draws(node: fx.Node) -> bool:
    """Whether a call draws numbers: if it can, it still needs training mode and a probability."""
    training = argument(node, "training", argument(node, "train"))
    probability = argument(node, "dropout", argument(node, "dropout_p"))
    return training is not False and probability != 0.0


def draw_module(facts: NodeFacts, nodes: Mapping[fx.Node, str]) -> fx.GraphModule:
    """A module that draws all masks for a batch size, as a tuple, from torch's own generator."""
    step = CutGraph(facts, 0, np.zeros(0, np.int64), {}, {})
    step.placeholder("batch_size")
    drawn, made = [], dict[fx.Node, fx.Node]()
    for node in nodes:
        if operator_of(node).cut == "dropout":
            ones = step.call(aten.ones_like.default, _empty(step, node.all_input_nodes[0]))
            options = argument(node, "p"), argument(node, "train")
            drawn.append(step.call(aten.dropout.default, ones, *options))
        else:
            drawn.append(_made(step, node, made))
    step.fx_graph.output(tuple(drawn))
    return fx.GraphModule(step.root, step.fx_graph, class_name="Draws")


def _made(step: CutGraph, node: fx.Node, made: dict[fx.Node, fx.Node]) -> fx.Node:
    """A node that is made without data, once, with the memory layout that the model gives it."""
    if node not in made:
        of_shapes = operator_of(node).makes is not None
        operands = {
            operand: _empty(step, operand) if of_shapes else _made(step, operand, made)
            for operand in step.operands(node)
        }
        made[node] = step.emit(node, operands)
    return made[node]


def _empty(step: CutGraph, node: fx.Node) -> fx.Node:
    """A tensor with the memory layout of a node's, in whose order the model draws for it."""
    value = node.meta["val"]
    strides = [step.at_any_batch(stride) for stride in value.stride()]
    like = {"dtype": value.dtype, "device": torch.device("cpu")}
    return step.fx_graph.call_function(
        aten.empty_strided.default, (step.sizes(node, {}), strides), like
    )
