"""Problem -> tasks in order, a part after the other (thesis 5.1.3 and 5.1.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.channel_shares import channel_shares
from hgpart.hypergraph.modelling import LayerVertices, by_vertices
from hgpart.partition.problem.balance import capacities
from hgpart.partition.problem.problem import Problem


def incremental(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Give tasks to a part, first layer first, until its work exceeds its share of all work.

    Coarse-grain this is the thesis's filter-wise incremental partitioning, fine-grain its
    channel-wise one: channels of filters in order, a filter's reduction with its last channel.

    Returns
    -------
    CnnHypergraph and int32 array
        The largest blocks that the partition keeps whole, and the part of each vertex.
    """
    ends = _ends(_runs(problem), problem.rates)
    counts = [view.count if view.is_own else 0 for view in problem.views]
    first = np.cumsum([0, *counts])  # vertex of each layer, all numbered

    def cuts(view: LayerVertices) -> tuple[Int64, Int64]:
        cut = ends - first[view.at]
        tasks, channels = view.layer.tasks, view.columns_per_task
        if not view.exists or (view.split is None and view.is_solid):
            cut = cut[:0]
        cut = cut[(cut > 0) & (cut < tasks * channels)]
        groups = 1 if view.split is None else view.split.groups
        starts = np.arange(groups + 1) * (tasks // groups)
        rows = np.unique(np.concatenate([starts, cut // channels, -(-cut // channels)]))
        within = cut[cut % channels > 0]
        group = within // channels // (tasks // groups)
        starts = np.arange(groups + 1) * channels
        columns = np.unique(np.concatenate([starts, group * channels + within % channels]))
        return rows, columns

    model = problem.hypergraph(Blocks.cut(problem.views, cuts))

    layers, column = model.vertex_layers, model.vertex_columns
    numbers = np.empty(model.vertices, dtype=np.int64)  # in the sequence
    for at in np.unique(layers).tolist():
        own, channels = layers == at, problem.views[at].columns_per_task
        last = column[own] < 0
        place = np.where(last, channels - 1, model.blocks.columns[at][np.maximum(column[own], 0)])
        numbers[own] = model.blocks.rows[at][model.vertex_rows[own]] * channels + place % channels
        numbers[own] += first[at]
    return model, np.searchsorted(ends, numbers, "right").astype(np.int32)


@dataclass(frozen=True)
class _WeightRun:
    """Weights of vertices that follow each other, repeated some times."""

    weights: Int64
    times: int

    @property
    def total(self) -> int:
        return int(self.weights.sum()) * self.times


def _runs(problem: Problem) -> list[_WeightRun]:
    """The weights of all vertices of the full hypergraph, in order; those of tied layers add up."""
    runs = []
    for at, tied in by_vertices(problem.views).items():
        first = problem.views[at]
        whole = sum(int(problem.work.per_task[view.at]) for view in tied)
        if first.split is None:
            runs.append(_WeightRun(np.array([whole * first.tasks_per_row]), first.rows))
            continue
        shares = np.sum(
            [
                channel_shares(view.split, int(problem.work.per_task[view.at]))
                for view in tied
                if view.split is not None
            ],
            axis=0,
        )
        times = first.layer.tasks // len(shares)
        runs += [_WeightRun(group, times) for group in shares]
        runs += [_WeightRun(whole - group.sum(keepdims=True), times) for group in shares]
    return runs


def _ends(runs: list[_WeightRun], rates: Sequence[float]) -> Int64:
    """Behind which vertex each part but the last ends; fewer where there is no more work.

    >>> _ends([_WeightRun(np.array([3]), 3), _WeightRun(np.array([1]), 3)], [1, 1]).tolist()
    [3]
    """
    reach = np.cumsum([run.total for run in runs])
    counts = np.cumsum([0, *(len(run.weights) * run.times for run in runs)])
    ends: list[int] = []
    filled = 0
    # More than its share: the average in whole numbers, where all are equally fast.
    shares = capacities(int(reach[-1]), rates, 0).tolist()
    for share in shares[:-1]:
        bound = filled + share
        at = int(np.searchsorted(reach, bound, "right"))
        if at == len(runs):
            break
        run = runs[at]
        times, rest = divmod(bound - (int(reach[at]) - run.total), int(run.weights.sum()))
        own = np.cumsum(run.weights)
        place = int(np.searchsorted(own, rest, "right"))
        filled = int(reach[at]) - run.total + times * int(own[-1]) + int(own[place])
        ends.append(int(counts[at]) + times * len(run.weights) + place + 1)
    return np.array(ends, dtype=np.int64)
