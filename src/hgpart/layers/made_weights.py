"""Products whose result is the weight of another."""

from __future__ import annotations

import operator
from collections.abc import Set

import torch
from torch import fx

from hgpart.operators.calls import argument
from hgpart.operators.table import operator_of
from hgpart.tracing.traced_nodes import elements_of


def makes_weights(node: fx.Node, live: Set[fx.Node]) -> bool:
    """Whether a product makes the weight of another, as in a mixture of experts' filters.

    Its elements are no neurons: all of them go to the one task that multiplies by them.
    """
    product = operator_of(node).product
    if product is None or not product.is_matrix:
        return False
    met, waiting = {node}, [node]
    while waiting:
        value = waiting.pop()
        for user in {user for user in value.users if user in live} - met:
            if _is_weight(value, user):
                return True
            if _passes_on(user, elements_of(node)):
                met.add(user)
                waiting.append(user)
    return False


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
