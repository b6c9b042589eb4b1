"""Products whose result is the weight of another."""

from __future__ import annotations

import math
import operator
from collections.abc import Set

import torch
from torch import fx

from hgpart.operators.calls import argument
from hgpart.operators.table import operator_of
from hgpart.tracing.traced_nodes import concrete, elements_of


def makes_weights(node: fx.Node, live: Set[fx.Node]) -> bool:
    """Whether a product makes the weight of another, as in a mixture of experts' filters.

    Its elements are no neurons: all of them go to the one task that multiplies by them, unless it
    is known which filter each belongs to; see `elements_of_filter`.
    """
    return bool(_ways(node, live))


def elements_of_filter(node: fx.Node, live: Set[fx.Node]) -> int | None:
    """Elements next to each other that are a filter, in a product that makes those of each sample.

    None if the product makes no filters of a convolution, or if their elements are reordered.
    """
    ways = _ways(node, live)
    if len(ways) != 1:
        return None
    shape = concrete(node.meta["val"].shape)
    ((weight, user, keeps_order),) = ways
    product = operator_of(user).product
    if not keeps_order or product is None or product.is_matrix or argument(user, "transposed"):
        return None
    filters = concrete(weight.meta["val"].shape)
    of_samples = len(shape) == 2 and filters[0] % shape[0] == 0
    is_all = of_samples and elements_of(weight) == elements_of(node)
    return math.prod(filters[1:]) if is_all and product.row_dim == 0 else None


def _ways(node: fx.Node, live: Set[fx.Node]) -> list[tuple[fx.Node, fx.Node, bool]]:
    """The weights that a product makes, who multiplies by them, and whether the order is kept."""
    product = operator_of(node).product
    if product is None or not product.is_matrix:
        return []
    ways, met, waiting = [], {node: True}, [node]
    while waiting:
        value = waiting.pop()
        for user in {user for user in value.users if user in live} - met.keys():
            if _is_weight(value, user):
                ways.append((value, user, met[value]))
            elif _passes_on(user, elements_of(node)):
                met[user] = met[value] and _keeps_order(user, elements_of(node))
                waiting.append(user)
    return ways


def _keeps_order(user: fx.Node, elements: int) -> bool:
    """Whether a node passes all elements of a tensor on in their order."""
    is_moved = operator_of(user).cut in ("view", "reshape", "copy", "detach")
    pointwise = torch.Tag.pointwise in getattr(user.target, "tags", ())
    return (is_moved or pointwise) and elements_of(user) == elements


def _is_weight(value: fx.Node, user: fx.Node) -> bool:
    """Whether a node is the weight of a product that can't also be a map, like its operand."""
    product = operator_of(user).product
    if product is None or product.multiplies_maps:
        return False
    return argument(user, product.weight) is value


def _passes_on(user: fx.Node, elements: int) -> bool:
    """Whether a node moves its operand's elements, or changes each of them by itself."""
    known = operator_of(user)
    if known.cut == "join" or known.moves_only or user.target is operator.getitem:
        return True
    pointwise = torch.Tag.pointwise in getattr(user.target, "tags", ())
    return pointwise and elements_of(user) == elements
