"""Problem -> Numbering: the tasks, and the channels that split them, in one sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int64
from hgpart.hypergraph.channel_shares import channel_shares
from hgpart.hypergraph.modelling import LayerVertices, by_vertices
from hgpart.partition.problem.problem import Problem


@dataclass(frozen=True, eq=False)
class Numbering:
    """Numbers of the elements: tasks, and channels that split them.

    Attributes
    ----------
    tasks, columns : list of int
        Per layer the first element of its rows, and of the channels that split them; -1 where it
        has none. Tied layers share theirs.
    labels : int64 array, shape (elements, 5)
        Layer, group where that matters, of a channel the work of a cell and what it spans (-1 and
        -1 of a row), and of a row with a pin or a start the number of its masks; else -1.
    masks : bool array, shape (masks, 2, k)
        Parts that constraints allow, and those that have the weights already.
    cell_work : dict of int to int64 array
        For each first layer that is split, the work of a cell of each column, with tied layers'.
    root_of_task : int64 array, shape (tasks of all layers,)
        The element that makes each task's map; -1 where the layer has no vertices.
    """

    tasks: list[int]
    columns: list[int]
    labels: Int64
    masks: NDArray[np.bool_]
    cell_work: dict[int, Int64]
    root_of_task: Int64


def numbering(problem: Problem) -> Numbering:
    """Number the elements, layer by layer."""
    graph = problem.graph
    tasks, columns = [-1] * len(graph.layers), [-1] * len(graph.layers)
    root_of_task = np.full(int(graph.first_task[-1]), -1, dtype=np.int64)
    labels = [np.zeros((0, 5), np.int64)]
    rules = problem.layer_constraints
    masks, of_layers = (None, {}) if rules is None else rules.masks()
    cell_work: dict[int, Int64] = {}
    tied = by_vertices(problem.views)
    first = 0
    for at, view in enumerate(problem.views):
        if view.is_own:
            tasks[at], split = first, view.split
            pinned: Int64 | int = -1
            if rules is not None and at in of_layers:
                counts = np.diff(rules.cuts[at]) // view.tasks_per_row
                pinned = np.repeat(of_layers[at], counts)
            groups = 1 if split is None else split.groups
            labels.append(_labels(view, groups, view.rows, (-1, -1), pinned))
            first += view.rows
            if split is not None:
                columns[at] = first
                cell_work[at] = _cell_work(problem, tied[at])
                spans = cell_work[at], split.sizes
                labels.append(_labels(view, split.groups, view.columns, spans))
                first += view.columns
        if view.exists:
            tasks[at], columns[at] = tasks[view.first], columns[view.first]
            own = np.arange(view.layer.tasks) * (not view.is_solid)
            root_of_task[graph.first_task[at] : graph.first_task[at + 1]] = tasks[at] + own
    no_masks = np.zeros((0, 2, problem.k), dtype=np.bool_)
    return Numbering(
        tasks,
        columns,
        np.concatenate(labels),
        no_masks if masks is None else masks,
        cell_work,
        root_of_task,
    )


def _labels(
    view: LayerVertices,
    groups: int,
    count: int,
    spans: tuple[Int64 | int, Int64 | int],
    pinned: Int64 | int = -1,
) -> Int64:
    own = view.at, np.arange(count) * groups // count, *spans, pinned
    return np.stack([np.broadcast_to(part, count) for part in own], axis=1)


def _cell_work(problem: Problem, tied: list[LayerVertices]) -> Int64:
    shares: list[Int64] = [
        channel_shares(view.split, int(problem.work.per_task[view.at])).ravel()
        for view in tied
        if view.split is not None
    ]
    total: Int64 = np.sum(shares, axis=0)
    return total
