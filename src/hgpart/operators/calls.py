"""Calls of ATen operators in a traced graph: their arguments by name, and what they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx


def argument_of(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str, default: Any = None
) -> Any:
    """An argument of a call, by its name in the operator's schema.

    The schema's default where the call does not give it; `default` where the operator has no
    such argument.
    """
    schema = getattr(target, "_schema", None)
    for position, declared in enumerate(schema.arguments if schema else ()):
        if declared.name == name:
            if position < len(args):
                return args[position]
            return kwargs.get(name, declared.default_value)
    return default


def argument(node: fx.Node, name: str, default: Any = None) -> Any:
    """An argument of the call that a node is, by its name in the operator's schema."""
    return argument_of(node.target, node.args, node.kwargs, name, default)


def with_arguments(
    node: fx.Node, args: Any, kwargs: Any, changed: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call with others in place of some, wherever these are in the schema."""
    schema = node.target._schema  # type: ignore[union-attr]
    positions = {declared.name: at for at, declared in enumerate(schema.arguments)}
    given, named = [*args], dict(kwargs)
    for name, value in changed.items():
        if positions[name] < len(given):
            given[positions[name]] = value
        else:
            named[name] = value
    return tuple(given), named


def has_gradients(dtype: torch.dtype) -> bool:
    """Whether tensors of a type can have gradients: floating and complex ones.

    >>> has_gradients(torch.complex64), has_gradients(torch.int64)
    (True, False)
    """
    return dtype.is_floating_point or dtype.is_complex


def module_of(node: fx.Node) -> str:
    """Path of the innermost module whose code makes a node; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def place_of(node: fx.Node) -> str:
    """A node as an error message names it: operator, name, module."""
    module = module_of(node)
    return f"can't trace {node.target} ({node.name} in {module or 'the model itself'})"


def only_updated(node: fx.Node) -> frozenset[fx.Node]:
    """Running statistics that a norm in training mode replaces but does not compute with."""
    if not (argument(node, "training") or argument(node, "use_input_stats")):
        return frozenset()
    statistics = (argument(node, "running_mean"), argument(node, "running_var"))
    return frozenset(value for value in statistics if isinstance(value, fx.Node))
