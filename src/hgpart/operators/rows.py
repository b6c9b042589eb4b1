"""Outcomes of rules for rows: how the rows of a result depend on the rows of each operand.

A rule gets a `Call` whose operands with rows are `Rows`; all others are constants to it. It
answers that the operator is `Local`, that the result is `Summed` over all rows, or that it needs
`AllRows`. An operator without such a rule keeps rows apart where it keeps samples apart: its rule
for samples is asked, with rows in place of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hgpart.operators.effects import Call, Channels, Effect, Reindex, SameIndex, operands_of
from hgpart.operators.ids import constant_along, core
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


@dataclass(frozen=True, eq=False)
class Local:
    """Each row of the result is computed from a window of rows of each operand.

    Attributes
    ----------
    dim : int
        Dimension of the result's rows.
    windows : tuple of Windows
        Windows of the result's rows on each operand with rows, in the order of the operands.
    """

    dim: int
    windows: tuple[Windows, ...]


@dataclass(frozen=True)
class Summed:
    """The result has no rows: it is a sum or mean over all of them, so partial sums can travel."""


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
    choices = [Local(dim, tuple(windows_along(tensors, dim, numbered))) for dim in dims]
    return min(choices, key=lambda local: max(windows.widest for windows in local.windows))
