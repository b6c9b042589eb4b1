"""Convolutions and matrix products with some of their filters, or some channels of some filters."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from hgpart.arrays import Int64
from hgpart.layers.channel_graph import Read
from hgpart.layers.elements.constants import moved_elements
from hgpart.operators import ids
from hgpart.operators.calls import argument
from hgpart.operators.effects import Call
from hgpart.operators.products import Product, batched_factors, batched_product, looked_up
from hgpart.operators.table import operator_of
from hgpart.placement.cutting import held_constants
from hgpart.placement.cutting.layouts import spread
from hgpart.placement.cutting.step_graph import NOTHING, Box, RowCut, StepGraph
from hgpart.tracing.traced_nodes import concrete

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


@dataclass(frozen=True)
class Factors:
    """The operands of a product of matrices in the traced graph, and how its boxes cut them.

    Dimensions are counted from the last one (-1).

    Attributes
    ----------
    left, right, added : fx.Node
        Operands; `added` may be None.
    columns : int
        Dimension of `right` that counts the columns of the result.
    is_lookup : bool
        Whether `left` has numbers of rows of `right`, and not a dimension more for columns.
    """

    left: fx.Node
    right: fx.Node
    added: fx.Node | None = None
    columns: int = -1
    is_lookup: bool = False

    def cut(self, behind: int) -> Mapping[fx.Node, int] | None:
        """The dimension of each operand that a dimension of the result cuts; None if unknown."""
        if self.left in (self.right, self.added) or self.right is self.added:
            return None
        if behind == -1:
            cut = {self.right: self.columns}
        elif self.is_lookup:
            return {self.left: behind + 1}
        elif behind == -2:
            cut = {self.left: behind}
        else:
            cut = {self.left: behind, self.right: behind}
        return cut if self.added is None else {**cut, self.added: behind}


def factors_of(node: fx.Node) -> Factors | None:
    """The operands of an operator, if it multiplies matrices."""
    known = operator_of(node)
    if known.rule is batched_product:
        return Factors(*batched_factors(lambda name: argument(node, name)))
    if known.rule is looked_up:
        return Factors(argument(node, "indices"), argument(node, "weight"), is_lookup=True)
    if known.product is None or not known.product.is_matrix:
        return None
    names = (known.product.operand, known.product.weight, known.product.bias)
    left, right, added = (argument(node, name) for name in names)
    return Factors(left, right, added, known.product.row_dim - 2)


def operand_boxes(
    step: StepGraph, factors: Factors, node: fx.Node, axis: int, kept: Int64
) -> dict[fx.Node, Box] | None:
    """The boxes of operands that some rows, columns or matrices of a product need.

    None if an operand would have to be cut along the batch, or in two ways.
    """
    ranks = [len(step.facts.shape(factor)) for factor in (factors.left, factors.right)]
    cut = factors.cut(axis - len(step.facts.shape(node)))
    if cut is None or (min(ranks) < 2 and not factors.is_lookup):
        return None
    boxes: dict[fx.Node, Box] = {}
    for operand, behind in cut.items():
        shape = step.facts.shape(operand)
        dim = behind + len(shape)
        if dim < 0 or shape[dim] == 1:
            continue
        if step.facts.grows(operand, dim):
            return None
        boxes[operand] = {dim: kept}
    return boxes


# ------------------------------------------------------------------ whole filters


def filters(
    step: StepGraph, node: fx.Node, product: ProductNode, read: Read, rows: RowCut | None
) -> fx.Node:
    """The step's filters, each with all the channels that it reads; some rows, or all (None)."""
    if read.groups > 1 and product.row_dim == 1:
        return _group_by_group(step, node, product, read, rows)
    tasks, operand = step.tasks, product.operand
    made = results_of_tasks(step, node, product)
    cut = {product.weight: step.value(product.weight, {product.row_dim: made})}
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


def results_of_tasks(step: StepGraph, node: fx.Node, product: ProductNode) -> Int64:
    """Places of the results of the step's tasks: one of each, or the elements of its filter."""
    width = step.facts.shape(node)[product.axis] // step.layer.tasks
    places: Int64 = (step.tasks[:, None] * width + np.arange(width)).ravel()
    return places


def filters_of_samples(
    step: StepGraph, node: fx.Node
) -> tuple[fx.Node, int | None, Int64 | None] | None:
    """A convolution with filters of each sample, of which only those of the step are computed.

    Returns the dimension and the places that it has of the result. Where samples lie beside
    channels in one dimension, as groups, it has all places, and other channels are zero. None if it
    is no such convolution.
    """
    product = product_of(step, node)
    if product is None or product.names.is_matrix or product.weight.name not in step.graph.ids:
        return None
    shape, count = step.facts.shape(node), step.layer.tasks
    groups = argument(node, "groups")
    groups = groups.meta["val"] if isinstance(groups, fx.Node) else groups
    is_apart = step.facts.layout(step.at, node).merged.get(1) == (-1, count)
    samples = shape[1] // count if is_apart else 1
    of_sample = concrete((groups,))[0] // samples
    if product.axis != 1 or of_sample not in (1, count) or (is_apart and shape[0] != 1):
        return None
    if not is_apart and shape[1] != count:
        return None
    cut = {product.operand: 1} if of_sample > 1 else {}
    cut |= {product.weight: 0} if product.bias is None else {product.weight: 0, product.bias: 0}
    operands = {product.operand: step.value(product.operand)} if of_sample == 1 else {}
    changed: dict[str, Any] = {}
    own = len(step.tasks)
    if not is_apart:
        operands |= {
            operand: step.value(operand, {dim: step.tasks}) for operand, dim in cut.items()
        }
        changed = {"groups": own} if of_sample > 1 else {}
        return step.emit(node, operands, changed), 1, step.tasks
    operands |= {operand: _of_samples(step, operand, dim) for operand, dim in cut.items()}
    if of_sample > 1:
        in_all = step.at_any_batch(groups)
        if isinstance(in_all, int):
            changed["groups"] = in_all // count * own
        else:
            changed["groups"] = step.call(
                operator.mul, step.call(operator.floordiv, in_all, count), own
            )
    made = step.emit(node, operands, changed)
    made = step.call(aten.reshape.default, made, [-1, own, *shape[2:]])
    made = step.call(spread, made, 1, step.index(step.tasks), count)
    return step.call(aten.reshape.default, made, [1, -1, *shape[2:]]), None, None


def _of_samples(step: StepGraph, operand: fx.Node, dim: int) -> fx.Node:
    """The places of the step's tasks in an operand that has samples beside channels."""
    value, count = step.value(operand), step.layer.tasks
    shape = step.facts.shape(operand)
    value = step.call(aten.reshape.default, value, [*shape[:dim], -1, count, *shape[dim + 1 :]])
    value = step.take(value, dim + 1, step.tasks, count)
    return step.call(aten.reshape.default, value, [*shape[:dim], -1, *shape[dim + 1 :]])


def windows_of_channels(step: StepGraph, node: fx.Node) -> tuple[fx.Node, Int64] | None:
    """A convolution that slides along channels, at the step's places; also these places.

    Its windows are put one after another, and it goes from one to the next. None if it slides
    along none.
    """
    product, axes = product_of(step, node), step.facts.varying(node)
    if product is None or product.names.is_matrix or product.row_dim or len(axes) != 1:
        return None
    (dim,) = axes
    operand, rank = product.operand, len(step.facts.shape(product.operand))
    at = dim - product.axis - 1
    if at < 0 or step.facts.varying(operand) != axes or product.weight.name in step.graph.ids:
        return None
    arguments = ("stride", "padding", "dilation")
    spatial = rank - product.axis - 1
    steps, pads, gaps = ([*argument(node, name)] * spatial for name in arguments)
    steps, pads, gaps = steps[:spatial], pads[:spatial], gaps[:spatial]
    kernel, size = step.facts.shape(product.weight)[2 + at], step.facts.shape(operand)[dim]
    places = step.facts.layout(step.at, node).positions(step.tasks)
    read = places[:, None] * steps[at] - pads[at] + np.arange(kernel) * gaps[at]
    inside = (read >= 0) & (read < size)
    needed = np.unique(read[inside])
    if not len(needed):
        return None
    value = step.value(operand, {dim: needed})
    if not inside.all():
        value = step.call(aten.constant_pad_nd.default, value, [*[0, 0] * (rank - 1 - dim), 0, 1])
    windows = np.where(inside, np.searchsorted(needed, read), len(needed)).ravel()
    value = step.take(value, dim, windows, len(needed) + int(not inside.all()))
    steps[at], pads[at], gaps[at] = kernel, 0, 1
    operands = {operand: value, product.weight: step.value(product.weight)}
    if product.bias is not None:
        operands[product.bias] = step.value(product.bias)
    return step.emit(node, operands, dict(zip(arguments, (steps, pads, gaps), strict=True))), places


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
    made = results_of_tasks(step, node, product)
    return step.value(bias, {len(shape) - 1: made} if is_per_filter else {})


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
