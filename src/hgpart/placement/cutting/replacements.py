"""Operators that a step calls in another form: norms in place, dropout with a mask, copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from hgpart.errors import PlacementError
from hgpart.execution.batch_norms import normalised, share_of_next
from hgpart.operators.calls import argument
from hgpart.operators.table import operator_of
from hgpart.placement.cutting.reindexing import copied
from hgpart.placement.cutting.step_graph import Box, StepGraph
from hgpart.tracing.traced_nodes import COUNTER, averages_batches, is_norms_statistic

aten = torch.ops.aten


def replaced(step: StepGraph, node: fx.Node, boxes: Mapping[fx.Node, Box]) -> fx.Node | None:
    """The first result of an operator in another form; None if it has no other form."""
    operator = operator_of(node)
    if operator.makes:  # only the shape of its operand is needed
        value = argument(node, "fill_value")
        return filled(step, node, operator.makes, {}, *([] if value is None else [value]))
    if operator.cut == "overwrite":
        return copied(step, node, {})
    if node in step.given:
        result = _given_norm(step, node, boxes)
        step.single.add(result)
        return result
    if operator.normalises:
        return _norm_of_all_channels(step, node, boxes)
    if operator.cut not in ("norm", "dropout"):
        return None
    result = (_dropout if operator.cut == "dropout" else _batch_norm)(step, node, boxes)
    step.single.add(result)
    return result


def filled(step: StepGraph, node: fx.Node, result: Any, box: Box, *values: Any) -> fx.Node:
    """A new tensor with the shape of a box of a node's value."""
    like = {"dtype": node.meta["val"].dtype, "device": torch.device("cpu")}
    return step.fx_graph.call_function(result, (step.sizes(node, box), *values), like)


def _batch_norm(step: StepGraph, node: fx.Node, boxes: Mapping[fx.Node, Box]) -> fx.Node:
    """Batch norm that updates its running statistics in place, like the module."""
    if step.rows is not None and argument(node, "training", False):
        raise PlacementError(
            f"{step.layer.name} takes statistics of some rows in {node.name}: accepted in bands "
            "are norms that are cut along rows"
        )

    def operand(name: str) -> Any:
        value = argument(node, name)
        if not isinstance(value, fx.Node):
            return value
        held = first_version(value)
        return step.value(held, boxes.get(value, boxes.get(held, {})))

    return step.call(
        aten.batch_norm.default,
        *(operand(name) for name in ("input", "weight", "bias", "running_mean", "running_var")),
        bool(argument(node, "training", False)),
        _share_of_batch(step, node) if averages_batches(node) else argument(node, "momentum"),
        argument(node, "eps"),
        torch.backends.cudnn.enabled,
    )


def _norm_of_all_channels(
    step: StepGraph, node: fx.Node, boxes: Mapping[fx.Node, Box]
) -> fx.Node | None:
    """A norm over channels as torch's one operator, where the part takes the statistic alone."""
    statistic = argument(node, "variance")
    while not operator_of(statistic).takes_statistics:
        statistic = statistic.all_input_nodes[0]
    source, is_whole = step.sources.get(statistic), len(step.tasks) == step.layer.tasks
    if source is None or not source.is_alone or not is_whole:
        return None
    groups, eps = argument(statistic, "groups"), argument(node, "eps")
    normed = argument(node, "operand")
    first_normed = 1 if groups is not None else -argument(statistic, "dims")
    box = step.in_part(normed, boxes.get(normed, {}))
    if any(dim >= first_normed % len(step.facts.shape(normed)) for dim in box):
        return None
    operand, weight, bias = (
        None if value is None else step.value(value, box if value is normed else {})
        for value in (argument(node, name) for name in ("operand", "weight", "bias"))
    )
    if groups is not None:  # the vectors of a group norm are shaped like the channels
        vectors = (
            None if vector is None else step.call(aten.flatten.using_ints, vector)
            for vector in (weight, bias)
        )
        return step.call(aten.group_norm.default, operand, groups, *vectors, eps)
    dims = argument(statistic, "dims")
    shape = [*step.facts.shape(normed)[-dims:]]
    if argument(statistic, "centred"):
        return step.call(aten.layer_norm.default, operand, shape, weight, bias, eps)
    return step.call(aten.rms_norm.default, operand, shape, weight, eps)


def _share_of_batch(step: StepGraph, node: fx.Node) -> fx.Node:
    """Weight of the batch in the mean over all batches that the norm has seen."""
    mean = argument(node, "running_mean")
    norm = step.name_of(first_version(mean)).removesuffix("running_mean")
    updates = (new for new in node.users if new.args[1] in operator_of(node).updates)
    is_last = all(user.op == "output" for new in updates for user in new.users)
    if is_norms_statistic(mean) or not is_last:
        raise PlacementError(
            f"the norm {norm.removesuffix('.')} has momentum=None, the mean of all batches, and is "
            "called more than once in a pass: accepted then is a number, as in momentum=0.1"
        )
    placeholders = step.traced.graph_module.graph.find_nodes(op="placeholder")
    counter = next(
        node for node in placeholders if step.traced.buffers.get(node.name) == f"{norm}{COUNTER}"
    )
    return step.call(share_of_next, step.whole(counter))


def _given_norm(step: StepGraph, node: fx.Node, boxes: Mapping[fx.Node, Box]) -> fx.Node:
    """Batch norm with statistics that another step computes."""
    given, channels = step.given[node], step.facts.shape(node)[1]
    box = boxes.get(argument(node, "input"), {})
    operand = step.placeholder(given.operand)
    if given.rows is not None:
        dim = step.facts.operator_rows[node].dim
        operand = step.places(operand, dim, given.rows, box, step.facts.shape(node)[dim])
    if not np.array_equal(box.get(1, np.arange(channels)), given.channels):
        raise PlacementError(
            f"{step.layer.name} normalises other channels than it takes statistics of: accepted in "
            "norms over slices or bands are those of its tasks"
        )
    vectors = [argument(node, name) for name in ("weight", "bias")]
    return step.call(
        normalised,
        operand,
        step.joined(given.statistics, 1, given.channels, channels),
        *(
            step.value(vector, boxes.get(vector, {})) if vector is not None else None
            for vector in vectors
        ),
        argument(node, "eps"),
    )


def first_version(node: fx.Node) -> fx.Node:
    """The buffer behind a statistic that earlier calls of the norm have updated."""
    while is_norms_statistic(node):
        norm, index = node.args
        assert isinstance(norm, fx.Node)
        assert isinstance(index, int)
        name = operator_of(norm).updates.get(index)
        if name is None:
            return node
        node = argument(norm, name)
    return node


def _dropout(step: StepGraph, node: fx.Node, boxes: Mapping[fx.Node, Box]) -> fx.Node:
    """Dropout with a mask drawn for the whole tensor, so that all parts drop the same elements."""
    operand = node.all_input_nodes[0]
    box = boxes.get(operand, {})
    value = step.value(operand, box)
    if node not in step.draws:  # nothing is dropped
        return value
    mask = step.select(step.placeholder(step.draws[node]), operand, box)
    return step.call(aten.mul.Tensor, value, mask)
