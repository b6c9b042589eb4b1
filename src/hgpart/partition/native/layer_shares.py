"""Problem + room of each part -> fine-grain, how much of each layer each part computes.

What a part sends and gets of a layer's task matrix is in proportion to the half perimeter of its
cells, so that few full parts a layer cost least: a layer, or a few in a row, gets parts of its own,
all equally full, where the rooms allow it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Float64, Int64
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.problem.problem import Problem
from hgpart.sequences import distinct


@dataclass(frozen=True)
class Shares:
    """Per layer, the part of each task, and the share of the work of each part."""

    tasks: list[Int64]
    parts: list[dict[int, float]]


def layer_shares(problem: Problem, rooms: Float64) -> Shares:
    """Cut the sequence of layers into runs that have parts of their own, at least cost.

    Parameters
    ----------
    rooms : float64 array, shape (k,)
        Work of each part when it is full; together at least all work.
    """
    graph, layers = problem.graph, _Layers(problem)
    steps = layers.steps(2 * len(rooms))
    if not rooms.any():  # less work than parts: the least capacity is below one unit
        rooms = np.full(len(rooms), layers.load(0, steps[-1]) / len(rooms))
    reach = np.concatenate([[0.0], np.cumsum(rooms)])
    room = max(1e-9, float(rooms.mean()))
    k, count = len(rooms), len(steps) - 1
    used = np.arange(k + 1)
    best = np.full((count + 1, k + 1), math.inf)  # of what is cut, in so many parts
    best[0, 0] = 0.0
    choice = np.zeros((count + 1, k + 1, 2), dtype=np.int64)  # where the last run begins
    for begin in range(count):
        for end in range(begin + 1, count + 1):
            load = layers.load(steps[begin], steps[end])
            parts = max(1, min(k, math.ceil(load / room)))
            cost = layers.run_cost(steps[begin], steps[end], parts)
            least = used if load == 0 else np.searchsorted(reach, (reach + load) * (1 - 1e-12))
            ends = np.minimum(np.maximum(least, used + (load > 0)), k)
            fits = reach + load <= reach[-1] * (1 + 1e-9)
            for start in np.flatnonzero(fits & (best[begin] < math.inf)).tolist():
                value = best[begin, start] + cost
                if value < best[end, ends[start]]:
                    best[end, ends[start]] = value
                    choice[end, ends[start]] = begin, start
    shares: list[dict[int, float]] = [{} for _ in graph.layers]
    end, last = count, int(np.argmin(best[count]))
    while end > 0:
        begin, start = choice[end, last].tolist()
        own = np.arange(start, max(last, start + 1)) % k
        table = layers.table(steps[begin], steps[end], rooms[own] / max(1e-9, rooms[own].sum()))
        for at, row in zip(layers.layers[steps[begin] : steps[end]], table, strict=True):
            held = row > 1e-9
            shares[at] = dict(zip(own[held].tolist(), row[held].tolist(), strict=True))
        end, last = begin, start
    return Shares([_tasks(graph, at, own) for at, own in enumerate(shares)], shares)


def _tasks(graph: ChannelGraph, at: int, shares: dict[int, float]) -> Int64:
    if not shares:
        return np.zeros(0, np.int64)
    tasks = max(1, graph.layers[at].tasks)
    reach = np.cumsum(list(shares.values()))
    rows = np.searchsorted(reach, (np.arange(tasks) + 0.5) / tasks * reach[-1])
    result: Int64 = np.array(list(shares))[np.minimum(rows, len(shares) - 1)]
    return result


class _Layers:
    """Costs of the layers that compute, in the order of the graph."""

    def __init__(self, problem: Problem) -> None:
        graph, views = problem.graph, problem.views
        self.layers = [view.at for view in views if view.is_own]
        place = {at: index for index, at in enumerate(self.layers)}
        loads = np.zeros(len(self.layers))
        for view in views:
            if view.first in place:
                per_task = float(problem.work.per_task[view.at])
                loads[place[view.first]] += per_task * view.layer.tasks
        self.loads = loads
        self.reach = np.concatenate([[0.0], np.cumsum(loads)])
        self.maps = np.zeros(len(self.layers))  # that a part needs of which it computes cells
        self.partials = np.full(len(self.layers), math.inf)  # inf where tasks are not split
        self.dense = np.zeros(len(self.layers), dtype=np.bool_)
        self.made = np.zeros(len(self.layers))
        edges: set[tuple[int, int]] = set()
        for index, at in enumerate(self.layers):
            view = views[at]
            self.made[index] = view.layer.tasks * view.map_elements
            for read in view.layer.reads:
                channels = read.channels[read.channels >= 0]
                tasks = distinct(graph.task_of_channel[channels])
                sources = np.searchsorted(graph.first_task, tasks, "right") - 1
                counts = np.bincount(sources)
                for source in np.flatnonzero(counts).tolist():
                    if source not in place:
                        continue
                    times = int(counts[source])
                    edges.add((place[source], index))
                    if read.groups == 1:
                        self.maps[index] += float(views[source].map_elements * times)
                        self.dense[index] = True
            if view.split is not None:
                self.partials[index] = float(view.partial_elements * view.layer.tasks)
        self.edges = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)  # layer and reader
        self.saved = np.minimum(self.made, self.partials)  # where both lie in the same parts

    def load(self, begin: int, end: int) -> float:
        return float(self.reach[end] - self.reach[begin])

    def steps(self, most: int) -> list[int]:
        """Places where runs may begin and end: not amid layers that are much less than a part."""
        least = self.reach[-1] / most
        steps = [0]
        for index in range(1, len(self.layers)):
            if self.load(steps[-1], index) >= least or self.loads[index] >= least:
                steps.append(index)
        return [*steps, len(self.layers)]

    def table(self, begin: int, end: int, capacity: Float64) -> Float64:
        """Each part's share of each layer of a run, by the cheaper of two arrangements.

        Layers lie one after the other; or all layers but the largest lie evenly in some of the
        parts, as many as a grid has rows, and the largest in the room that is left.
        """
        own = self.loads[begin:end]
        total = float(own.sum())
        parts = len(capacity)
        if total == 0:
            table: Float64 = np.zeros((end - begin, parts))
            table[:, 0] = 1
            return table
        edges = np.concatenate([[0.0], np.cumsum(own)]) / total
        reach = np.concatenate([[0.0], np.cumsum(capacity)])
        low = np.maximum(edges[:-1, None], reach[None, :-1])
        high = np.minimum(edges[1:, None], reach[None, 1:])
        width = np.maximum(edges[1:] - edges[:-1], 1e-300)[:, None]
        table = np.maximum(high - low, 0) / width
        table[own == 0] = 0
        first = np.minimum(np.searchsorted(reach, edges[:-1], "right") - 1, parts - 1)
        table[own == 0, first[own == 0]] = 1
        spread = self._spread(own, total, capacity)
        if spread is not None and self._cost(begin, spread) < self._cost(begin, table):
            return spread
        return table

    def _spread(self, own: Float64, total: float, capacity: Float64) -> Float64 | None:
        some = math.ceil(math.sqrt(len(capacity)))
        largest = int(own.argmax())
        table = np.zeros((len(own), len(capacity)))
        table[:, :some] = capacity[:some] / capacity[:some].sum()
        rest = own @ table - own[largest] * table[largest]
        left = capacity * total - rest
        if len(own) == 1 or own[largest] == 0 or (left < 0).any():
            return None
        table[largest] = left / own[largest]
        return table

    def run_cost(self, begin: int, end: int, parts: int) -> float:
        return self._cost(begin, self.table(begin, end, np.full(parts, 1 / parts)))

    def _cost(self, begin: int, table: Float64) -> float:
        """Rows and columns that the parts need, less what they make themselves.

        A share x of a matrix is r rows times c columns of it, x = r c, where P r + M c is least.
        """
        end = begin + len(table)
        maps, partials = self.maps[begin:end, None], self.partials[begin:end, None]
        split = np.isfinite(partials)
        with np.errstate(divide="ignore", invalid="ignore"):
            best = np.sqrt(table * np.where(split, maps / np.maximum(partials, 1e-300), 0))
        rows = np.where(split, np.clip(best, table, 1), table)
        columns = np.divide(table, rows, out=np.zeros_like(table), where=rows > 0)
        columns = np.where(self.dense[begin:end, None], columns, table)
        cost = float((maps * columns).sum() + (np.where(split, partials, 0) * rows).sum())
        first, last = np.searchsorted(self.edges[:, 0], [begin, end])
        inside = self.edges[first:last]
        inside = inside[(inside[:, 1] >= begin) & (inside[:, 1] < end)]
        if len(inside):
            shared = np.minimum(rows[inside[:, 0] - begin], columns[inside[:, 1] - begin])
            most = np.zeros(end - begin)
            np.maximum.at(most, inside[:, 0] - begin, np.minimum(1, shared.sum(axis=1)))
            cost -= float(most @ self.saved[begin:end])
        return cost
