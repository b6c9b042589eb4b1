"""Rows of tensors: how those of results depend on those of operands, and how operators move them.

A rule gets a `Call` whose operands with rows are `Rows`; all others are constants to it. It
answers that the operator is `Local`, that the result is `Summed` over all rows, or that it needs
`AllRows`. An operator without such a rule keeps rows apart where it keeps samples apart: its rule
for samples is asked, with rows in place of samples.

Operators that only move elements have no rule for rows: they move the numbers of `NumberedRows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import fx

from hgpart.arrays import Float64
from hgpart.operators.effects import Call, Channels, Effect, Reindex, SameIndex, operands_of
from hgpart.operators.ids import NO_CHANNEL, constant_along, core
from hgpart.operators.windows import Windows


@dataclass(frozen=True)
class Rows(Channels):
    """A tensor with rows along dimension `dim`: `ids` are their numbers, from `first` on."""

    dim: int
    first: int = 0

    @property
    def height(self) -> int:
        """Number of rows."""
        return int(self.ids.shape[self.dim])


@dataclass(frozen=True)
class Kernel:
    """A window that slides along rows, as a convolution's, or a transposed one's, does.

    Attributes
    ----------
    at : int
        Place of the rows among the spatial dimensions, as in the operator's arguments.
    spatial : int
        Number of spatial dimensions.
    spreads : bool
        Whether rows of the operand slide over rows of the result, as in a transposed convolution.
    """

    at: int
    spatial: int
    size: int
    stride: int
    dilation: int
    padding: int
    spreads: bool = False

    @property
    def reach(self) -> int:
        """Rows from the first row of a window to its last."""
        return self.dilation * (self.size - 1)


@dataclass(frozen=True)
class EvenSpans:
    """Windows that are told by the number of rows of operand and result, as in adaptive pooling.

    `at` and `spatial` are as in `Kernel`.
    """

    at: int
    spatial: int


@dataclass(frozen=True)
class Scaling:
    """A result with so many rows for each row of the operand, as interpolation makes them.

    `at` and `spatial` are as in `Kernel`.
    """

    at: int
    spatial: int
    factor: int


@dataclass(frozen=True, eq=False)
class Weighting:
    """Rows that are sums of rows of the operand, each times a number, as interpolation makes them.

    `at` and `spatial` are as in `Kernel`.

    Attributes
    ----------
    weights : float64 array
        The number for each row of each window, in the order of the windows.
    """

    at: int
    spatial: int
    weights: Float64


@dataclass(frozen=True)
class UpToOwn:
    """Rows of an attention that read rows of keys and values up to their own place only."""


SpatialMaking = Kernel | EvenSpans | Scaling | Weighting
RowMaking = SpatialMaking | UpToOwn

# Each row is computed from the one row at its place.
LEFT_ALONE = Kernel(at=0, spatial=0, size=1, stride=1, dilation=1, padding=0)


@dataclass(frozen=True, eq=False)
class Local:
    """Each row of the result is computed from a window of rows of each operand.

    Attributes
    ----------
    dim : int
        Dimension of the result's rows.
    windows : tuple of Windows
        Windows of the result's rows on each operand with rows, in the order of the operands.
    by : RowMaking or None
        The rule behind the windows, by which a part calls the operator on its rows alone. With
        None it calls the operator on all rows, with zeros for those that it does not have.
    """

    dim: int
    windows: tuple[Windows, ...]
    by: RowMaking | None = None


@dataclass(frozen=True)
class Summed:
    """The result has no rows: it is a sum over all of them, so partial sums can travel.

    Attributes
    ----------
    averages : bool
        Whether it is divided by their number.
    """

    averages: bool


@dataclass(frozen=True)
class AllRows:
    """The result is computed from all rows, for a reason in words."""

    reason: str


RowEffect = Local | Summed | AllRows
RowRule = Callable[[Call], RowEffect | Effect]


def rows_in(shape: Sequence[int], dim: int, first: int = 0) -> Rows:
    """Rows of a tensor along a dimension, numbered from `first` on."""
    view = [1] * len(shape)
    view[dim] = -1
    numbers = torch.arange(first, first + shape[dim], dtype=torch.int32).reshape(view)
    return Rows(numbers.expand(tuple(shape)), dim, first)


def operands_with_rows(call: Call) -> tuple[Rows, ...]:
    """The operands of a call that have rows, in order."""
    return tuple(operand for operand in operands_of(call) if isinstance(operand, Rows))


def windows_along(
    ids: Iterable[torch.Tensor], dim: int, numbered: Sequence[tuple[int, int]]
) -> list[Windows]:
    """Windows of the places along a dimension, by the numbers of the rows that are met there.

    `numbered` has, for each operand, the number of its first row and how many rows it has.
    """
    places, numbers = [], []
    for tensor in ids:
        count = tensor.shape[dim]
        lines = core(tensor).movedim(dim, 0)
        lines = lines.expand(count, *lines.shape[1:]).reshape(count, -1)
        places.append(np.repeat(np.arange(count), lines.shape[1]))
        numbers.append(lines.flatten().numpy().astype(np.int64))
    place, number = np.concatenate(places), np.concatenate(numbers)
    windows = []
    for first, height in numbered:
        own = (number >= first) & (number < first + height)
        windows.append(Windows.of_pairs(place[own], number[own] - first, count, height))
    return windows


def of_effect(call: Call, effect: object, reason: str) -> RowEffect:
    """What an effect on the numbers of rows says; `reason` where it mixes them.

    Where an operator that moves elements leaves rows along several dimensions, as sliding windows
    do, that with the least windows counts rows.
    """
    if isinstance(effect, SameIndex):
        tensors = [ids.expand(call.shape) for ids in effect.operands]
    elif isinstance(effect, Reindex) and isinstance(effect.ids, torch.Tensor):
        tensors = [effect.ids]
    else:
        return AllRows(reason)
    dims = sorted(
        {dim for ids in tensors for dim in range(ids.dim()) if not constant_along(ids, dim)}
    )
    if len(dims) > 1 and isinstance(effect, SameIndex):
        return AllRows(f"{reason}: rows of its operands lie along different dimensions")
    if not dims:
        return AllRows(reason)
    numbered = [(operand.first, operand.height) for operand in operands_with_rows(call)]
    choices = [Local(dim, tuple(windows_along(tensors, dim, numbered)), LEFT_ALONE) for dim in dims]
    return min(choices, key=lambda local: max(windows.widest for windows in local.windows))


@dataclass(frozen=True, eq=False)
class OperatorRows:
    """The rows of a computing node's result, and the rows of its operands that they read.

    Attributes
    ----------
    dim : int
        Dimension of the result's rows.
    operands : mapping of fx.Node to (int, Windows)
        Operands with rows: the dimension of these, and the windows of the result's rows on them.
    by : RowMaking or None
        See `Local`.
    """

    dim: int
    operands: Mapping[fx.Node, tuple[int, Windows]]
    by: RowMaking | None


# ------------------------------------------------------------------ rows that operators move


@dataclass(eq=False)
class RowMaker:
    """A node that computes: its rows, numbered through all makers, and what they read.

    `dim` is None where the result has no rows; then it counts as one row. `layer` is None for an
    operator that only moves elements, by a rule for rows of a user. `by_operand` has what an
    operator reads through each operand, and `reads` all of it.
    """

    node: fx.Node
    layer: int | None
    start: int
    height: int
    dim: int | None
    by_operand: dict[fx.Node, dict[RowMaker, Windows]] = field(default_factory=dict)
    summed: dict[RowMaker, Windows] | None = None

    @property
    def reads(self) -> dict[RowMaker, Windows]:
        """What it reads through all operands."""
        united: dict[RowMaker, Windows] = {}
        for reads in self.by_operand.values():
            add_windows(united, reads)
        return united

    def read(
        self,
        operand: fx.Node,
        inner: Mapping[RowMaker, Windows],
        windows: Windows | None = None,
    ) -> None:
        """Note what is read through an operand, by windows on its rows or by a single row."""
        add_windows(self.by_operand.setdefault(operand, {}), inner, windows)


@dataclass(eq=False)
class NumberedRows:
    """A tensor: the row and the column of each element; `lost` says what merged rows with columns.

    Rows are numbers through all makers, -1 for constants. Columns differ between places of a row
    that are no channels, and between samples. Where it `is_unknown` which row is where, any place
    may be of all rows.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    makers: tuple[RowMaker, ...]
    lost: str = ""
    is_unknown: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(self.rows.shape)

    @cached_property
    def dims(self) -> list[int]:
        """Dimensions along which rows differ, of any one maker."""
        varying = [
            dim
            for dim in range(self.rows.dim())
            if self.rows.shape[dim] > 1 and self.rows.stride(dim) != 0
        ]
        if len(self.makers) == 1 or not varying:
            return [dim for dim in varying if _differs(self.rows, self.makers, dim)]
        return [
            dim for dim in varying if any(_differs(self.rows, (own,), dim) for own in self.makers)
        ]

    @cached_property
    def keeps_rows(self) -> bool:
        """Whether a dimension still counts rows, if there are any.

        It holds no columns. Where another one holds both, as channels do behind a pixel unshuffle,
        rows that come together there have been next to each other.
        """
        apart = [dim for dim in self.dims if constant_along(self.columns, dim)]
        if len(apart) == len(self.dims):
            return True
        if not apart or self.rows_along is None:
            return False
        return all(map(_in_order, self.rows_along[1].values()))

    def windows(self, dim: int) -> dict[RowMaker, Windows]:
        """What the places along a dimension read; all, where it is not known."""
        if self.is_unknown:
            count = self.shape[dim]
            return {maker: Windows.all_rows(count, maker.height) for maker in self.makers}
        numbered = [(maker.start, maker.height) for maker in self.makers]
        return dict(zip(self.makers, windows_along([self.rows], dim, numbered), strict=True))

    @cached_property
    def all_read(self) -> dict[RowMaker, Windows]:
        """The rows that are in it at all, read by a single row."""
        if self.is_unknown:
            return {maker: Windows.all_rows(1, maker.height) for maker in self.makers}
        numbers = np.unique(core(self.rows).numpy())
        reads = {}
        for maker in self.makers:
            own = numbers[(numbers >= maker.start) & (numbers < maker.start + maker.height)]
            places = np.zeros(len(own), np.int64)
            reads[maker] = Windows.of_pairs(places, own - maker.start, 1, maker.height)
        return reads

    @cached_property
    def rows_along(self) -> tuple[int, dict[RowMaker, Windows]] | None:
        """The dimension that counts rows, and what each row reads; None without rows.

        Where rows lie along several, as in a pixel unshuffle, it is the one with least windows.
        """
        apart = (dim for dim in self.dims if constant_along(self.columns, dim))
        choices = [(dim, self.windows(dim)) for dim in apart]
        if len(choices) <= 1:
            return choices[0] if choices else None

        def size(choice: tuple[int, dict[RowMaker, Windows]]) -> tuple[int, int]:
            windows = choice[1].values()
            most = max(reads.widest for reads in windows)
            return most, sum(len(reads.reads.values) for reads in windows)

        return min(choices, key=size)


def _differs(rows: torch.Tensor, makers: Iterable[RowMaker], dim: int) -> bool:
    """Whether rows of these makers differ along a dimension."""
    numbers = core(rows).numpy()
    own = np.zeros(numbers.shape, dtype=np.bool_)
    for maker in makers:
        own |= (numbers >= maker.start) & (numbers < maker.start + maker.height)
    least = np.where(own, numbers, np.iinfo(numbers.dtype).max).min(axis=dim)
    most = np.where(own, numbers, NO_CHANNEL).max(axis=dim)
    return bool((least < most).any())


def _in_order(windows: Windows) -> bool:
    """Whether no window reaches into another."""
    reads = windows.reads
    filled = np.flatnonzero(reads.lengths)
    first, last = reads.values[reads.pointers[filled]], reads.values[reads.pointers[filled + 1] - 1]
    order = np.argsort(first)
    return bool((first[order][1:] > last[order][:-1]).all())


def unknown_rows(shape: tuple[int, ...], makers: tuple[RowMaker, ...], reason: str) -> NumberedRows:
    """A map of which only the makers are known, not which of their rows are where."""
    nothing = torch.full((), NO_CHANNEL, dtype=torch.int32).expand(shape)
    return NumberedRows(nothing, nothing, makers, reason, is_unknown=True)


def add_windows(
    reads: dict[RowMaker, Windows],
    inner: Mapping[RowMaker, Windows],
    windows: Windows | None = None,
) -> None:
    """Add what an operand is computed from, by windows of the rows that read it."""
    for maker, own in inner.items():
        composed = own if windows is None else windows.compose(own)
        reads[maker] = reads[maker].union(composed) if maker in reads else composed
