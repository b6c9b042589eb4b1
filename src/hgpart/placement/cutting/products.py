"""Convolutions and matrix products with some of their filters, or some channels of some filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from hgpart.arrays import Int64
from hgpart.layers.channel_graph import Read
from hgpart.layers.constants import moved_elements
from hgpart.operators import ids
from hgpart.operators.calls import argument
from hgpart.operators.effects import Call
from hgpart.operators.products import Product
from hgpart.operators.table import operator_of
from hgpart.placement.cutting import held_constants
from hgpart.placement.cutting.layouts import spread
from hgpart.placement.cutting.step_graph import NOTHING, Box, RowCut, StepGraph

aten = torch.ops.aten

MOST_RECTANGLES = 16  # of a part in a layer; more are computed as one, with zeros in between


@dataclass(frozen=True, eq=False)
class Rectangle:
    """Cells of a layer in one part: every given task with every given position.

    Attributes
    ----------
    tasks : int64 array
        Tasks, ascending.
    positions : int64 array
        Positions in the channels of the layer's split read, or rows that are summed; ascending.
    """

    tasks: Int64
    positions: Int64


@dataclass(frozen=True)
class ProductNode:
    """A convolution, or a product with a matrix, in the traced graph.

    Attributes
    ----------
    names : Product
        Names of its arguments.
    operand, weight, bias : fx.Node
        Its arguments; bias may be None.
    row_dim, column_dim : int
        Dimensions of the weight that count output and input channels.
    axis, contracted : int
        Dimensions of the result and of the operand that count output and input channels.
    """

    names: Product
    operand: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    row_dim: int
    column_dim: int
    axis: int
    contracted: int


def product_of(step: StepGraph, node: fx.Node) -> ProductNode | None:
    """Facts about an operator, if it is a convolution or a product with a matrix."""
    product = operator_of(node).product
    if product is None:
        return None
    names = (product.operand, product.weight, product.bias)
    operand, weight, bias = (argument(node, name) for name in names)
    rank = len(step.facts.shape(weight))
    if product.is_matrix and rank != 2:
        return None
    axis, contracted = (len(step.facts.shape(value)) + 1 - rank for value in (node, operand))
    rows = product.rows(Call(node, node.args, dict(node.kwargs), ()))
    return ProductNode(product, operand, weight, bias, rows, 1 - rows, axis, contracted)


# ------------------------------------------------------------------ whole filters


def filters(
    step: StepGraph, node: fx.Node, product: ProductNode, read: Read, rows: RowCut | None
) -> fx.Node:
    """The step's filters, each with all the channels that it reads; some rows, or all (None)."""
    if read.groups > 1 and product.row_dim == 1:
        return _group_by_group(step, node, product, read, rows)
    tasks, operand = step.tasks, product.operand
    cut = {product.weight: step.value(product.weight, {product.row_dim: tasks})}
    if product.bias is not None:
        cut[product.bias] = _own_bias(step, node, product, product.bias)
    if read.groups == 1:
        return _called(step, node, {operand: _operand(step, operand, {}, rows), **cut}, rows)
    products: list[fx.Node] = []
    order = []
    for groups, members in _equal_groups(tasks, read, step.layer.tasks):
        size = len(read.channels) // read.groups
        columns = (groups[:, None] * size + np.arange(size)).ravel()
        within = np.searchsorted(tasks, members)
        chosen = {name: step.take(value, 0, within, len(tasks)) for name, value in cut.items()}
        value = _operand(step, operand, {product.contracted: columns}, rows)
        products.append(
            _called(step, node, {operand: value, **chosen}, rows, {"groups": len(groups)})
        )
        order.append(members)
    return in_order(step, products, order, product.axis)


def _operand(step: StepGraph, operand: fx.Node, box: Box, rows: RowCut | None) -> fx.Node:
    """A box of an operand, of which there are only some rows if the product is cut by rows."""
    asked = {} if rows is None else rows.asked.get(operand, {})
    return step.value(operand, {**box, **asked})


def _called(
    step: StepGraph,
    node: fx.Node,
    operands: Mapping[fx.Node, fx.Node],
    rows: RowCut | None,
    changed: Mapping[str, Any] = NOTHING,
) -> fx.Node:
    """Call a product on operands, with other arguments than the node's, for some rows or all."""
    if rows is None:
        return step.emit(node, operands, changed)
    return rows.emit(step, node, operands, changed)


def _group_by_group(
    step: StepGraph, node: fx.Node, product: ProductNode, read: Read, rows: RowCut | None
) -> fx.Node:
    """A grouped transposed convolution, whose weight counts the filters within each group."""
    groups = step.tasks * read.groups // step.layer.tasks
    size = len(read.channels) // read.groups
    rectangles = [
        Rectangle(step.tasks[groups == group], np.arange(group * size, (group + 1) * size))
        for group in np.unique(groups).tolist()
    ]
    sums = [_rectangle(step, node, product, read, rectangle, rows) for rectangle in rectangles]
    return add_bias(step, node, product, in_order(step, sums, _tasks(rectangles), product.axis))


def _equal_groups(tasks: Int64, read: Read, count: int) -> list[tuple[Int64, Int64]]:
    """Groups of which the step has the same number of tasks, and those tasks."""
    groups = tasks * read.groups // count
    present, sizes = np.unique(groups, return_counts=True)
    equal = []
    for count_in_group in np.unique(sizes).tolist():
        chosen = present[sizes == count_in_group]
        equal.append((chosen, tasks[np.isin(groups, chosen)]))
    return equal


def in_order(
    step: StepGraph, pieces: Sequence[fx.Node], order: Sequence[Int64], axis: int
) -> fx.Node:
    """Join pieces along a dimension, in ascending order of the tasks in `order`."""
    if len(pieces) == 1:
        return pieces[0]
    members = np.concatenate(list(order))
    result = step.call(aten.cat.default, list(pieces), axis)
    return step.take(result, axis, np.argsort(members), len(members))


def _own_bias(step: StepGraph, node: fx.Node, product: ProductNode, bias: fx.Node) -> fx.Node:
    """The bias of the step's filters, or the whole bias if it is not one number per filter."""
    shape = step.facts.shape(bias)
    is_per_filter = shape[-1:] == (step.facts.shape(node)[product.axis],)
    return step.value(bias, {len(shape) - 1: step.tasks} if is_per_filter else {})


# ------------------------------------------------------------------ some channels of some filters


def partial_sums(
    step: StepGraph,
    node: fx.Node,
    product: ProductNode,
    read: Read,
    rectangles: Sequence[Rectangle],
) -> fx.Node:
    """What a part's cells add to the filters that they belong to, in ascending order of filters."""
    if len(rectangles) > MOST_RECTANGLES:
        return _scattered_cells(step, node, product, read, rectangles)
    sums = [_rectangle(step, node, product, read, rectangle) for rectangle in rectangles]
    return in_order(step, sums, _tasks(rectangles), product.axis)


def _tasks(rectangles: Sequence[Rectangle]) -> list[Int64]:
    return [rectangle.tasks for rectangle in rectangles]


def _rectangle(
    step: StepGraph,
    node: fx.Node,
    product: ProductNode,
    read: Read,
    rectangle: Rectangle,
    kept: RowCut | None = None,
) -> fx.Node:
    """What the cells of a rectangle add to its filters."""
    inputs, rows, columns = _places(step, product, read, rectangle)
    cut = step.value(product.weight, {product.row_dim: rows, product.column_dim: columns})
    return _sum_of(step, node, product, inputs, cut, kept)


def _sum_of(
    step: StepGraph,
    node: fx.Node,
    product: ProductNode,
    inputs: Int64,
    cut: fx.Node,
    rows: RowCut | None = None,
) -> fx.Node:
    """Product of some input features with a weight, without a bias and without groups."""
    value = _operand(step, product.operand, {product.contracted: inputs}, rows)
    if product.names.is_scaled:  # the factor stays here, the bias is added by the reduction
        result, alpha = step.call(aten.mm.default, value, cut), argument(node, "alpha")
        return result if alpha == 1 else step.call(aten.mul.Scalar, result, alpha)
    changed: dict[str, Any] = {} if product.bias is None else {product.names.bias: None}
    if argument(node, "groups") is not None:
        changed["groups"] = 1
    operands = {product.operand: value, product.weight: cut}
    return _called(step, node, operands, rows, changed)


def _places(
    step: StepGraph, product: ProductNode, read: Read, rectangle: Rectangle
) -> tuple[Int64, Int64, Int64]:
    """Features of the operand, and rows and columns of the weight, of a rectangle."""
    tasks, positions = rectangle.tasks, rectangle.positions
    if read.groups > 1 and product.row_dim == 1:
        return positions, tasks % (step.layer.tasks // read.groups), positions
    if read.groups > 1:
        return positions, tasks, positions % (len(read.channels) // read.groups)
    channels = ids.in_order(step.graph.ids[product.operand.name], product.contracted)
    assert channels is not None  # else the filters would not be split
    places = np.flatnonzero(np.isin(channels, read.channels[positions]))
    return places, tasks, places


def _scattered_cells(
    step: StepGraph,
    node: fx.Node,
    product: ProductNode,
    read: Read,
    rectangles: Sequence[Rectangle],
) -> fx.Node:
    """Cells without a pattern: one product whose weight is zero where the part has no cell."""
    constant = moved_elements(product.weight)
    assert constant is not None  # the weight of a split layer is not computed
    tasks = np.sort(np.concatenate([rectangle.tasks for rectangle in rectangles]))
    positions = np.unique(np.concatenate([rectangle.positions for rectangle in rectangles]))
    inputs, _, _ = _places(step, product, read, Rectangle(tasks, positions))
    whole = np.moveaxis(constant.numbers.numpy(), (product.row_dim, product.column_dim), (0, 1))
    numbers, places = [], []
    local = np.arange(len(tasks) * len(inputs) * int(np.prod(whole.shape[2:]))).reshape(
        len(tasks), len(inputs), *whole.shape[2:]
    )
    for rectangle in rectangles:
        features, rows, columns = _places(step, product, read, rectangle)
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


def add_bias(step: StepGraph, node: fx.Node, product: ProductNode, total: fx.Node) -> fx.Node:
    """Add a product's bias to the sum of its terms."""
    if product.bias is None:
        return total
    cut = _own_bias(step, node, product, product.bias)
    beta = argument(node, "beta") if product.names.is_scaled else 1
    if beta != 1:
        cut = step.call(aten.mul.Scalar, cut, beta)
    trailing = len(step.facts.shape(node)) - product.axis - 1
    if trailing:
        cut = step.call(aten.reshape.default, cut, [-1, *[1] * trailing])
    return step.call(aten.add.Tensor, total, cut)
