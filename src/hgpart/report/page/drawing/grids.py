"""Report -> grids: tables of shaded cells, of parts by parts and of layers by parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hgpart.files.columns import UNITS
from hgpart.report.partition.record import Report, layer_shares
from hgpart.report.partition.slice_shares import SliceShares, ranges

MOST_CELLS = 2048  # filled cells that a page has room for; more are taken together


@dataclass(frozen=True)
class ShadedGrid:
    """What page.js draws as a table of shaded cells.

    Attributes
    ----------
    rows, columns : list of str
        Headings.
    across : str
        What the columns are.
    unit : str
        Unit of the figures.
    cells : list of list
        The filled cells of each row: column, shade from 0 to 100, figure, details.
    """

    rows: list[str]
    columns: list[str]
    across: str
    unit: str
    cells: list[list[tuple[int, int, str, str]]]


def traffic_grid(report: Report, unit: str) -> ShadedGrid:
    """Bytes that each part (row) sends to each other part (column) in a forward pass."""
    traffic, both = report.partition.evaluation.traffic, (0, 1)
    size = neighbours(traffic, both)
    sent, messages = (
        together(matrix, size, both) for matrix in (traffic, report.partition.evaluation.messages)
    )
    largest = max(1, int(sent.max()))
    cells = [
        [
            (
                column,
                _shade(sizes[column] / largest),
                f"{sizes[column] / UNITS[unit]:,.3g}",
                f"{counts[column]:,} messages",
            )
            for column in np.flatnonzero(sizes).tolist()
        ]
        for sizes, counts in zip(sent, messages, strict=True)
    ]
    names = _names(report.partition.k, size)
    return ShadedGrid(names, names, "receives", unit, cells)


def layer_grid(report: Report) -> ShadedGrid:
    """The share of each layer (row) that each part (column) computes, in percent."""
    shown = [view for view in report.partition.model.views if view.exists]
    layers = np.array([layer_shares(report, view) for view in shown])
    size = neighbours(layers, (1,))
    tasks = together(report.partition.shares.layer_tasks[[view.at for view in shown]], size, (1,))
    cells = [
        [
            (at, _shade(shares[at]), f"{100 * shares[at]:.3g}", f"{counts[at]:,} tasks")
            for at in np.flatnonzero(shares).tolist()
        ]
        for shares, counts in zip(together(layers, size, (1,)), tasks, strict=True)
    ]
    names = [view.layer.name for view in shown]
    return ShadedGrid(names, _names(report.partition.k, size), "part", "% of the layer", cells)


def slices_grid(report: Report) -> ShadedGrid | None:
    """The slices of each layer (row) that each part (column) computes filters of.

    None where there are more cells than a page has room for.
    """
    shown = [
        (view.layer.name, groups)
        for view, groups in zip(report.partition.model.views, report.slices_of_layers, strict=True)
        if groups
    ]
    cells = [
        [_held_slices(groups, part, report.partition.modelling.slices) for part in _holders(groups)]
        for _, groups in shown
    ]
    if sum(map(len, cells)) > MOST_CELLS:
        return None
    return ShadedGrid(
        [name for name, _ in shown], _names(report.partition.k, 1), "part", "slices", cells
    )


def _holders(groups: Sequence[SliceShares]) -> list[int]:
    return sorted({int(part) for group in groups for part in group.parts})


def _held_slices(
    groups: Sequence[SliceShares], part: int, slices: int
) -> tuple[int, int, str, str]:
    """A cell: which slices the part has filters of, and of each run of them what share."""
    held = {
        int(at): float(share)
        for group in groups
        for owner, share in zip(group.parts, group.shares, strict=True)
        if owner == part
        for at in group.slices
    }
    shares: dict[str, list[int]] = {}
    for at in sorted(held):
        shares.setdefault(f"{100 * held[at]:.4g} % of its filters", []).append(at)
    details = "; ".join(f"{text} in {ranges(numbers)}" for text, numbers in shares.items())
    return part, _shade(sum(held.values()) / slices), ranges(sorted(held)), details


def _names(k: int, size: int) -> list[str]:
    return [ranges(range(start, min(k, start + size))) for start in range(0, k, size)]


def neighbours(values: np.ndarray, axes: Sequence[int]) -> int:
    """How many neighbouring parts share a column, so that the filled cells have room.

    >>> neighbours(np.eye(64), (0, 1)), neighbours(np.ones((64, 64)), (0, 1))
    (1, 2)
    """
    size = 1
    while np.count_nonzero(together(values, size, axes)) > MOST_CELLS and size < values.shape[-1]:
        size *= 2
    return size


def together(values: np.ndarray, size: int, axes: Sequence[int]) -> np.ndarray:
    """Sums over `size` neighbours along some axes.

    >>> together(np.arange(6).reshape(2, 3), 2, (1,)).tolist()
    [[1, 2], [7, 5]]
    """
    for axis in axes:
        values = np.add.reduceat(values, range(0, values.shape[axis], size), axis)
    return values


def _shade(share: float) -> int:
    """Percent, at least 1 where there is something."""
    return max(1, round(100 * float(share)))
