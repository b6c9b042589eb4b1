"""A graph that computes with zeros -> one without what comes of them.

Recurrent cells begin with units of zeros. A product of these with a weight would be of no map, and
so have no tasks that hold slices of the weight; all that comes of it is a bias.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from hgpart.operators.calls import argument, with_arguments
from hgpart.operators.table import ADDITION, MULTIPLICATION, ZEROS, operator_of

_MOVING = "expand", "select", "slice", "narrow", "copy"  # cuts of what makes zeros of zeros


def leave_out_zeros(graph: fx.Graph) -> None:
    """Leave out products with zeros, and sums with what these make.

    A weight that nothing else reads is still multiplied by zeros: it has a gradient.
    """
    zeros = set[fx.Node]()
    biases: dict[fx.Node, fx.Node] = {}  # of maps that have a bias at each place
    for node in graph.nodes:
        operands = node.all_input_nodes
        if node.target in ZEROS or (operands and _makes_zeros(node, zeros)):
            zeros.add(node)
        elif operands and operands[0] in zeros and _is_of_units(node):
            biases[node] = argument(node, "bias")
        elif node.target in (ADDITION, MULTIPLICATION):
            _combine(node, zeros, biases)
        elif operator_of(node).cut == "pieces" and operands[0] in biases:
            _divide(node, biases)
    for node in reversed(graph.nodes):
        if node in zeros or node in biases:
            _erase(node)


def _is_of_units(node: fx.Node) -> bool:
    """Whether a node multiplies units by a weight that is read elsewhere, too."""
    product = operator_of(node).product
    return (
        product is not None
        and product.is_matrix
        and product.bias == "bias"
        and len(argument(node, product.weight).users) > 1
    )


def _makes_zeros(node: fx.Node, zeros: set[fx.Node]) -> bool:
    first, *others = node.all_input_nodes
    if node.target is MULTIPLICATION:
        return first in zeros or not zeros.isdisjoint(others)
    if _is_of_units(node):
        return first in zeros and argument(node, "bias") is None
    return first in zeros and operator_of(node).cut in _MOVING


def _combine(node: fx.Node, zeros: set[fx.Node], biases: dict[fx.Node, fx.Node]) -> None:
    """Leave zeros out of a sum, and add a bias, or multiply by it, instead of a map of it."""
    operands, value = node.all_input_nodes, node.meta["val"]
    if argument(node, "alpha", 1) != 1 or len(operands) != 2:
        return
    for known, other in (operands, operands[::-1]):
        if known not in zeros and known not in biases:
            continue
        of_other = other.meta["val"]
        is_whole = isinstance(of_other, torch.Tensor) and _sizes(of_other) == _sizes(value)
        if not is_whole or other in biases:
            continue
        if known in biases:
            node.replace_input_with(known, biases[known])
        elif node.target is ADDITION and of_other.dtype == value.dtype:
            node.replace_all_uses_with(other)


def _divide(node: fx.Node, biases: dict[fx.Node, fx.Node]) -> None:
    """Take pieces of the bias where a map of it is divided along its features."""
    (of_map,) = node.all_input_nodes
    rank = of_map.meta["val"].dim()
    if argument(node, "dim") % rank != rank - 1:
        return
    values = [value.new_empty(value.shape[-1:]) for value in node.meta["val"]]
    args, kwargs = with_arguments(node, (biases[of_map], *node.args[1:]), node.kwargs, {"dim": 0})
    with node.graph.inserting_before(node):
        pieces = node.graph.create_node("call_function", node.target, args, kwargs)
        pieces.meta.update(node.meta, val=values)
        for user in node.users:
            place: Any = user.args[1]
            biases[user] = node.graph.call_function(operator.getitem, (pieces, place))
            biases[user].meta.update(user.meta, val=values[place])


def _erase(node: fx.Node) -> None:
    """Erase what nothing reads, and what only it reads."""
    if node.users or node.op != "call_function":
        return
    operands = node.all_input_nodes
    node.graph.erase_node(node)
    for operand in operands:
        _erase(operand)


def _sizes(value: torch.Tensor) -> list[str]:
    """Sizes of a tensor; those that depend on the batch are not compared as numbers."""
    return [*map(str, value.shape)]
