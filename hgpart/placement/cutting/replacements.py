"""Operators that a step calls in another form: norms in place, dropout with a mask, copies."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from hgpart.layers.channels import Call
from hgpart.placement.cutting.reindexing import copied
from hgpart.placement.cutting.step_graph import Box, StepGraph
from hgpart.tracing.operator_calls import SHAPE_ONLY, packet_of

aten = torch.ops.aten

BATCH_NORMS = (
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training,
)
REPLACED = (*BATCH_NORMS, aten.native_dropout, aten.copy, *SHAPE_ONLY)


def replace(step: StepGraph, node: fx.Node, boxes: Mapping[fx.Node, Box]) -> fx.Node:
    """Emit an operator of `REPLACED`; the node stands for its first result."""
    packet = packet_of(node)
    if packet in SHAPE_ONLY:
        return _filled(step, node)
    if packet is aten.copy:
        return copied(step, node, {})
    made = (_dropout if packet is aten.native_dropout else _batch_norm)(step, node, boxes)
    step.single.add(made)
    return made


_FILLED = {
    "empty": aten.zeros.default,
    "zeros": aten.zeros.default,
    "ones": aten.ones.default,
    "full": aten.full.default,
    "rand": aten.rand.default,
    "randn": aten.randn.default,
}


def _filled(step: StepGraph, node: fx.Node) -> fx.Node:
    """A new tensor; the operand that it is shaped after need not be there for that."""
    packet = str(packet_of(node)).rpartition(".")[2]
    made = _FILLED[packet.replace("_like", "").replace("new_", "")]
    value = Call(node, node.args, dict(node.kwargs), ()).argument("fill_value")
    return filled(step, node, made, {}, *([value] if made is aten.full.default else []))


def filled(step: StepGraph, node: fx.Node, made: Any, box: Box, *values: Any) -> fx.Node:
    """A new tensor in the shape of a box of a node's value."""
    like = {"dtype": node.meta["val"].dtype, "device": torch.device("cpu")}
    return step.fx_graph.call_function(made, (step.sizes(node, box), *values), like)


def _batch_norm(step: StepGraph, node: fx.Node, boxes: Mapping[fx.Node, Box]) -> fx.Node:
    """Batch norm that updates its running statistics in place, as the module does."""
    call = Call(node, node.args, dict(node.kwargs), ())

    def operand(name: str) -> Any:
        value = call.argument(name)
        if not isinstance(value, fx.Node):
            return value
        held = _first_version(value)
        return step.value(held, boxes.get(value, boxes.get(held, {})))

    training = packet_of(node) is BATCH_NORMS[0]
    made = step.call(
        aten.batch_norm.default,
        *(operand(name) for name in ("input", "weight", "bias", "running_mean", "running_var")),
        bool(call.argument("training")) if training else False,
        call.argument("momentum"),
        call.argument("eps"),
        torch.backends.cudnn.enabled,
    )
    return made


def _first_version(node: fx.Node) -> fx.Node:
    """The buffer itself, where the statistic is what an earlier call of the norm made of it."""
    while node.target is operator.getitem and node.all_input_nodes[0].target in (
        aten._native_batch_norm_legit_functional.default,
    ):
        index = node.args[1]
        name = {3: "running_mean", 4: "running_var"}.get(index if isinstance(index, int) else -1)
        if name is None:
            return node
        parent = node.all_input_nodes[0]
        found = Call(parent, parent.args, dict(parent.kwargs), ()).argument(name)
        node = found
    return node


def _dropout(step: StepGraph, node: fx.Node, boxes: Mapping[fx.Node, Box]) -> fx.Node:
    """Dropout with a mask that was drawn for the whole tensor, so that all parts drop alike."""
    operand = node.all_input_nodes[0]
    box = boxes.get(operand, {})
    value = step.value(operand, box)
    if node not in step.draws:  # nothing is dropped
        return value
    mask = step.select(step.placeholder(step.draws[node]), operand, box)
    return step.call(aten.mul.Tensor, value, mask)
