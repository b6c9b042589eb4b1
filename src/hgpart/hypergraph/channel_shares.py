"""What each task has -> the shares of the channels that it reads: of its work, of its weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hgpart.arrays import Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.layers.channel_graph import Layer, Read


def channel_shares(read: Read, each: int) -> Int64:
    """Divide what `each` task has among the channels that it reads, by what a channel spans.

    Whole numbers, shape (groups, channels a group); what is left of a task is its reduction's.
    """
    sizes = read.sizes.reshape(read.groups, -1)
    totals = sizes.sum(axis=1, keepdims=True)
    # sizes * each // totals, in steps that can't overflow
    shares: Int64 = each // totals * sizes + each % totals * sizes // totals
    return shares


def row_shares(view: LayerVertices, each: int, blocks: Blocks) -> list[Int64]:
    """Divide what `each` task has among its cells, as `channel_shares` does; per row block."""
    assert view.split is not None
    per_task = view.columns_per_task
    cuts, rows = blocks.columns[view.at], blocks.rows[view.at]
    reach = np.concatenate([[0], np.cumsum(channel_shares(view.split, each))])
    result: list[Int64] = []
    same: dict[tuple[tuple[int, int], ...], Int64] = {}
    for first, last in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True):
        pieces = tuple(_tasks_by_group(view.layer, view.split, first, last))
        if pieces not in same:
            low, high = pieces[0][0] * per_task, (pieces[-1][0] + 1) * per_task
            inner = cuts[(cuts > low) & (cuts < high)]
            edges = np.concatenate([[low], inner, [high]])
            same[pieces] = sum(
                tasks * np.diff(reach[np.clip(edges, group * per_task, (group + 1) * per_task)])
                for group, tasks in pieces
            )
        result.append(same[pieces])
    return result


def _tasks_by_group(layer: Layer, read: Read, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The groups that tasks first to last - 1 read, and how many of the tasks read each."""
    per_group = layer.tasks // read.groups
    for group in range(first // per_group, (last - 1) // per_group + 1):
        begin, end = max(first, group * per_group), min(last, (group + 1) * per_group)
        yield group, end - begin
