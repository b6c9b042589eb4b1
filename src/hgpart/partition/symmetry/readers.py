"""Problem + Numbering -> Readers: which elements read each task's map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int64
from hgpart.hypergraph.cnn_nets import items_read
from hgpart.layers.channel_graph import Layer, Read
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.numbering import Numbering
from hgpart.sequences import Sequences, distinct, distinct_pairs, starts_of_runs

# Tasks x channels of a group that is one unit; larger groups are divided like dense layers. So are
# heads of an attention, which read more channels than these: each would be a vertex type.
LARGEST_LOCAL_GROUP = 64
MOST_LOCAL_CHANNELS = 8
MOST_LOCAL_SETS = 4  # of one read, for a map; a map that more of them read is one for all


Ranges = dict[tuple[int, int, int], int]  # first element, the one behind the last, item: number


@dataclass(frozen=True, eq=False)
class Readers:
    """The readers of each map: elements of its own, and sets of elements that many maps share.

    Attributes
    ----------
    local : tuple of two int64 arrays
        Tasks, and an element that reads the map of each.
    ranges : int64 array, shape (ranges, 2)
        First element of each range, and the one behind its last.
    items : int64 array, shape (ranges,)
        The item by which each range reads, as in `items_read`.
    sets : Sequences
        Ranges of each set; set 0 is empty.
    set_of_task : int64 array, shape (tasks of all layers,)
    is_read : bool array, shape (tasks of all layers,)
    gathers : list of (int, int, int)
        Layer and element of each task that is a statistic, and the set of the elements that send it
        theirs. No map is read by such a set.
    """

    local: tuple[Int64, Int64]
    ranges: Int64
    items: Int64
    sets: Sequences
    set_of_task: Int64
    is_read: NDArray[np.bool_]
    gathers: list[tuple[int, int, int]]


def readers(problem: Problem, numbered: Numbering) -> Readers:
    """Find who reads each task's map."""
    ranges: Ranges = {}
    local_tasks, local_elements = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    wide_tasks, wide_ranges = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for view in problem.views:
        for read in view.layer.reads if view.exists else ():
            if read is view.read_as_statistic:
                continue
            known = np.flatnonzero(read.channels >= 0)
            tasks = problem.graph.task_of_channel[read.channels[known]]
            made = numbered.root_of_task[tasks] >= 0
            known, tasks = known[made], tasks[made]
            if not len(known):
                continue
            items = np.zeros(len(known), dtype=np.int64)
            if problem.modelling.bands > 1:
                items = items_read(problem.graph, view, read.channels[known])
            several = int(items.max()) + 1
            split = view.split is read
            groups = known if split else known * read.groups // len(read.channels)
            tasks, groups = distinct_pairs(tasks, groups * several + items)
            groups, items = np.divmod(groups, several)
            counts = np.diff(starts_of_runs(tasks))
            local = np.repeat(counts, counts) <= MOST_LOCAL_SETS
            if several > 1 or (not split and not _is_local(view.layer, read)):
                local[:] = False
            if split:
                size, first = 1, numbered.columns[view.at]
            elif view.is_solid:
                size, first = 1, numbered.tasks[view.at]
                groups[:] = 0
            else:
                size, first = view.layer.tasks // read.groups, numbered.tasks[view.at]
            begins = first + groups * size
            own = Sequences.of_spans(begins[local], begins[local] + size)
            local_tasks.append(tasks[local][own.owners])
            local_elements.append(own.values)
            wide_tasks.append(tasks[~local])
            keys = begins[~local] * several + items[~local]
            every = distinct(keys)
            numbers = [
                ranges.setdefault((begin, begin + size, item), len(ranges))
                for begin, item in zip(*np.divmod(every, several), strict=True)
            ]
            places = np.searchsorted(every, keys)
            wide_ranges.append(np.array(numbers, dtype=np.int64)[places])
    pairs = distinct_pairs(np.concatenate(local_tasks), np.concatenate(local_elements))
    owners, values = np.concatenate(wide_tasks), np.concatenate(wide_ranges)
    wide = Sequences.of_pairs(owners + 1, values, len(numbered.root_of_task) + 1)
    sets, first_of = wide.alike()
    is_read = sets[1:] > 0
    is_read[pairs[0]] = True
    read_sets = wide.take(first_of)
    gathers, gathering = _gathers(problem, numbered, ranges, len(read_sets))
    spans = np.array(list(ranges), dtype=np.int64).reshape(-1, 3)
    every_set = Sequences.joined([read_sets, gathering])
    return Readers(pairs, spans[:, :2], spans[:, 2], every_set, sets[1:], is_read, gathers)


def _gathers(
    problem: Problem, numbered: Numbering, ranges: Ranges, first_set: int
) -> tuple[list[tuple[int, int, int]], Sequences]:
    """Layer, element and set of each statistic of channels; the ranges of each set."""
    gathers, sets = list[tuple[int, int, int]](), dict[tuple[int, ...], int]()
    for view in problem.views:
        if (statistic := view.statistic) is None:
            continue
        for row in range(view.rows):
            group = row * statistic.read.groups // view.rows
            own = distinct(numbered.root_of_task[statistic.of_group(group)])
            ends = np.flatnonzero(np.diff(own) > 1) + 1
            runs = np.split(own, ends)
            pairs = [(int(run[0]), int(run[-1]) + 1, 0) for run in runs]
            members = tuple(ranges.setdefault(pair, len(ranges)) for pair in pairs)
            number = first_set + sets.setdefault(members, len(sets))
            gathers.append((view.at, numbered.tasks[view.at] + row, number))
    ends = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    numbers = np.array([number for members in sets for number in members], dtype=np.int64)
    return gathers, Sequences(ends, numbers)


def _is_local(layer: Layer, read: Read) -> bool:
    tasks, channels = layer.tasks // read.groups, len(read.channels) // read.groups
    is_small = tasks * channels <= LARGEST_LOCAL_GROUP and channels <= MOST_LOCAL_CHANNELS
    return read.groups > 1 and is_small
