"""Operators that work channel by channel, cut down to the wanted channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from hgpart.arrays import Int64
from hgpart.errors import PlacementError
from hgpart.layers.channel_graph import Read
from hgpart.operators import ids
from hgpart.operators.calls import argument
from hgpart.operators.effects import Matrices, Mix, SameIndex
from hgpart.operators.rows import EvenSpans
from hgpart.operators.spatial import attention, matrices
from hgpart.operators.table import operator_of
from hgpart.placement.cutting import held_constants
from hgpart.placement.cutting.layouts import spread
from hgpart.placement.cutting.products import Rectangle, factors_of, in_order, operand_boxes
from hgpart.placement.cutting.row_cuts import row_cut, with_rows
from hgpart.placement.cutting.slices import box_of
from hgpart.placement.cutting.step_graph import WHOLE, Box, RowCut, StepGraph
from hgpart.tracing.traced_nodes import first_result

aten = torch.ops.aten

FIRST_SPATIAL = 2  # behind the batch and its channels


def under(step: StepGraph, node: fx.Node, box: Box) -> fx.Node | None:
    """The operator on operands cut like its result, along one dimension and along rows, if any.

    None if it can't be cut so.
    """
    if node.op != "call_function":
        return None
    rows = step.rows_in(node, box)
    channels = {dim: kept for dim, kept in box.items() if dim not in rows}
    if len(channels) > 1:
        return None
    boxes = _operand_boxes(step, node, channels) if channels else {}
    if not rows or boxes is None:
        return None if boxes is None else step.copy(node, boxes)
    ((dim, kept),) = rows.items()
    cut = row_cut(step, node, kept)
    taken = None if cut is None else _rows_of_others(step, node, dim, kept, cut)
    if cut is None or taken is None:
        return None
    for operand, asked in cut.asked.items():
        boxes[operand] = {**boxes.get(operand, {}), **asked}
    return step.copy(node, boxes, replace(cut, taken=taken))


def sum_of_rows(step: StepGraph, node: fx.Node, axis: int, tasks: Int64, rows: Int64) -> fx.Node:
    """What some rows, next to each other, add to a sum or mean over all rows, for some tasks.

    Raises
    ------
    PlacementError
        If the operands can't be cut so.
    """
    operand, dim, averages = step.facts.summed_rows[node]
    boxes: dict[fx.Node, Box] | None = {}
    if step.layer.tasks > 1:
        positions = step.facts.layout(step.at, node).positions(tasks)
        boxes = _operand_boxes(step, node, {axis: positions})
    if boxes is None:
        raise PlacementError(
            f"{step.layer.name}: {node.name} can't be cut by channels: accepted are means and sums "
            "that can, in a plan over bands of rows"
        )
    height = step.facts.shape(operand)[dim]
    changed: dict[str, Any] = {}
    if argument(node, "kernel_size") is not None:
        spatial = len(step.facts.shape(operand)) - FIRST_SPATIAL
        window = EvenSpans(dim - FIRST_SPATIAL, spatial)
        changed["kernel_size"] = with_rows(window, node, "kernel_size", 1, len(rows))
    value = step.value(operand, {**boxes.get(operand, {}), dim: rows})
    result = step.emit(node, {operand: value}, changed)
    return step.call(aten.mul.Scalar, result, len(rows) / height) if averages else result


def partial_statistics(
    step: StepGraph, node: fx.Node, read: Read, rectangles: Sequence[Rectangle]
) -> fx.Node:
    """Statistics of a part's channels, in ascending order of the tasks that they belong to."""
    operand = argument(node, "operand")
    if argument(node, "groups") is None:
        (rectangle,) = rectangles
        (dim,) = step.facts.varying(operand) or (len(step.facts.shape(operand)) - 1,)
        channels = ids.in_order(step.graph.ids[operand.name], dim)
        assert channels is not None  # else it would not be a statistic of channels
        places = np.flatnonzero(np.isin(channels, read.channels[rectangle.positions]))
        return step.emit(node, {operand: step.value(operand, {dim: places})})
    by_task = sorted(
        (task, rectangle.positions) for rectangle in rectangles for task in rectangle.tasks.tolist()
    )
    pieces, order = list[fx.Node](), []
    for size in sorted({len(positions) for _, positions in by_task}):
        alike = [(task, positions) for task, positions in by_task if len(positions) == size]
        value = step.value(operand, {1: np.concatenate([positions for _, positions in alike])})
        pieces.append(step.emit(node, {operand: value}, {"groups": len(alike)}))
        order.append(np.array([task for task, _ in alike]))
    return in_order(step, pieces, order, 1)


def _rows_of_others(
    step: StepGraph, node: fx.Node, dim: int, kept: Int64, cut: RowCut
) -> dict[fx.Node, Box] | None:
    """The rows of operands that have none by themselves, such as a constant; None if not known."""
    known, shape = operator_of(node), step.facts.shape(node)
    taken: dict[fx.Node, Box] = {}
    of_products = known.rows is matrices and dim < len(shape) - 2  # a matrix for each row
    is_whole = known.product is not None or known.cut == "norm" or known.rows is matrices
    if is_whole and not of_products:
        return taken
    is_attention = known.rows is attention
    for operand in step.operands(node):
        if is_attention and operand is not argument(node, "attn_mask"):
            continue
        of_operand = step.facts.shape(operand)
        at = dim - len(shape) + len(of_operand)
        if operand not in cut.asked and at >= 0 and of_operand[at] == shape[dim] > 1:
            if not (known.keeps_places or is_attention or of_products):
                return None
            taken[operand] = {at: kept}
    return taken


def _operand_boxes(step: StepGraph, node: fx.Node, box: Box) -> dict[fx.Node, Box] | None:
    """The box of each operand that one box of the result needs; None if some is not a box."""
    ((axis, kept),) = box.items()
    factors = factors_of(node)
    if factors is not None:
        return operand_boxes(step, factors, node, axis, kept)
    if operator_of(node).product is not None:
        return None
    aligned = step.facts.aligned(node, axis)
    if aligned is None or any(step.facts.grows(operand, dim) for operand, dim, _ in aligned.maps):
        return None
    boxes: dict[fx.Node, Box] = {}
    for operand, dim, along in aligned.maps:
        wanted = along[kept] if len(along) > 1 else along
        if len(wanted) != len(kept) or (np.diff(wanted) < 0).any():
            return None
        if operand in boxes and not np.array_equal(boxes[operand][dim], wanted):
            return None
        boxes[operand] = {dim: wanted}
    met: dict[fx.Node, list[NDArray[np.int32]]] = {}
    for operand, numbers in aligned.constants:
        met.setdefault(operand, []).append(numbers[kept] if len(numbers) > 1 else numbers)
    for operand, numbers_met in met.items():
        elements = np.unique(np.concatenate([numbers.ravel() for numbers in numbers_met]))
        cut = box_of(elements.astype(np.int64), step.facts.shape(operand))
        if cut is None:
            return None
        boxes[operand] = cut
    return boxes


def on_whole_tensors(step: StepGraph, node: fx.Node, rows: Box) -> fx.Node | None:
    """An operator of a divided layer on all channels, with zeros for what other parts hold.

    Channels do not mix, or each task takes only its own slice of every parameter: so the step's own
    results are right, and the others are never used. None if it can't be cut by the rows given.
    """
    cut, boxes = None, dict[fx.Node, Box]()
    if rows:
        ((dim, kept),) = rows.items()
        is_same_index = isinstance(step.facts.effect(node)[0], SameIndex)
        cut = row_cut(step, node, kept) if is_same_index else None
        taken = None if cut is None else _rows_of_others(step, node, dim, kept, cut)
        if cut is None or taken is None:
            return None
        cut, boxes = replace(cut, taken=taken), {**cut.asked}
    operands = {}
    for operand in step.operands(node):
        if operand.name in step.graph.ids or _is_read(step, operand):
            operands[operand] = step.value(operand, boxes.get(operand, WHOLE))
        else:
            operands[operand] = _spread_slice(step, node, operand)
    divisor = argument(node, "other") if operator_of(node).divides else None
    if divisor in operands:
        operands[divisor] = _without_zeros(step, node, operands[divisor])
    return step.emit(node, operands) if cut is None else cut.emit(step, node, operands)


def _without_zeros(step: StepGraph, node: fx.Node, divisor: fx.Node) -> fx.Node:
    """A divisor with ones where only other parts' channels are divided by it.

    Dividing by zero makes gradients that are no numbers, also for operands that the part has.
    """
    of_channels = step.graph.ids[first_result(node).name]
    own = np.isin(of_channels.numpy(), step.own_channels)
    dims = [dim for dim in range(own.ndim) if ids.constant_along(of_channels, dim)]
    mask = own[tuple(slice(1) if dim in dims else slice(None) for dim in range(own.ndim))]
    return step.call(aten.where.ScalarOther, step.mask(mask), divisor, 1)


def _is_read(step: StepGraph, operand: fx.Node) -> bool:
    """Whether a constant is, or is computed from, something that another task holds and sends."""
    return operand in step.sources or (
        operand.op == "call_function"
        and operand not in step.facts.makers
        and any(_is_read(step, origin) for origin in operand.all_input_nodes)
    )


def _spread_slice(step: StepGraph, node: fx.Node, operand: fx.Node) -> fx.Node:
    """The elements of a constant that the step's tasks hold, with zeros for the rest."""
    numbers = _met_by_own_channels(step, node, operand)
    if numbers is not None:
        result = held_constants.spread_out(step, operand, numbers)
        return step.value(operand) if result is None else result
    shape = step.facts.shape(operand)
    box = _slice_of_tasks(step, node, operand)
    result = step.value(operand, box)
    for dim, kept in box.items():
        if len(kept) < shape[dim]:
            result = step.call(spread, result, dim, step.index(kept), shape[dim])
    return result


def _met_by_own_channels(step: StepGraph, node: fx.Node, operand: fx.Node) -> Int64 | None:
    """Numbers of a constant's elements that meet the step's channels, for a same-index operator."""
    effect, origins = step.facts.effect(node)
    ids = step.graph.ids.get(first_result(node).name)
    if isinstance(effect, SameIndex) and ids is not None:
        for constant, elements in effect.constants:
            if origins[min(constant.origins)] is operand:
                own = np.isin(ids.numpy(), step.own_channels)
                return np.unique(elements.expand(ids.shape).numpy()[own])
    return None


def _slice_of_tasks(step: StepGraph, node: fx.Node, operand: fx.Node) -> Box:
    """The slices of a constant that the step's tasks hold, one each; {} for the whole constant."""
    effect, shape = step.facts.effect(node)[0], step.facts.shape(operand)
    axes = [dim for dim, size in enumerate(shape) if size == step.layer.tasks]
    if isinstance(effect, Mix):
        named = [dim for name, dim in effect.slices.items() if argument(node, name) is operand]
        axes = named[:1] or axes
    elif isinstance(effect, Matrices):
        axes = []  # a place may need all elements
    if len(axes) > 1 and operand.name in step.traced.parameters:
        raise PlacementError(
            f"{step.layer.name}: which dimension of {step.traced.parameters[operand.name]} "
            f"{shape} counts its {step.layer.tasks} tasks is not known: accepted is a channel "
            "rule that says it in Mix.slices"
        )
    return {axes[0]: step.tasks} if len(axes) == 1 else {}
