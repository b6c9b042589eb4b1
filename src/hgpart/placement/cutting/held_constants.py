"""Constants made of parameters by operators that can't be cut: a step holds what its tasks need.

Where operators only move elements, the step holds the elements of its box and puts them in their
places. Where each element is computed from one row of parameters, the step holds the rows of its
box: it computes the whole constant, with zeros for other rows, and takes the box from it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from hgpart.arrays import Int64
from hgpart.layers.elements.constants import MovedElements, moved_elements
from hgpart.placement.cutting.layouts import spread
from hgpart.placement.cutting.slices import box_of, slice_of
from hgpart.placement.cutting.step_graph import Box, StepGraph

aten = torch.ops.aten


def under(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    """The box of a constant; None if `node` is not one, or needs all of its parameters."""
    if all(origin.name not in step.traced.parameters for origin in _made_of(step, node)):
        return None
    moved = moved_elements(node)
    if moved is not None:
        wanted = _cut(moved.numbers.numpy(), box)
        have, flat = elements(step, moved, wanted)
        flat = step.take(flat, 0, np.searchsorted(have, wanted.ravel()), len(have))
        return step.call(aten.reshape.default, flat, step.sizes(node, box))
    if node.name not in step.graph.rows:
        return None
    rows = np.unique(_cut(step.graph.rows[node.name].numpy(), box)).astype(np.int64)
    return step.select(step.of_rows(node, rows), node, box)


def spread_out(step: StepGraph, node: fx.Node, numbers: Int64) -> fx.Node | None:
    """A whole constant with zeros for all but some elements; None if it is made of no parameters.

    The elements that meet some tasks need not be a box, as where a class token stands in front of
    channels.
    """
    if all(origin.name not in step.traced.parameters for origin in _made_of(step, node)):
        return None
    shape = step.facts.shape(node)
    cut = box_of(numbers, shape)
    if cut is not None:
        result = step.value(node, cut)
        for dim, kept in cut.items():
            result = step.call(spread, result, dim, step.index(kept), shape[dim])
        return result
    moved = moved_elements(node)
    if moved is not None:
        wanted = moved.numbers.numpy().ravel()[numbers]
        have, flat = elements(step, moved, wanted)
        flat = step.take(flat, 0, np.searchsorted(have, wanted), len(have))
        flat = step.call(spread, flat, 0, step.index(numbers), moved.numbers.numel())
        return step.call(aten.reshape.default, flat, list(shape))
    rows = step.graph.rows[node.name].numpy().ravel()[numbers]
    return step.of_rows(node, np.unique(rows).astype(np.int64))


def elements(step: StepGraph, constant: MovedElements, numbers: Int64) -> tuple[Int64, fx.Node]:
    """Hold some elements of a constant: their numbers in ascending order, and a tensor of them."""
    have, pieces = [], []
    for origin, size in zip(constant.origins, constant.sizes, strict=True):
        first = constant.first(origin)
        wanted = np.unique(numbers[(numbers >= first) & (numbers < first + size)])
        if len(wanted):
            pieces.append(_flat(step, origin, wanted - first, size))
            have.append(wanted)
    flat = pieces[0] if len(pieces) == 1 else step.call(aten.cat.default, pieces)
    return np.concatenate(have), flat


def _flat(step: StepGraph, origin: fx.Node, numbers: Int64, size: int) -> fx.Node:
    """Some elements of a parameter or buffer."""
    if origin in step.facts.carried:
        whole = step.call(aten.reshape.default, step.value(origin), [-1])
        return step.take(whole, 0, numbers, size)
    held = step.hold(origin, slice_of(step.name_of(origin), step.facts.shape(origin), numbers))
    return step.call(aten.reshape.default, held, [-1])


def _made_of(step: StepGraph, node: fx.Node) -> set[fx.Node]:
    """The nodes that a constant is made of, with itself; none if it is not a constant."""
    made_of, waiting = set[fx.Node](), [node]
    while waiting:
        origin = waiting.pop()
        if origin in step.sources or origin in step.facts.makers or step.is_sent(origin):
            return set()
        if origin not in made_of:
            made_of.add(origin)
            waiting.extend(step.operands(origin))
    return made_of


def _cut(values: Int64, box: Box) -> Int64:
    for dim, kept in box.items():
        values = values.take(kept, dim)
    return values
