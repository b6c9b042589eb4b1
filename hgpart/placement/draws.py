"""Random masks of a model, drawn whole and in the model's order, so that every part sees the same.

With the same seed they are the masks that the unpartitioned model draws, whatever the parts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import fx

from hgpart.channels import Call
from hgpart.graph import ChannelGraph
from hgpart.placement.node_facts import NodeFacts
from hgpart.placement.step_graph import StepGraph, packet_of
from hgpart.tracing import TracedModel

aten = torch.ops.aten


def random_nodes(traced: TracedModel, graph: ChannelGraph) -> dict[fx.Node, str]:
    """Random operators whose numbers depend on no map, and the placeholder of what is drawn."""
    found: dict[fx.Node, str] = {}
    for node in traced.graph_module.graph.nodes:
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        masks = getattr(node.target, "overloadpacket", None) is aten.native_dropout
        if masks or node.name not in graph.ids:
            found[node] = f"draw_{len(found)}"
    return found


def draw_module(facts: NodeFacts, nodes: Mapping[fx.Node, str]) -> fx.GraphModule:
    """A module that draws all masks for a batch size, as a tuple, from torch's own generator."""
    step = StepGraph(facts, 0, np.zeros(0, np.int64), {}, {})
    step.placeholder("batch_size")
    drawn = []
    for node in nodes:
        if packet_of(node) is aten.native_dropout:
            operand = node.all_input_nodes[0]
            dtype = operand.meta["val"].dtype
            ones = step.fx_graph.call_function(
                aten.ones.default,
                (step.sizes(operand, {}),),
                {"dtype": dtype, "device": torch.device("cpu")},
            )
            call = Call(node, node.args, dict(node.kwargs), ())
            drawn.append(
                step.call(aten.dropout.default, ones, call.argument("p"), call.argument("train"))
            )
        else:
            drawn.append(step.value(node))
    step.fx_graph.output(tuple(drawn))
    return fx.GraphModule(step.root, step.fx_graph, class_name="Draws")
