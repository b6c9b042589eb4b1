"""Rules for rows of operators: convolutions, pooling, interpolation, padding, sums, attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from hgpart.arrays import Float64, Int64
from hgpart.operators import samples
from hgpart.operators.channelwise import reduction
from hgpart.operators.effects import Call, Effect
from hgpart.operators.rows import (
    LEFT_ALONE,
    AllRows,
    EvenSpans,
    Kernel,
    Local,
    RowEffect,
    RowMaking,
    RowRule,
    Rows,
    Scaling,
    Summed,
    UpToOwn,
    Weighting,
    operands_with_rows,
)
from hgpart.operators.windows import Windows


def setting(call: Call, name: str, at: int, default: float | None = None) -> Any:
    """An argument that is a number for each spatial dimension, or one for all: that of one."""
    value = call.argument(name)
    if value is None or value == []:
        return default
    if isinstance(value, (list, tuple)):
        return value[at] if len(value) > 1 else value[0]
    return value


def _kept(value: Rows) -> Local:
    """What an operator does to rows in a dimension that it leaves alone."""
    return Local(value.dim, (Windows.identity(value.height),), LEFT_ALONE)


# ------------------------------------------------------------------ convolutions


def convolution(call: Call) -> RowEffect:
    """A convolution, transposed if its argument ``transposed`` says so."""
    return _convolved(call, bool(call.argument("transposed")))


def transposed_convolution(call: Call) -> RowEffect:
    """A transposed convolution."""
    return _convolved(call, True)


def _convolved(call: Call, transposed: bool) -> RowEffect:
    value, weight = call.argument("input"), call.argument("weight")
    if not isinstance(value, Rows) or len(operands_with_rows(call)) > 1:
        return AllRows("a convolution whose weight is computed from rows")
    at = value.dim - (len(value.shape) - (len(weight.shape) - 2))  # among the spatial dimensions
    if at == -1:
        return AllRows("a convolution whose channels are rows")
    if at < 0:
        return _kept(value)
    kernel, count = weight.shape[2 + at], call.shape[value.dim]
    dilation = setting(call, "dilation", at, 1)
    padding, stride = setting(call, "padding", at, 0), setting(call, "stride", at, 1)
    spatial = len(weight.shape) - 2
    return _slid(value, count, Kernel(at, spatial, kernel, stride, dilation, padding, transposed))


def _slid(value: Rows, count: int, kernel: Kernel) -> Local:
    """What a kernel does that makes `count` rows."""
    moves = Windows.spread if kernel.spreads else Windows.sliding
    windows = moves(
        kernel.size,
        value.height,
        count,
        stride=kernel.stride,
        dilation=kernel.dilation,
        padding=kernel.padding,
    )
    return Local(value.dim, (windows,), kernel)


# ------------------------------------------------------------------ pooling


def pooling(count: int, adds: bool = False) -> RowRule:
    """The rule of pooling over the last `count` dimensions; `adds` if it is a mean."""

    def rule(call: Call) -> RowEffect:
        value = call.args[0]
        at = value.dim - (len(value.shape) - count)
        if at < 0:
            return _kept(value)
        size = setting(call, "kernel_size", at)
        stride, padding = setting(call, "stride", at, size), setting(call, "padding", at, 0)
        dilation = setting(call, "dilation", at, 1) if not adds else 1
        kernel = Kernel(at, count, size, stride, dilation, padding)
        local = _slid(value, call.shape[value.dim], kernel)
        (windows,) = local.windows
        covers = kernel.size == windows.widest == value.height > 1
        if adds and len(windows) == 1 and covers and call.argument("divisor_override") is None:
            return Summed(averages=True)
        return local

    return rule


def adaptive_pooling(count: int, adds: bool = False) -> RowRule:
    """The rule of pooling to a given size over the last `count` dimensions."""

    def rule(call: Call) -> RowEffect:
        value = call.args[0]
        if value.dim < len(value.shape) - count:
            return _kept(value)
        height, rows = value.height, call.shape[value.dim]
        if rows == 1 and height > 1:
            return Summed(averages=True) if adds else AllRows("a maximum over all rows")
        numbers = np.arange(rows)
        first, last = numbers * height // rows, -(-(numbers + 1) * height // rows)
        at = value.dim - (len(value.shape) - count)
        return Local(value.dim, (Windows.of_spans(first, last, height),), EvenSpans(at, count))

    return rule


def random_pooling(call: Call) -> RowEffect:
    """Pooling whose windows are drawn."""
    return AllRows("its windows are drawn as the model runs")


# ------------------------------------------------------------------ interpolation

ACROSS = 2  # places across rows where torch interpolates: along one place it aligns no corners
SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}


def interpolation(count: int) -> RowRule:
    """The rule of interpolation over the last `count` dimensions.

    The operator itself is run on rows that are zero but for some of them: what is not zero in the
    result reads these, and is their weight. So a row counts as read if its weight is not zero.
    """

    def rule(call: Call) -> RowEffect:
        value = call.args[0]
        at = value.dim - (len(value.shape) - count)
        if at < 0:
            return _kept(value)
        height, rows = value.height, call.shape[value.dim]
        scale = setting(call, "scale_factors", at) or call.argument(SCALES[count][at])
        evenly = rows % height == 0 and scale in (None, rows // height)
        shifts = evenly and not call.argument("align_corners")
        double = call.node.meta["val"].dtype == torch.float64
        windows, weights = _interpolated(call, value, count, at, torch.float64)
        if not double:  # rounding may have decided which rows are read
            windows, rounded = _interpolated(call, value, count, at, torch.float32)
            weights = weights if len(weights) == len(rounded) else rounded
        by = Scaling(at, count, rows // height) if shifts else Weighting(at, count, weights)
        return Local(value.dim, (windows,), by)

    return rule


def _interpolated(
    call: Call, value: Rows, count: int, at: int, dtype: torch.dtype
) -> tuple[Windows, Float64]:
    """The rows that are read, and the weight of each."""
    height, rows = value.height, call.shape[value.dim]
    scale = setting(call, "scale_factors", at) or call.argument(SCALES[count][at])
    aligns = bool(call.argument("align_corners"))
    step = 1 / scale if scale and not aligns else height / rows
    if aligns:
        step = (height - 1) / max(1, rows - 1)
    # Marked rows lie further apart than a window is wide, so each is told by where it is met.
    apart = min(height, 8 * math.ceil(max(1.0, step, height / rows)) + 8)
    marked = torch.zeros(1, apart, height, dtype=dtype)
    marked[0, torch.arange(height) % apart, torch.arange(height)] = 1
    marked = marked.reshape(1, apart, *_at([1] * count, at, height))
    marked = marked.expand(1, apart, *_at([ACROSS] * count, at, height)).contiguous()
    met = _run_along_rows(call, marked, count, at, scale)
    met = met[0].movedim(1 + at, 1).reshape(apart, rows, -1)[:, :, 0]
    marks, read_by = np.nonzero(met.numpy())
    centres = read_by * step if aligns else (read_by + 0.5) * step - 0.5
    read = marks + apart * np.rint((centres - marks) / apart).astype(np.int64)
    read = np.where(read < 0, read + apart, np.where(read >= height, read - apart, read))
    order = np.lexsort((read, read_by))
    weights = met.numpy()[marks, read_by][order].astype(np.float64)
    return Windows.of_pairs(read_by, read, rows, height), weights


def _run_along_rows(
    call: Call, marked: torch.Tensor, count: int, at: int, scale: float | None
) -> torch.Tensor:
    """An interpolation of a tensor whose other spatial dimensions have `ACROSS` places and keep."""
    rows = call.shape[-count + at]
    given: list[Any] = []
    for declared in call.node.target._schema.arguments:  # type: ignore[union-attr]
        name, argument = declared.name, call.argument(declared.name)
        if name in ("input", "self"):
            argument = marked
        elif name == "output_size" and argument is not None:
            argument = _at([ACROSS] * count, at, rows)
        elif name == "scale_factors" and argument is not None:
            argument = _at([1.0] * count, at, scale)
        elif name in SCALES[count]:
            argument = scale if name == SCALES[count][at] else None
        given.append(argument)
    result: torch.Tensor = call.node.target(*given)  # type: ignore[operator]
    return result


def _at(sizes: list[Any], at: int, size: Any) -> list[Any]:
    return [*sizes[:at], size, *sizes[at + 1 :]]


# ------------------------------------------------------------------ numbers for each channel


def by_channel(call: Call) -> RowEffect | Effect:
    """Operators with numbers for each place of dimension 1, which may count rows."""
    if any(operand.dim == 1 for operand in operands_with_rows(call)):
        return AllRows("its channels are its rows")
    return samples.own_place(call)


# ------------------------------------------------------------------ padding


def framed(size: int, widths: list[int], mode: str) -> Int64:
    """The place that each place of a padded dimension is a copy of; -1 where it is a constant.

    >>> framed(4, [2, 1], "reflect").tolist()
    [2, 1, 0, 1, 2, 3, 2]
    """
    numbers = torch.arange(size, dtype=torch.float64).reshape(1, 1, -1)
    nothing = {"value": -1.0} if mode == "constant" else {}
    read = functional.pad(numbers, widths, mode, **nothing)
    return read.flatten().numpy().astype(np.int64)


def padding(mode: str = "constant") -> RowRule:
    """The rule of padding; an argument ``mode`` overrides the one given here."""

    def rule(call: Call) -> RowEffect:
        value = call.args[0]
        widths = call.argument("pad", call.argument("padding"))
        at = 2 * (len(value.shape) - 1 - value.dim)
        own = list(widths[at : at + 2])
        if not any(own):
            return _kept(value)
        try:
            numbers_read = framed(value.height, own, call.argument("mode") or mode)
        except RuntimeError:  # a circle of more rows than a negative width leaves
            return AllRows(f"padding by {own} rows of {value.height}")
        inside = np.flatnonzero(numbers_read >= 0)
        windows = Windows.of_pairs(inside, numbers_read[inside], len(numbers_read), value.height)
        return Local(value.dim, (windows,))

    return rule


# ------------------------------------------------------------------ sums


def averaged(call: Call) -> RowEffect | Effect:
    """A mean along some dimensions, or all."""
    return _total(call, averages=True)


def summed(call: Call) -> RowEffect | Effect:
    """A sum along some dimensions, or all."""
    return _total(call, averages=False)


def _total(call: Call, averages: bool) -> RowEffect | Effect:
    value, dims = call.args[0], call.argument("dim")
    rank = len(value.shape)
    of_all = dims is None or dims == []
    dims = range(rank) if of_all else [dims] if isinstance(dims, int) else dims
    return Summed(averages) if value.dim in {dim % rank for dim in dims} else reduction(call)


# ------------------------------------------------------------------ products of maps


def attention(call: Call) -> RowEffect | Effect:
    """Each row of the queries meets all rows of keys and values, or those up to its own place."""
    query = call.argument("query")
    if isinstance(query, Rows) and query.dim < len(query.shape) - 2:
        return samples.attention(call)
    by = UpToOwn() if call.argument("is_causal") else LEFT_ALONE
    return _times(call, query, call.argument("attn_mask"), by)


def matrices(call: Call) -> RowEffect | Effect:
    """Products of two maps: each row of the first matrix meets all of the second one."""
    first, second = call.args[:2]
    if isinstance(first, Rows) and first.dim == len(first.shape) - 2 and len(second.shape) > 1:
        return _times(call, first)
    return samples.matrices(call)


def _times(call: Call, first: Any, beside: Any = None, by: RowMaking = LEFT_ALONE) -> RowEffect:
    """Rows of a product whose first operand, and what is added, have theirs in its own places."""
    dim = len(call.shape) - 2
    windows = []
    for operand in operands_with_rows(call):
        is_at_place = operand is first or operand is beside
        if is_at_place and operand.dim - len(operand.shape) != -2:
            return AllRows(f"{call.node.name} mixes rows")
        if is_at_place:
            windows.append(Windows.identity(operand.height))
        elif operand.dim - len(operand.shape) < -2:
            return AllRows(f"{call.node.name} mixes rows")
        elif by == LEFT_ALONE:
            windows.append(Windows.all_rows(call.shape[dim], operand.height))
        else:
            ends = np.minimum(np.arange(call.shape[dim]) + 1, operand.height)
            windows.append(Windows.of_spans(np.zeros_like(ends), ends, operand.height))
    if not isinstance(first, Rows):
        return AllRows(f"{call.node.name} reads all rows")
    return Local(dim, tuple(windows), by)
