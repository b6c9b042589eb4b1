"""Operators cut down to some rows of their results: what they read, and how they are called.

A convolution is given rows of zeros where its windows reach beyond the image, and does not pad
along rows. Pooling keeps its padding and is given rows that begin where one of its windows does;
what it makes of windows that reach beyond these rows is cut off, and so it is with interpolation to
a multiple of the rows. Other interpolation is called to interpolate along other dimensions alone;
what it makes is then added up by the weights of rows. Adaptive pooling is called window by window,
if windows are not those of the rows that it is given.
A causal attention is given a mask in place of that which it makes itself.
Any other operator is called on whole tensors, with zeros for the rows that the part lacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from hgpart.arrays import Int64
from hgpart.operators.calls import argument
from hgpart.operators.effects import Call
from hgpart.operators.rows import (
    LEFT_ALONE,
    EvenSpans,
    Kernel,
    OperatorRows,
    Scaling,
    SpatialMaking,
    UpToOwn,
    Weighting,
)
from hgpart.operators.spatial import SCALES, setting
from hgpart.operators.table import operator_of
from hgpart.placement.cutting.step_graph import Box, RowCut, StepGraph
from hgpart.sequences import Sequences


def row_cut(step: StepGraph, node: fx.Node, kept: Int64) -> RowCut | None:
    """How an operator makes some rows of its result; None if only whole tensors will do."""
    rows = step.facts.operator_rows.get(node)
    if rows is None or not len(kept) or _further_results_are_read(node):
        return None
    by = rows.by
    if by == LEFT_ALONE:
        return _row_by_row(rows, kept)
    if isinstance(by, UpToOwn):
        return _up_to_own(node, rows, kept)
    if by is None or len(rows.operands) != 1:
        return None
    if isinstance(by, EvenSpans):
        return _in_spans(node, rows, by, kept)
    if isinstance(by, Scaling):
        return _scaled(node, rows, by, kept)
    if isinstance(by, Weighting):
        return _weighted(node, rows, by, kept)
    if by.spreads:
        return _spreading(node, rows, by, kept)
    slides = _pooling if operator_of(node).product is None else _sliding
    return slides(node, rows, by, kept)


def _further_results_are_read(node: fx.Node) -> bool:
    """Whether more than a first result is read, such as places of maxima among all rows."""
    updates = operator_of(node).updates
    return isinstance(node.meta["val"], (tuple, list)) and any(
        user.users and user.args[1] != 0 and user.args[1] not in updates for user in node.users
    )


def _row_by_row(rows: OperatorRows, kept: Int64) -> RowCut | None:
    """Each row is computed from one row of each operand, or from all."""
    asked = {}
    for operand, (dim, windows) in rows.operands.items():
        reads = windows.reads
        if (reads.lengths[kept] == windows.height).all() and windows.height > 1:
            asked[operand] = {dim: np.arange(windows.height)}
            continue
        if (reads.lengths[kept] != 1).any():
            return None
        read = reads.values[reads.pointers[kept]]
        if (np.diff(read) <= 0).any():
            return None
        asked[operand] = {dim: read}
    return RowCut(rows.dim, asked, len(kept), np.arange(len(kept)))


def _up_to_own(node: fx.Node, rows: OperatorRows, kept: Int64) -> RowCut | None:
    """An attention of the queries of these rows to the keys and values that any of them reads."""
    query, last = argument(node, "query"), int(kept[-1]) + 1
    if any(operand not in rows.operands for operand in node.all_input_nodes):
        return None
    asked = {
        operand: {dim: kept if operand is query else np.arange(min(last, windows.height))}
        for operand, (dim, windows) in rows.operands.items()
    }
    given = {len(box[dim]) for operand, box in asked.items() if operand is not query for dim in box}
    (read,) = given
    mask = np.arange(read) <= kept[:, None]
    changed = {"is_causal": False}
    return RowCut(rows.dim, asked, len(kept), np.arange(len(kept)), changed=changed, mask=mask)


def _asked(rows: OperatorRows, first: int, last: int) -> dict[fx.Node, Box]:
    ((operand, (dim, _)),) = rows.operands.items()
    return {operand: {dim: np.arange(first, last)}}


def _height(rows: OperatorRows) -> int:
    ((_, windows),) = rows.operands.values()
    return windows.height


def with_rows(
    by: SpatialMaking, node: fx.Node, name: str, default: float, value: float
) -> list[float]:
    """An operator's argument for each spatial dimension, with `value` for that of the rows."""
    call = Call(node, node.args, dict(node.kwargs), ())
    sizes = [setting(call, name, at, default) for at in range(by.spatial)]
    return [*sizes[: by.at], value, *sizes[by.at + 1 :]]


def _sliding(node: fx.Node, rows: OperatorRows, kernel: Kernel, kept: Int64) -> RowCut | None:
    """A convolution: it is given zeros where its windows reach beyond the image."""
    height, stride = _height(rows), kernel.stride
    begin = int(kept[0]) * stride - kernel.padding
    end = int(kept[-1]) * stride - kernel.padding + kernel.reach + 1
    if begin >= height or end <= 0:  # it reads nothing but zeros
        return None
    first, last = max(begin, 0), min(end, height)
    pads = first - begin, end - last
    changed = {}
    if pads == (kernel.padding, kernel.padding):
        pads = 0, 0
    elif kernel.padding:
        changed["padding"] = with_rows(kernel, node, "padding", 0, 0)
    return RowCut(
        rows.dim,
        _asked(rows, first, last),
        int(kept[-1] - kept[0]) + 1,
        kept - kept[0],
        pads,
        changed,
    )


def _pooling(node: fx.Node, rows: OperatorRows, kernel: Kernel, kept: Int64) -> RowCut | None:
    """Pooling of rows that begin where a window does; it pads them as it does the image."""
    height, stride, padding = _height(rows), kernel.stride, kernel.padding
    ahead = max(0, int(kept[0]) * stride - padding) // stride
    first = ahead * stride
    last = min(height, int(kept[-1]) * stride - padding + kernel.reach + 1)
    given = last - first
    room = given + 2 * padding - kernel.reach - 1
    made = room // stride + 1
    if argument(node, "ceil_mode"):
        made = -(-room // stride) + 1
        made -= (made - 1) * stride >= given + padding
    if room < 0 or made <= kept[-1] - ahead:
        return None
    return RowCut(rows.dim, _asked(rows, first, last), made, kept - ahead)


def _spreading(node: fx.Node, rows: OperatorRows, kernel: Kernel, kept: Int64) -> RowCut | None:
    """A transposed convolution: of all that its rows make, only what is wanted is kept."""
    height, stride = _height(rows), kernel.stride
    begin, end = int(kept[0]) + kernel.padding, int(kept[-1]) + kernel.padding
    first = min(-(-(begin - kernel.reach) // stride), begin // stride)
    first = min(max(first, 0), height - 1)
    last = max(min(end // stride + 1, height), first + 1)
    made = (last - first - 1) * stride + kernel.reach + 1
    more = max(0, end - first * stride + 1 - made)
    changed = {
        "padding": with_rows(kernel, node, "padding", 0, 0),
        "output_padding": with_rows(kernel, node, "output_padding", 0, more),
    }
    wanted = kept + kernel.padding - first * stride
    return RowCut(rows.dim, _asked(rows, first, last), made + more, wanted, changed=changed)


def _in_spans(node: fx.Node, rows: OperatorRows, by: EvenSpans, kept: Int64) -> RowCut:
    """Adaptive pooling of the rows that are read, or of each window alone."""
    ((_, windows),) = rows.operands.values()
    reads, count = windows.reads, len(kept)
    firsts, lasts = reads.values[reads.pointers[kept]], reads.values[reads.pointers[kept + 1] - 1]
    first, height = int(firsts[0]), int(lasts[-1] - firsts[0]) + 1
    numbers = np.arange(count)
    alike = np.array_equal(firsts - first, numbers * height // count)
    alike &= np.array_equal(lasts + 1 - first, -(-(numbers + 1) * height // count))
    ends = np.stack([firsts, lasts + 1], axis=1) - first
    spans = () if alike else tuple((begin, end) for begin, end in ends.tolist())
    size = with_rows(by, node, "output_size", 1, count if alike else 1)
    asked = _asked(rows, first, first + height)
    return RowCut(rows.dim, asked, count, numbers, changed={"output_size": size}, spans=spans)


def _scaled(node: fx.Node, rows: OperatorRows, by: Scaling, kept: Int64) -> RowCut:
    """Interpolation of the rows that are read; it makes so many of each."""
    ((_, windows),) = rows.operands.values()
    reads = windows.reads
    read = reads.values[reads.pointers[kept[0]] : reads.pointers[kept[-1] + 1]]
    first, last = int(read.min()), int(read.max()) + 1
    first, last = min(first, int(kept[0]) // by.factor), max(last, int(kept[-1]) // by.factor + 1)
    made, changed = (last - first) * by.factor, dict[str, Any]()
    if argument(node, "output_size") is not None:
        changed["output_size"] = with_rows(by, node, "output_size", 1, made)
    wanted = kept - first * by.factor
    return RowCut(rows.dim, _asked(rows, first, last), made, wanted, changed=changed)


def _weighted(node: fx.Node, rows: OperatorRows, by: Weighting, kept: Int64) -> RowCut:
    """Interpolation of the rows that are read, along other dimensions; then rows are added up."""
    ((_, windows),) = rows.operands.values()
    starts, lengths = windows.reads.pointers[kept], windows.reads.lengths[kept]
    read = windows.reads.take(kept)
    first, last = int(read.values.min()), int(read.values.max()) + 1
    places = np.arange(len(read.values)) - read.pointers[read.owners], read.owners
    wanted = np.zeros((int(lengths.max()), len(kept)), dtype=np.int64)
    weights = np.zeros(wanted.shape)
    wanted[places] = read.values - first
    weights[places] = by.weights[Sequences.of_spans(starts, starts + lengths).values]
    changed = dict[str, Any]()
    if argument(node, "output_size") is not None:
        changed["output_size"] = with_rows(by, node, "output_size", 1, last - first)
    if argument(node, "scale_factors") is not None:
        changed["scale_factors"] = with_rows(by, node, "scale_factors", 1.0, 1.0)
    if argument(node, SCALES[by.spatial][by.at]) is not None:
        changed[SCALES[by.spatial][by.at]] = None
    asked = _asked(rows, first, last)
    return RowCut(rows.dim, asked, last - first, wanted, changed=changed, weights=weights)
