"""Operators that only move elements, cut down to a box."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

from hgpart.arrays import Int64
from hgpart.operators.calls import argument
from hgpart.operators.spatial import framed
from hgpart.operators.table import operator_of
from hgpart.placement.cutting.step_graph import Box, StepGraph

aten = torch.ops.aten


def takes_some(node: fx.Node) -> bool:
    """Whether an operator reads only some of its operand, so that the rest need not be there."""
    if node.target is operator.getitem:
        return is_reindexing(node.all_input_nodes[0])
    return operator_of(node).cut in ("slice", "narrow", "select", "index")


def is_reindexing(node: fx.Node) -> bool:
    """Whether an operator returns several pieces of its operand."""
    return operator_of(node).cut in ("pieces", "unbind")


def under(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    """The box of an operator's result, made of no more of its operands than needed."""
    if node.target is operator.getitem:
        return _piece(step, node, box)
    rule = _RULES.get(operator_of(node).cut)
    return rule(step, node, box) if rule else None


def _is_fixed(node: fx.Node, dim: int) -> bool:
    """Whether a dimension has the same size for every batch."""
    return isinstance(node.meta["val"].shape[dim], int)


def _copy(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    return step.value(node.all_input_nodes[0], box)


def _detach(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    return step.copy(node, {node.all_input_nodes[0]: box})


def _view(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    """A view keeps the order of elements, so a box of it is a view of a box, if that exists."""
    operand = node.all_input_nodes[0]
    operand_box = _same_elements(step.facts.shape(node), step.facts.shape(operand), box)
    if operand_box is None or any(step.facts.grows(operand, dim) for dim in operand_box):
        return None
    return step.call(aten.reshape.default, step.value(operand, operand_box), step.sizes(node, box))


def _same_elements(
    shape: tuple[int, ...], other: tuple[int, ...], box: Box
) -> dict[int, Int64] | None:
    """The box of a tensor of another shape with the same elements in the same order, if any."""
    if any((np.diff(kept) <= 0).any() for kept in box.values()):
        return None
    if shape and other and shape[0] == other[0] and 0 not in box:  # all samples are alike
        shape, other = (1, *shape[1:]), (1, *other[1:])
    kept = [box.get(dim, np.arange(size)) for dim, size in enumerate(shape)]
    numbers = np.ravel_multi_index(np.ix_(*kept), shape).ravel() if shape else np.zeros(1, np.int64)
    places = np.unravel_index(numbers, other) if other else ()
    axes = [np.unique(along) for along in places]
    if np.prod([len(along) for along in axes], dtype=np.int64) != len(numbers):
        return None
    return {dim: along for dim, along in enumerate(axes) if len(along) < other[dim]}


def _permutation(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    operand = node.all_input_nodes[0]
    rank = len(step.facts.shape(operand))
    labelled = torch.empty([2 + dim for dim in range(rank)], device="meta")
    moved = node.target(labelled, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    origin = [size - 2 for size in moved.shape]
    return step.copy(node, {operand: {origin[dim]: kept for dim, kept in box.items()}})


def _cat(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    tensors = [
        tensor for tensor in argument(node, "tensors") if len(step.facts.shape(tensor)) > 1 or box
    ]
    dim = argument(node, "dim") % len(step.facts.shape(node))
    if any(len(step.facts.shape(tensor)) != len(step.facts.shape(node)) for tensor in tensors):
        return None
    wanted = box.get(dim, np.arange(step.facts.shape(node)[dim]))
    if (np.diff(wanted) <= 0).any():
        return None
    pieces, first = [], 0
    for tensor in tensors:
        size = step.facts.shape(tensor)[dim]
        here = wanted[(wanted >= first) & (wanted < first + size)] - first
        first += size
        if len(here):
            pieces.append(step.value(tensor, {**box, dim: here}))
    return pieces[0] if len(pieces) == 1 else step.call(aten.cat.default, pieces, dim)


def _slice(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    operand = node.all_input_nodes[0]
    dim = argument(node, "dim") % len(step.facts.shape(node))
    bounds = (argument(node, "start"), argument(node, "end"), argument(node, "step"))
    if not _is_fixed(operand, dim) or any(isinstance(bound, fx.Node) for bound in bounds):
        return None
    kept = np.arange(step.facts.shape(operand)[dim])[slice(*bounds)]
    return step.value(operand, {**box, dim: kept[box[dim]] if dim in box else kept})


def _narrow(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    operand = node.all_input_nodes[0]
    dim, start = argument(node, "dim") % len(step.facts.shape(node)), argument(node, "start")
    if not _is_fixed(operand, dim) or not isinstance(start, int):
        return None
    start %= step.facts.shape(operand)[dim]
    kept = start + box.get(dim, np.arange(step.facts.shape(node)[dim]))
    return step.value(operand, {**box, dim: kept})


def _piece(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    """One of the pieces into which an operator cuts its operand."""
    parent, at = node.args
    assert isinstance(parent, fx.Node)
    assert isinstance(at, int)
    operand = parent.all_input_nodes[0]
    dim = argument(parent, "dim") or 0
    rank = len(step.facts.shape(operand))
    dim %= rank
    if not is_reindexing(parent) or not _is_fixed(operand, dim):
        return None
    if operator_of(parent).cut == "unbind":
        return _without(step, operand, dim, at, box)
    pieces = [int(piece.shape[dim]) for piece in parent.meta["val"]]
    first = sum(pieces[:at])
    return step.value(operand, {**box, dim: first + box.get(dim, np.arange(pieces[at]))})


def _select(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    operand = node.all_input_nodes[0]
    rank = len(step.facts.shape(operand))
    dim, at = argument(node, "dim") % rank, argument(node, "index")
    if not _is_fixed(operand, dim) or not isinstance(at, int):
        return None
    return _without(step, operand, dim, at % step.facts.shape(operand)[dim], box)


def _without(step: StepGraph, operand: fx.Node, dim: int, at: int, box: Box) -> fx.Node:
    wanted = {(axis if axis < dim else axis + 1): kept for axis, kept in box.items()}
    result = step.value(operand, {**wanted, dim: np.array([at])})
    return step.call(aten.squeeze.dim, result, dim)


def _framed(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    """A frame around an operand: along the dimensions of the box, what is there of it alone."""
    operand, shape = node.all_input_nodes[0], step.facts.shape(node.all_input_nodes[0])
    mode = argument(node, "mode") or operator_of(node).frame
    name = "padding" if argument(node, "pad") is None else "pad"
    widths, inner, moved = [*argument(node, name)], dict[int, Int64](), dict[int, Int64]()
    for dim, kept in box.items():
        at = 2 * (len(shape) - 1 - dim)
        own = widths[at : at + 2]
        if not any(own):
            inner[dim] = kept
            continue
        read = framed(shape[dim], own, mode)[kept]
        there = np.flatnonzero(read >= 0)
        if not len(there) or not np.array_equal(there, np.arange(there[0], there[-1] + 1)):
            return None
        inner[dim], moved[dim] = np.unique(read[there], return_inverse=True)
        widths[at : at + 2] = int(there[0]), len(kept) - 1 - int(there[-1])
    result = step.value(operand, inner)
    for dim, places in moved.items():
        result = step.take(result, dim, places.ravel(), len(inner[dim]))
    return step.emit(node, {operand: result}, {name: widths}) if any(widths) else result


def copied(step: StepGraph, node: fx.Node, box: Box) -> fx.Node:
    """What `copy` writes over all of its first operand; the value written over has no gradient."""
    operand, dtype = argument(node, "src"), node.meta["val"].dtype
    result = _expanded(step, node, operand, box)
    same = operand.meta["val"].dtype == dtype
    return result if same else step.call(aten.to.dtype, result, dtype)


def _expand(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    return _expanded(step, node, node.all_input_nodes[0], box)


def _expanded(step: StepGraph, node: fx.Node, operand: fx.Node, box: Box) -> fx.Node:
    """The box of an operand that is expanded to a node's shape."""
    shape = step.facts.shape(operand)
    new = len(step.facts.shape(node)) - len(shape)
    wanted = {dim - new: kept for dim, kept in box.items() if dim >= new and shape[dim - new] > 1}
    result = step.value(operand, wanted)
    return step.call(aten.expand.default, result, step.sizes(node, box))


_RULES: dict[Any, Callable[[StepGraph, fx.Node, Box], fx.Node | None]] = {
    "frame": _framed,
    "copy": _copy,
    "detach": _detach,
    "view": _view,
    "reshape": _view,
    "permutation": _permutation,
    "join": _cat,
    "slice": _slice,
    "narrow": _narrow,
    "select": _select,
    "expand": _expand,
    "overwrite": copied,
}
