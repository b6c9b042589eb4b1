"""Partition -> Ownership: which part finishes each task, and which cells of a split task it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hgpart.arrays import Int64
from hgpart.hypergraph.modelling import Statistic
from hgpart.layers.channel_graph import Layer, Read
from hgpart.partition import Partition
from hgpart.placement.cutting.products import Rectangle


@dataclass(frozen=True, eq=False)
class Tile:
    """Tasks of a layer in one part, all in the same rows: in neighbouring bands.

    Attributes
    ----------
    tasks : int64 array
        Tasks, ascending.
    rows : int64 array or None
        Rows of their maps, ascending; None for all, in a layer whose rows are not told apart.
    bands : range
        The bands that these rows are.
    """

    tasks: Int64
    rows: Int64 | None
    bands: range = range(1)


@dataclass(frozen=True, eq=False)
class Ownership:
    """The part that computes each task.

    Attributes
    ----------
    finish : tuple of int64 arrays of shape (bands, tasks), or None
        The part of each task in each band of rows, per layer; None for a layer without vertices.
    row_cuts : tuple of tuple of int
        The first row of each band of each layer, and then its number of rows; 1 if rows are not
        told apart.
    computing : tuple of int64 arrays of shape (bands, tasks), or None
        The same as `finish`, but for the bands of sums over rows: the part of each partial sum.
    cell_cuts : tuple of tuple of int
        The same as `row_cuts`, but for sums over rows: the first row of each band that is summed.
    cells : tuple of tuples of Rectangles, or None
        For each layer that the fine-grain model splits, for statistics of channels, and for sums
        over rows, the rectangles of each part; no task is in two rectangles of one part.
    splits : tuple of int or None
        Number of the read whose channels split the tasks, or make statistics, per layer. It is a
        number because the
        partition may refer to a copy of the graph, as when it comes from another process.
    """

    k: int
    finish: tuple[Int64 | None, ...]
    row_cuts: tuple[tuple[int, ...], ...]
    computing: tuple[Int64 | None, ...]
    cell_cuts: tuple[tuple[int, ...], ...]
    cells: tuple[tuple[tuple[Rectangle, ...], ...] | None, ...]
    splits: tuple[int | None, ...]

    @property
    def tells_rows(self) -> bool:
        """Whether the rows of some layer are divided."""
        return any(len(cuts) > 2 for cuts in self.cell_cuts)

    def sums_rows(self, at: int) -> bool:
        """Whether a layer's tasks are sums over rows, of which bands make partial sums."""
        return self.cells[at] is not None and self.splits[at] is None

    def height(self, at: int) -> int:
        """Number of rows of a layer that are told apart; 1 if none are."""
        return self.row_cuts[at][-1]

    def tiles(self, at: int, part: int) -> list[Tile]:
        """The tiles of a layer that a part finishes, from the first row on."""
        finish, cuts = self.finish[at], self.row_cuts[at]
        if finish is None:
            return []
        here = finish == part
        changes = np.flatnonzero((here[1:] != here[:-1]).any(axis=1)) + 1
        return [
            Tile(
                np.flatnonzero(here[first]),
                np.arange(cuts[first], cuts[last]) if self.height(at) > 1 else None,
                range(first, last),
            )
            for first, last in pairwise([0, *changes.tolist(), len(here)])
            if here[first].any()
        ]


def ownership(partition: Partition) -> Ownership:
    """Read from a partition which part computes what."""
    model = partition.model
    parts = partition.parts.astype(np.int64)
    finish: list[Int64 | None] = []
    computing: list[Int64 | None] = []
    cells: list[tuple[tuple[Rectangle, ...], ...] | None] = []
    splits: list[int | None] = []
    for at, (view, layout) in enumerate(zip(model.views, model.layouts, strict=True)):
        layer, read = view.layer, view.split if view.exists else None
        read = view.read_as_statistic or read
        is_split = (number for number, other in enumerate(layer.reads) if other is read)
        splits.append(next(is_split, None))
        in_bands = model.in_bands[: len(view.row_cuts) - 1, model.task_vertices[at]]
        finish.append(None if layout is None else parts[in_bands])
        computing.append(finish[-1])
        if layout is not None and view.total is not None:
            of_tasks = layout.row_starts[model.task_vertices[at] - layout.finish]
            computing[-1] = own = parts[model.in_bands[: view.bands, of_tasks]]
            tasks, rows = np.arange(layer.tasks + 1), np.array(view.cell_cuts)
            cells.append(
                tuple(_rectangles(part == own.T, tasks, rows) for part in range(partition.k))
            )
            continue
        if layout is None or read is None or view.statistic is not None:
            cells.append(None)
            continue
        rows, columns = _cuts(layer, read, model.blocks.rows[at], model.blocks.columns[at])
        row_blocks = np.searchsorted(model.blocks.rows[at], rows[:-1], "right") - 1
        column_blocks = np.searchsorted(model.blocks.columns[at], columns[:-1], "right") - 1
        groups_of_rows = rows[:-1] * read.groups // layer.tasks
        groups_of_columns = columns[:-1] * read.groups // len(read.channels)
        same = groups_of_rows[:, None] == groups_of_columns[None, :]
        table = np.full(same.shape, -1, dtype=np.int64)
        row_at, column_at = np.nonzero(same)
        table[row_at, column_at] = parts[layout.cell(row_blocks[row_at], column_blocks[column_at])]
        cells.append(
            tuple(_rectangles(table == part, rows, columns) for part in range(partition.k))
        )
    for at, view in enumerate(model.views):
        if view.statistic is not None:
            cells[at] = _takers(partition, view.statistic, view.layer, finish)
    return Ownership(
        partition.k,
        tuple(finish),
        tuple(view.row_cuts for view in model.views),
        tuple(computing),
        tuple(view.cell_cuts for view in model.views),
        tuple(cells),
        tuple(splits),
    )


def _takers(
    partition: Partition, statistic: Statistic, layer: Layer, finish: Sequence[Int64 | None]
) -> tuple[tuple[Rectangle, ...], ...]:
    """The channels of each group that each part takes, each with the tasks of the group."""
    first_task, read = partition.model.graph.first_task, statistic.read
    layers = np.searchsorted(first_task, statistic.takers, "right") - 1
    parts = np.zeros(len(layers), dtype=np.int64)
    for at in np.unique(layers).tolist():
        own, here = finish[at], layers == at
        assert own is not None  # it has vertices, as it is no input
        parts[here] = own[0, statistic.takers[here] - first_task[at]]
    by_group = parts.reshape(read.groups, -1)
    groups = np.arange(layer.tasks) * read.groups // layer.tasks
    return tuple(
        tuple(
            Rectangle(np.flatnonzero(groups == group), group * len(own) + np.flatnonzero(here))
            for group, own in enumerate(by_group)
            if (here := own == part).any()
        )
        for part in range(partition.k)
    )


def _cuts(layer: Layer, read: Read, rows: Int64, columns: Int64) -> tuple[Int64, Int64]:
    """Cut blocks once more where groups begin, so that a cell lies in one group."""
    groups = np.arange(read.groups + 1)
    return (
        np.union1d(rows, -(-groups * layer.tasks // read.groups)),
        np.union1d(columns, groups * (len(read.channels) // read.groups)),
    )


def _rectangles(held: np.ndarray, rows: Int64, columns: Int64) -> tuple[Rectangle, ...]:
    """Make a rectangle of all row blocks that have the same columns."""
    members: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(held.any(axis=1)).tolist():
        members.setdefault(held[row].tobytes(), []).append(row)
    return tuple(
        Rectangle(
            _runs(rows, np.array(blocks)),
            _runs(columns, np.flatnonzero(held[blocks[0]])),
        )
        for blocks in members.values()
    )


def _runs(cuts: Int64, blocks: Int64) -> Int64:
    """The numbers that blocks consist of."""
    return np.concatenate([np.arange(cuts[block], cuts[block + 1]) for block in blocks.tolist()])
