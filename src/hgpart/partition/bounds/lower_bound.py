"""Problem -> a volume below which no partition within its capacities can be.

A layer that is too much work for m - 1 parts lies in at least m, and each map that all of it reads
goes to all of these but its own. No more maps are made where they are
read than there is room beside the readers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from hgpart.arrays import Int64
from hgpart.hypergraph.modelling import LayerVertices, by_vertices
from hgpart.partition.bounds.chain_bound import chain_bound
from hgpart.partition.bounds.slices_bound import slices_bound
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.partition.symmetry.symmetry import Symmetry
from hgpart.sequences import distinct

MOST_STEPS = 1024**2  # of going through how many parts each layer lies in
MOST_SLICES = 64  # of more, only what their parameters cost is bounded


def lower_bound(problem: Problem) -> int:
    """Bytes that every partition within the problem's capacities sends at least.

    Notes
    -----
    The nets of different sets of readers are different, so their bounds add up. For a task matrix
    of N x K cells, a part with a cells has r rows and c columns with r c >= a, so that
    ``P r / N + M c / K >= 2 sqrt(P M a / (N K))``, where P and M are what all partial sums and all
    maps cost; the sum over parts is least where as few parts as possible are full.

    With more than `MOST_SLICES` slices only the cost of parameters is bounded: all else would take
    minutes. With bands of rows there is none: 0.
    """
    slices = problem.modelling.slices
    if problem.modelling.bands > 1:
        return 0
    if slices > MOST_SLICES:
        return slices_bound(problem)
    symmetry = symmetry_of(problem)
    largest = np.sort(problem.capacities)[::-1]
    sets = chain_bound(symmetry, problem.capacities)
    if (problem.k * slices) ** 2 <= MOST_STEPS:
        sets = max(sets, _Sets(symmetry, largest.tolist()).bound())
    if slices > 1:
        return max(sets, slices_bound(problem))
    readers = _operands_that_read(problem)
    grids = sum(
        _grid_bound(problem, tied[0], largest, readers)
        for tied in by_vertices(problem.views).values()
        if len(tied) == 1
    )
    return sets + grids


def relative_gap(volume: float, bound: float) -> float:
    """Share of a volume that lies above a lower bound of it; 0.0 where there is none.

    Examples
    --------
    >>> relative_gap(8, 6), relative_gap(0, 0)
    (0.25, 0.0)
    """
    return (volume - bound) / volume if volume else 0.0


@dataclass(frozen=True)
class _Senders:
    """The nets that one set of readers shares.

    Attributes
    ----------
    load : int
        Work of the readers.
    units, weights : list of int
        Number and work of the readers of each type.
    cost : int
        Cost of all nets together.
    free : int
        Cost of the nets that can have a pin in the readers' parts without needing room there.
    makers : list of tuple of int
        Cost, units, weight and type of the senders that do need room.
    """

    load: int
    units: list[int]
    weights: list[int]
    cost: int
    free: int
    makers: list[tuple[int, int, int, int]]


class _Sets:
    """Lower bound of the cost of the nets of all sets of readers.

    Where m parts hold a set of readers, its maps cost m C, less those that are made in one of these
    parts. Their makers fit into the room that the readers leave or, if they are in
    few parts themselves, into the room of as many: so that a chain of layers, each the only reader
    of the one before, is a dynamic program over the number of parts of each layer.
    """

    def __init__(self, symmetry: Symmetry, largest: list[int]) -> None:
        self.symmetry, self.largest = symmetry, largest
        self.reach = [0, *accumulate(largest)]
        count = len(symmetry.set_pointers) - 1
        self.types = [symmetry.set_members(at) for at in range(count)]
        self.senders = [self._senders(at) for at in range(count)]
        sole = {
            types[0]: at for at, types in reversed(list(enumerate(self.types))) if len(types) == 1
        }
        # The set whose only readers make the maps that a set reads.
        self.before = [
            sole.get(own.makers[0][3]) if len(own.makers) == 1 else None for own in self.senders
        ]
        taken: set[int] = set()
        for at, before in enumerate(self.before):
            if before in taken:
                self.before[at] = None
            elif before is not None:
                taken.add(before)
        self.taken = taken
        self.known: dict[tuple[int, int], int | None] = {}

    def bound(self) -> int:
        return sum(
            min((value for value in self._values(at) if value is not None), default=0)
            for at in range(1, len(self.types))
            if at not in self.taken
        )

    def _values(self, at: int) -> list[int | None]:
        return [self._value(at, parts) for parts in range(1, len(self.largest) + 1)]

    def _senders(self, number: int) -> _Senders:
        symmetry, types = self.symmetry, self.types[number]
        units = [
            math.prod(int(symmetry.class_units[c]) for c in symmetry.type_classes[kind] if c >= 0)
            for kind in types
        ]
        weights = symmetry.type_weights[types].tolist() if types else []
        cost = free = 0
        makers = []
        for net in np.flatnonzero(symmetry.net_sets == number).tolist():
            start, end = symmetry.net_pointers[net : net + 2].tolist()
            pins = symmetry.net_pins[start:end] // 2
            count = int(symmetry.class_units[symmetry.net_classes[net]])
            price = int(symmetry.net_costs[net])
            cost += count * price
            is_single = len(pins) == 1 and int(symmetry.type_classes[pins[0], 1]) < 0
            if is_single and symmetry.type_weights[pins[0]] > 0 and int(pins[0]) not in types:
                kind = int(pins[0])
                makers.append((price, count, int(symmetry.type_weights[kind]), kind))
            else:
                free += count * price
        load = sum(count * weight for count, weight in zip(units, weights, strict=True))
        makers.sort(key=lambda sender: sender[0] / sender[2], reverse=True)
        return _Senders(load, units, weights, cost, free, makers)

    def _value(self, at: int, parts: int) -> int | None:
        """Least cost of the set and those before it, if its readers lie in so many parts."""
        if (at, parts) not in self.known:
            self.known[at, parts] = self._computed(at, parts)
        return self.known[at, parts]

    def _computed(self, at: int, parts: int) -> int | None:
        own = self.senders[at]
        rooms = self.largest[:parts]
        fits = all(
            weight == 0 or sum(room // weight for room in rooms) >= count
            for count, weight in zip(own.units, own.weights, strict=True)
        )
        room = self.reach[parts] - own.load
        if not fits or room < 0:
            return None
        outside = own.cost * parts - own.free
        before = self.before[at]
        if before is None:
            for cost, count, weight, _ in own.makers:
                inside = min(count * weight, room)
                outside -= -(-inside * cost // weight)
                room -= inside
            return outside
        cost, count, weight, _ = own.makers[0]
        most = min(count, room // weight)
        largest = self.largest[0]
        left = 0
        if (
            len(own.units) == 1 and own.weights[0] > 0
        ):  # each of the parts holds some of the readers
            fewest = own.units[0] - sum(
                room_of_part // own.weights[0] for room_of_part in rooms[: parts - 1]
            )
            left = max(1, fewest) * own.weights[0]
        per_part = max(0, largest - left) // weight
        values = [
            earlier - cost * min(most, per_part * count)
            for count, earlier in enumerate(self._values(before), 1)
            if earlier is not None
        ]
        return outside + min(values) if values else None


def _grid_bound(problem: Problem, view: LayerVertices, largest: Int64, readers: Int64) -> int:
    """Lower bound of the cost of the partial sums and maps of one task matrix."""
    graph, layer, read = problem.graph, view.layer, view.split
    if read is None or read.groups > 1 or (read.channels < 0).any():
        return 0
    tasks = graph.task_of_channel[read.channels]
    if len(distinct(tasks)) < len(tasks) or (readers[tasks] > 1).any():
        return 0
    partial = layer.tasks * view.partial_bytes
    sources = np.searchsorted(graph.first_task, tasks, "right") - 1
    costs = np.zeros(len(sources), dtype=np.int64)
    for source in distinct(sources).tolist():
        maker = problem.views[source]
        if not maker.exists:
            return 0
        costs[sources == source] = maker.map_bytes
    # Per share of the matrix, the cheapest columns; the cells' weights are rounded down.
    maps = float((costs * read.sizes.sum() / read.sizes).min())
    load = int(problem.work.per_task[view.at]) * layer.tasks
    left, total = 1.0, 0.0
    for room in largest.tolist():
        share = min(left, (room + layer.tasks * len(tasks)) / load) if load else left
        total += 2 * math.sqrt(partial * maps * share)
        left -= share
        if left <= 0:
            break
    return max(0, math.floor(total * (1 - 1e-9) - partial - int(costs.sum())) - 1)


def _operands_that_read(problem: Problem) -> Int64:
    """Number of operands that read each task's map, or channels of it."""
    graph = problem.graph
    times = np.zeros(int(graph.first_task[-1]), dtype=np.int64)
    for view in problem.views:
        for read in view.layer.reads if view.exists else ():
            np.add.at(times, graph.task_of_channel[read.channels[read.channels >= 0]], 1)
    return times
