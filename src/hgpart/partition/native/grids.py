"""Parts of whole tasks -> fine-grain Division: each layer's task matrix as rows x columns.

m parts that share a layer's tasks as strips each need all maps that the layer reads. As cells of a
grid, R rows of parts, a map goes to R of them and each task's partial sums come from the c parts of
its row: for layer of map cost M and partial cost P that is R M + (c - 1) P instead of m M.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int64
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.partition.native.layer_shares import Shares
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.divisions import Division, rows_of_units
from hgpart.partition.symmetry.symmetry import Symmetry
from hgpart.sequences import distinct


@dataclass(frozen=True)
class TaskGrid:
    """Layout of one layer's task matrix: the row group of each task, the part of each cell."""

    row_group: Int64  # (tasks,)
    cells: Int64  # (row groups, columns)


def row_groups(shares: list[float], map_cost: float, partial_cost: float) -> list[list[int]]:
    """Group parts into rows of a grid so that R M + sum over parts of share (c - 1) P is least.

    The largest shares are in the smallest groups, so that groups are runs in order of size.
    """
    order = sorted(range(len(shares)), key=lambda part: -shares[part])
    reach = np.concatenate([[0.0], np.cumsum([shares[part] for part in order])])
    best, choice = [0.0], [0]
    for end in range(1, len(order) + 1):
        costs = [
            best[begin] + map_cost + partial_cost * (reach[end] - reach[begin]) * (end - begin - 1)
            for begin in range(end)
        ]
        choice.append(int(np.argmin(costs)))
        best.append(costs[choice[-1]])
    groups, end = [], len(order)
    while end > 0:
        groups.append([order[at] for at in range(choice[end], end)])
        end = choice[end]
    return groups[::-1]


def grid_start(problem: Problem, symmetry: Symmetry, shares: Shares) -> Division:
    """Lay out every split layer as a grid over the parts that have a share of it."""
    grids = {
        view.at: _grid(problem, view, shares)
        for view in problem.views
        if view.is_own and view.split is not None
    }
    elements = symmetry.elements
    count = len(elements.classes)
    owner = np.full(count, -1, dtype=np.int64)
    place = np.zeros(count, dtype=np.int64)
    keys = np.zeros(count, dtype=np.int64)
    for at, view in enumerate(problem.views):
        first = elements.tasks[at]
        if first < 0 or not view.is_first:
            continue
        span = slice(first, first + view.rows)
        owner[span], place[span] = at, np.arange(view.rows)
        keys[span] = shares.tasks[at][: view.rows]
        if at in grids:
            first, own = elements.columns[at], grids[at].cells.shape[1]
            span = slice(first, first + own)
            owner[span], place[span] = at, np.arange(own)
            keys[span] = np.unique(grids[at].cells.T, axis=0, return_inverse=True)[1].ravel()
    sizes, examples = rows_of_units(symmetry, keys)
    parts = [np.zeros(0, np.int32)] * len(symmetry.type_weights)
    for (number, slot), kind in elements.types.items():
        parts[kind] = keys[examples[number][:, slot]].astype(np.int32)
    for (number, slot, crossing, crossing_slot), kind in elements.cells.items():
        rows, columns = examples[number][:, slot], examples[crossing][:, crossing_slot]
        grid = grids[int(owner[rows[0]])]
        parts[kind] = grid.cells[grid.row_group[place[rows]]][:, place[columns]].astype(np.int32)
    return Division(sizes, parts)


def _grid(problem: Problem, view: LayerVertices, shares: Shares) -> TaskGrid:
    graph, layer, read = problem.graph, view.layer, view.split
    assert read is not None
    sources = graph.task_of_channel[np.maximum(read.channels, 0)]
    source_layers = np.searchsorted(graph.first_task, sources, "right") - 1
    owners = np.full(len(sources), -1, dtype=np.int64)
    map_costs = np.zeros(len(sources), dtype=np.int64)
    for source in distinct(source_layers).tolist():
        chosen, made_by = source_layers == source, shares.tasks[source]
        map_costs[chosen] = problem.views[source].map_elements
        if len(made_by):
            tasks = sources[chosen] - graph.first_task[source]
            owners[chosen] = made_by[np.minimum(tasks, len(made_by) - 1)]
    parts, share_of = shares.tasks[view.at], shares.parts[view.at]
    row_group = np.zeros(layer.tasks, dtype=np.int64)
    lines: list[Int64] = []
    per_group, channels = layer.tasks // read.groups, len(read.channels) // read.groups
    for group in range(read.groups):
        tasks = slice(group * per_group, (group + 1) * per_group)
        columns = slice(group * channels, (group + 1) * channels)
        holders = np.unique(parts[tasks]).tolist()
        own = [
            share_of.get(part, 0.0) if read.groups == 1 else float((parts[tasks] == part).sum())
            for part in holders
        ]
        total = sum(own)
        chosen = row_groups(
            [share / total for share in own],
            float(map_costs[columns].sum()),
            float(view.partial_elements * per_group),
        )
        for members in chosen:
            names = [holders[index] for index in members]
            row_group[tasks][np.isin(parts[tasks], names)] = len(lines)
            line = np.full(len(read.channels), -1, dtype=np.int64)
            line[columns] = _columns(owners[columns], names, [own[index] for index in members])
            lines.append(line)
    return TaskGrid(row_group, np.array(lines))


def _columns(owners: Int64, parts: list[int], shares: list[float]) -> Int64:
    """Divide columns among parts by their shares; what a part makes itself it reads if it can."""
    count = len(owners)
    reach = np.concatenate([[0.0], np.cumsum(shares)]) / sum(shares) * count
    ends = np.round(reach).astype(np.int64)
    quota: Int64 = ends[1:] - ends[:-1]
    result = np.full(count, -1, dtype=np.int64)
    for index, part in enumerate(parts):
        own = np.flatnonzero(owners == part)[: quota[index]]
        result[own] = part
        quota[index] -= len(own)
    result[result < 0] = np.repeat(np.array(parts), quota)
    return result
