"""Report -> grids: tables of shaded cells, of parts by parts and of layers by parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hgpart.report import UNITS, Report
from hgpart.report.partition.record import layer_shares
from hgpart.report.partition.slice_shares import SliceShares

MOST_CELLS = 8192  # that a page has room for; more are taken together
LARGEST_SHADE = 100


@dataclass(frozen=True)
class Grid:
    """What page.js draws as a table of shaded cells.

    Attributes
    ----------
    rows, columns : list of str
        Headings.
    across : str
        What the columns are.
    unit : str
        Of the figures.
    cells : list of list
        Of each row, those that are not empty: column, shade from 0 to 100, figure, details.
    """

    rows: list[str]
    columns: list[str]
    across: str
    unit: str
    cells: list[list[tuple[int, int, str, str]]]


def traffic_grid(report: Report, unit: str) -> Grid:
    """Bytes that each part (row) sends to each other part (column) in a forward pass."""
    runs = runs_of_parts(report.k)
    first = [run[0] for run in runs]
    sums = [report.evaluation.traffic, report.evaluation.messages]
    sent, messages = (np.add.reduceat(np.add.reduceat(one, first, 0), first, 1) for one in sums)
    largest = max(1, int(sent.max()))
    cells = [
        [
            (
                column,
                _shade(sent[row, column] / largest),
                f"{sent[row, column] / UNITS[unit]:,.3g}",
                f"{messages[row, column]:,} messages",
            )
            for column in np.flatnonzero(sent[row]).tolist()
        ]
        for row in range(len(runs))
    ]
    names = list(map(_named, runs))
    return Grid(names, names, "receives", unit, cells)


def layer_grid(report: Report) -> Grid:
    """The share of each layer (row) that each part (column) computes, in percent."""
    shown = [view for view in report.blocks.views if view.exists]
    runs = runs_of_parts(report.k, len(shown))
    first = [run[0] for run in runs]
    cells = []
    for view in shown:
        shares = np.add.reduceat(layer_shares(report, view), first)
        tasks = np.add.reduceat(report.shares.layer_tasks[view.at], first)
        cells.append(
            [
                (at, _shade(shares[at]), f"{100 * shares[at]:.3g}", f"{tasks[at]:,} tasks")
                for at in np.flatnonzero(shares).tolist()
            ]
        )
    names = [view.layer.name for view in shown]
    return Grid(names, list(map(_named, runs)), "part", "% of the layer", cells)


def slices_grid(report: Report) -> Grid:
    """The slices of each layer (row) that each part (column) computes filters of."""
    shown = [
        (view.layer.name, groups)
        for view, groups in zip(report.blocks.views, report.slices_of_layers, strict=True)
        if groups
    ]
    cells = [
        [_held_slices(groups, part, report.modelling.slices) for part in _holders(groups)]
        for _, groups in shown
    ]
    names = [name for name, _ in shown]
    return Grid(names, list(map(str, range(report.k))), "part", "slices", cells)


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
    details = "; ".join(f"{text} in {_runs(numbers)}" for text, numbers in shares.items())
    return part, _shade(sum(held.values()) / slices), _runs(sorted(held)), details


def _runs(numbers: Sequence[int]) -> str:
    """Of ascending numbers.

    >>> _runs([0, 1, 2, 5])
    '0-2, 5'
    """
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return ", ".join(_named(run) for run in np.split(np.array(numbers), breaks))


def _named(run: Sequence[int] | np.ndarray) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def runs_of_parts(k: int, rows: int | None = None) -> list[range]:
    """Neighbouring parts that share a column, so that the cells of as many rows have room.

    Without a number of rows they are runs of parts, too.

    >>> runs_of_parts(4, 100)
    [range(0, 1), range(1, 2), range(2, 3), range(3, 4)]
    >>> len(runs_of_parts(128, 200)), runs_of_parts(128, 200)[0]
    (32, range(0, 4))
    """
    size = 1
    while (columns := -(-k // size)) * (
        columns if rows is None else rows
    ) > MOST_CELLS and columns > 1:
        size *= 2
    return [range(start, min(k, start + size)) for start in range(0, k, size)]


def _shade(share: float) -> int:
    """At least 1 where there is something."""
    return max(1, round(LARGEST_SHADE * float(share)))
