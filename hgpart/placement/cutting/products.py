"""Convolutions and matrix products with some of their filters, or some channels of some filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from hgpart.hypergraph.hypergraph import Int64
from hgpart.layers.channel_graph import Read
from hgpart.layers.channels import Call
from hgpart.layers.constants import moved_elements
from hgpart.placement.cutting import held_constants
from hgpart.placement.cutting.layouts import spread
from hgpart.placement.cutting.ownership import Rectangle
from hgpart.tracing.operator_calls import packet_of

if TYPE_CHECKING:
    from hgpart.placement.cutting.step_graph import StepGraph

aten = torch.ops.aten

CONVOLUTIONS = (aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution)
TRANSPOSED = (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)

MOST_RECTANGLES = 16  # of one part in one layer; more are computed as one, with zeros between


@dataclass(frozen=True)
class Product:
    """What a product calls its operands, and how its weight is laid out.

    Attributes
    ----------
    operand, weight, bias : str
        Names of the arguments; no bias is "".
    row_dim, column_dim : int
        Dimensions of the weight that count output and input channels.
    axis, contracted : int
        Dimensions of the result and of the operand that do.
    """

    operand: str
    weight: str
    bias: str
    row_dim: int
    column_dim: int
    axis: int
    contracted: int


def product_of(step: StepGraph, node: fx.Node) -> Product | None:
    """What is known of an operator, if it is a convolution or a product with a matrix."""
    packet = packet_of(node)
    rank = len(step.facts.shape(node))
    if packet in CONVOLUTIONS or packet in TRANSPOSED:
        call = _call(node)
        axis = rank + 1 - len(step.facts.shape(call.argument("weight")))
        transposed = packet in TRANSPOSED or bool(call.argument("transposed", False))
        rows = 1 if transposed else 0
        return Product("input", "weight", "bias", rows, 1 - rows, axis, axis)
    if packet is aten.linear:
        return Product("input", "weight", "bias", 0, 1, rank - 1, _last(step, node, "input"))
    if packet is aten.mm:
        return Product("self", "mat2", "", 1, 0, rank - 1, _last(step, node, "self"))
    if packet is aten.matmul and len(step.facts.shape(_call(node).argument("other"))) == 2:
        return Product("self", "other", "", 1, 0, rank - 1, _last(step, node, "self"))
    if packet is aten.addmm:
        return Product("mat1", "mat2", "self", 1, 0, rank - 1, _last(step, node, "mat1"))
    return None


def _last(step: StepGraph, node: fx.Node, name: str) -> int:
    return len(step.facts.shape(_call(node).argument(name))) - 1


def _call(node: fx.Node) -> Call:
    return Call(node, node.args, dict(node.kwargs), ())


# ------------------------------------------------------------------ whole filters


def filters(step: StepGraph, node: fx.Node, product: Product, read: Read) -> fx.Node:
    """The step's filters, each with all the channels that it reads."""
    if read.groups > 1 and product.row_dim == 1:
        return _group_by_group(step, node, product, read)
    call = _call(node)
    tasks = step.tasks
    weight, bias = call.argument(product.weight), _bias(call, product)
    operand = call.argument(product.operand)
    cut = {weight: step.value(weight, {product.row_dim: tasks})}
    if bias is not None:
        cut[bias] = _own_bias(step, node, product, bias)
    if read.groups == 1:
        return step.emit(node, {operand: step.value(operand), **cut})
    found: list[fx.Node] = []
    order = []
    for groups, members in _equal_groups(tasks, read, step.layer.tasks):
        each = len(read.channels) // read.groups
        columns = (groups[:, None] * each + np.arange(each)).ravel()
        within = np.searchsorted(tasks, members)
        chosen = {one: step.take(value, 0, within, len(tasks)) for one, value in cut.items()}
        value = step.value(operand, {product.contracted: columns})
        found.append(_with_groups(step, node, {operand: value, **chosen}, len(groups)))
        order.append(members)
    return _in_order(step, found, order, product.axis)


def _group_by_group(step: StepGraph, node: fx.Node, product: Product, read: Read) -> fx.Node:
    """A grouped transposed convolution, whose weight counts the filters within each group."""
    groups = step.tasks * read.groups // step.layer.tasks
    each = len(read.channels) // read.groups
    rectangles = [
        Rectangle(step.tasks[groups == group], np.arange(group * each, (group + 1) * each))
        for group in np.unique(groups).tolist()
    ]
    sums = [_rectangle(step, node, product, read, rectangle) for rectangle in rectangles]
    return add_bias(step, node, product, _in_order(step, sums, _tasks(rectangles), product.axis))


def _equal_groups(tasks: Int64, read: Read, count: int) -> list[tuple[Int64, Int64]]:
    """Groups of which the step has equally many tasks, and those tasks."""
    groups = tasks * read.groups // count
    present, sizes = np.unique(groups, return_counts=True)
    found = []
    for size in np.unique(sizes).tolist():
        chosen = present[sizes == size]
        found.append((chosen, tasks[np.isin(groups, chosen)]))
    return found


def _with_groups(
    step: StepGraph, node: fx.Node, operands: dict[fx.Node, fx.Node], groups: int
) -> fx.Node:
    made = step.emit(node, operands)
    return _set_argument(made, node, "groups", groups)


def _set_argument(made: fx.Node, node: fx.Node, name: str, value: Any) -> fx.Node:
    """Change an argument of an emitted operator, wherever its schema has it."""
    schema = node.target._schema  # type: ignore[union-attr]
    position = [argument.name for argument in schema.arguments].index(name)
    if position < len(made.args):
        made.args = (*made.args[:position], value, *made.args[position + 1 :])
    else:
        made.kwargs = {**made.kwargs, name: value}
    return made


def _in_order(
    step: StepGraph, found: Sequence[fx.Node], order: Sequence[Int64], axis: int
) -> fx.Node:
    """Put pieces together along a dimension, in ascending order of what they are."""
    if len(found) == 1:
        return found[0]
    members = np.concatenate(list(order))
    made = step.call(aten.cat.default, list(found), axis)
    return step.take(made, axis, np.argsort(members), len(members))


def _bias(call: Call, product: Product) -> fx.Node | None:
    found = call.argument(product.bias) if product.bias else None
    return found if isinstance(found, fx.Node) else None


def _own_bias(step: StepGraph, node: fx.Node, product: Product, bias: fx.Node) -> fx.Node:
    """The bias of the step's filters, or all of one that is spread over the filters."""
    shape = step.facts.shape(bias)
    one_each = shape[-1:] == (step.facts.shape(node)[product.axis],)
    return step.value(bias, {len(shape) - 1: step.tasks} if one_each else {})


# ------------------------------------------------------------------ some channels of some filters


def partial_sums(
    step: StepGraph,
    node: fx.Node,
    product: Product,
    read: Read,
    rectangles: Sequence[Rectangle],
) -> fx.Node:
    """What a part's cells add to the filters that it has any of, in ascending order of filters."""
    if len(rectangles) > MOST_RECTANGLES:
        return _scattered_cells(step, node, product, read, rectangles)
    sums = [_rectangle(step, node, product, read, rectangle) for rectangle in rectangles]
    return _in_order(step, sums, _tasks(rectangles), product.axis)


def _tasks(rectangles: Sequence[Rectangle]) -> list[Int64]:
    return [rectangle.tasks for rectangle in rectangles]


def _rectangle(
    step: StepGraph, node: fx.Node, product: Product, read: Read, rectangle: Rectangle
) -> fx.Node:
    """What the cells of a rectangle add to its filters."""
    inputs, rows, columns = _places(step, node, product, read, rectangle)
    weight = _call(node).argument(product.weight)
    cut = step.value(weight, {product.row_dim: rows, product.column_dim: columns})
    return _sum_of(step, node, product, inputs, cut)


def _sum_of(
    step: StepGraph, node: fx.Node, product: Product, inputs: Int64, cut: fx.Node
) -> fx.Node:
    """The product of some input features with a weight, without a bias and without groups."""
    call = _call(node)
    operand = call.argument(product.operand)
    value = step.value(operand, {product.contracted: inputs})
    if product.bias == "self":  # addmm: the factor stays, the bias comes with the reduction
        made = step.call(aten.mm.default, value, cut)
        alpha = call.argument("alpha", 1)
        return made if alpha == 1 else step.call(aten.mul.Scalar, made, alpha)
    operands = {operand: value, call.argument(product.weight): cut}
    bias = _bias(call, product)
    if bias is None:
        made = step.emit(node, operands)
    else:
        made = _set_argument(step.emit(node, {**operands, bias: cut}), node, "bias", None)
    if "groups" in [argument.name for argument in node.target._schema.arguments]:  # type: ignore[union-attr]
        made = _set_argument(made, node, "groups", 1)
    return made


def _places(
    step: StepGraph, node: fx.Node, product: Product, read: Read, rectangle: Rectangle
) -> tuple[Int64, Int64, Int64]:
    """Features of the operand, and rows and columns of the weight, that a rectangle stands for."""
    tasks, positions = rectangle.tasks, rectangle.positions
    if read.groups > 1 and product.row_dim == 1:
        return positions, tasks % (step.layer.tasks // read.groups), positions
    if read.groups > 1:
        return positions, tasks, positions % (len(read.channels) // read.groups)
    operand = _call(node).argument(product.operand)
    ids = step.graph.ids[operand.name]
    for dim in reversed(range(ids.dim())):
        if dim != product.contracted:
            ids = ids.select(dim, 0)
    places = np.flatnonzero(np.isin(ids.numpy(), read.channels[positions]))
    return places, tasks, places


def _scattered_cells(
    step: StepGraph,
    node: fx.Node,
    product: Product,
    read: Read,
    rectangles: Sequence[Rectangle],
) -> fx.Node:
    """Cells in no pattern: one product whose weight is zero where the part has no cell."""
    weight = _call(node).argument(product.weight)
    constant = moved_elements(weight)
    assert constant is not None  # the weight of partial sums is not computed
    tasks = np.sort(np.concatenate([rectangle.tasks for rectangle in rectangles]))
    every = np.unique(np.concatenate([rectangle.positions for rectangle in rectangles]))
    inputs, _, _ = _places(step, node, product, read, Rectangle(tasks, every))
    whole = np.moveaxis(constant.numbers.numpy(), (product.row_dim, product.column_dim), (0, 1))
    numbers, places = [], []
    local = np.arange(len(tasks) * len(inputs) * int(np.prod(whole.shape[2:]))).reshape(
        len(tasks), len(inputs), *whole.shape[2:]
    )
    for rectangle in rectangles:
        features, rows, columns = _places(step, node, product, read, rectangle)
        here = np.ix_(np.searchsorted(tasks, rectangle.tasks), np.searchsorted(inputs, features))
        numbers.append(whole[np.ix_(rows, columns)].ravel())
        places.append(local[here].ravel())
    _, cells = held_constants.elements(step, constant, np.concatenate(numbers))
    index = step.index(np.concatenate(places)[np.argsort(np.concatenate(numbers))])
    flat = step.call(spread, cells, 0, index, local.size)
    cut = step.call(aten.reshape.default, flat, list(local.shape))
    if product.row_dim == 1:
        cut = step.call(aten.transpose.int, cut, 0, 1)
    return _sum_of(step, node, product, inputs, cut)


def add_bias(step: StepGraph, node: fx.Node, product: Product, total: fx.Node) -> fx.Node:
    """What a product adds to the sum of its terms."""
    call = _call(node)
    bias = _bias(call, product)
    if bias is None:
        return total
    cut = _own_bias(step, node, product, bias)
    if product.bias == "self" and call.argument("beta", 1) != 1:
        cut = step.call(aten.mul.Scalar, cut, call.argument("beta"))
    behind = len(step.facts.shape(node)) - product.axis - 1
    if behind:
        cut = step.call(aten.reshape.default, cut, [-1, *[1] * behind])
    return step.call(aten.add.Tensor, total, cut)
