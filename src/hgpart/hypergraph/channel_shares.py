"""What each task has -> the shares of the channels that it reads: of its work, or its weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hgpart.arrays import Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.layers.channel_graph import Layer, Read


def channel_shares(read: Read, per_task: int) -> Int64:
    """Divide `per_task` units of each task among the channels that it reads, by their sizes.

    The result is whole numbers of shape (groups, channels per group); the rest of a task belongs
    to its reduction.
    """
    sizes = read.sizes.reshape(read.groups, -1)
    totals = sizes.sum(axis=1, keepdims=True)
    # sizes * per_task // totals, in steps that can't overflow
    shares: Int64 = per_task // totals * sizes + per_task % totals * sizes // totals
    return shares


def row_shares(view: LayerVertices, per_task: int, blocks: Blocks) -> list[Int64]:
    """Divide `per_task` units of each task among its cells, as `channel_shares`; per row block."""
    assert view.split is not None
    task_columns = view.columns_per_task
    cuts, rows = blocks.columns[view.at], blocks.rows[view.at]
    reach = np.concatenate([[0], np.cumsum(channel_shares(view.split, per_task))])
    result: list[Int64] = []
    same: dict[tuple[tuple[int, int], ...], Int64] = {}
    for first, last in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True):
        pieces = tuple(_tasks_by_group(view.layer, view.split, first, last))
        if pieces not in same:
            low, high = pieces[0][0] * task_columns, (pieces[-1][0] + 1) * task_columns
            inner = cuts[(cuts > low) & (cuts < high)]
            edges = np.concatenate([[low], inner, [high]])
            same[pieces] = sum(
                tasks
                * np.diff(reach[np.clip(edges, group * task_columns, (group + 1) * task_columns)])
                for group, tasks in pieces
            )
        result.append(same[pieces])
    return result


def _tasks_by_group(layer: Layer, read: Read, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The groups that tasks first to last - 1 read, with the number of tasks that read each."""
    per_group = layer.tasks // read.groups
    for group in range(first // per_group, (last - 1) // per_group + 1):
        begin, end = max(first, group * per_group), min(last, (group + 1) * per_group)
        yield group, end - begin
