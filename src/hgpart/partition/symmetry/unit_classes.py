"""Elements and their readers -> units that belong together, and classes of equal units."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int64
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.numbering import Numbering
from hgpart.partition.symmetry.readers import Readers
from hgpart.sequences import Sequences, distinct, equal_rows, starts_of_runs

# Layer, set, slots of one unit (the root's first), and whether the root gathers.
Net = tuple[int, int, tuple[int, ...], bool]


@dataclass(frozen=True, eq=False)
class UnitClasses:
    """Classes of units that nothing tells apart.

    Attributes
    ----------
    units : int64 array, shape (classes,)
        Units of each class.
    examples : list of lists of int
        Per class the elements of its first unit, slot by slot.
    nets : list of Counter
        For each class, the nets of one unit, and how many are alike.
    sets : list of lists of int
        Per class and slot the sets that the slot's elements are in.
    class_of, unit_of, slot_of : int64 arrays, shape (elements,)
    """

    units: Int64
    examples: list[list[int]]
    nets: list[Counter[Net]]
    sets: list[list[list[int]]]
    class_of: Int64
    unit_of: Int64
    slot_of: Int64


def unit_classes(problem: Problem, numbered: Numbering, read: Readers) -> UnitClasses:
    """Join elements into units by the maps that only they read, and compare the units."""
    components = _components(numbered, read)
    memberships, sets = _memberships(numbered, read)
    count = len(numbered.labels)
    order = np.argsort(components, kind="stable")
    starts = starts_of_runs(components[order])
    sizes = np.diff(starts)
    component_of = np.repeat(np.arange(len(sizes)), sizes)
    slots = np.empty(count, dtype=np.int64)
    slots[order] = np.arange(count) - starts[component_of]
    components[order] = component_of

    owners, numbers, nets = _nets(problem, numbered, read, components, slots)
    by_component = np.lexsort((numbers, owners))
    net_starts = np.searchsorted(owners[by_component], np.arange(len(sizes) + 1))
    alike, _ = Sequences(net_starts, numbers[by_component]).alike()
    kinds, _ = equal_rows(np.concatenate([numbered.labels, memberships[:, None]], axis=1))
    looks, _ = Sequences(starts, kinds[order]).alike()
    class_of, examples = equal_rows(np.stack([looks, alike], axis=1))

    by_class = np.argsort(class_of, kind="stable")
    class_starts = starts_of_runs(class_of[by_class])
    units_of = np.empty(len(sizes), dtype=np.int64)
    units_of[by_class] = np.arange(len(sizes)) - class_starts[class_of[by_class]]
    in_order = np.argsort(owners, kind="stable")
    elements = [order[starts[at] : starts[at + 1]].tolist() for at in examples]
    return UnitClasses(
        units=np.diff(class_starts),
        examples=elements,
        nets=[
            Counter(nets[net] for net in numbers[in_order[net_starts[at] : net_starts[at + 1]]])
            for at in examples
        ],
        sets=[[sets[memberships[element]] for element in own] for own in elements],
        class_of=class_of[components],
        unit_of=units_of[components],
        slot_of=slots,
    )


def _components(numbered: Numbering, read: Readers) -> Int64:
    """The smallest element of each element's component."""
    lowest_of = np.arange(len(numbered.labels))
    tasks, makers_readers = read.local
    makers = numbered.root_of_task[tasks]
    while True:
        lowest = np.minimum(lowest_of[makers], lowest_of[makers_readers])
        before = lowest_of.copy()
        np.minimum.at(lowest_of, makers, lowest)
        np.minimum.at(lowest_of, makers_readers, lowest)
        np.minimum.at(lowest_of, before, lowest_of)
        lowest_of = lowest_of[lowest_of]
        if (lowest_of == before).all():
            return lowest_of


def _memberships(numbered: Numbering, read: Readers) -> tuple[Int64, list[list[int]]]:
    """A number for each element that says in which sets it is; these sets, by number."""
    # Between two ends of ranges all elements are in the same sets.
    edges = distinct(np.concatenate([[0, len(numbered.labels)], read.ranges.ravel()]))
    low, high = np.searchsorted(edges, read.ranges).T
    pieces = read.sets.united(Sequences.of_spans(low, high))
    sets_of = Sequences.of_pairs(pieces.values, pieces.owners, len(edges) - 1)
    numbers, first = sets_of.alike()
    return np.repeat(numbers, np.diff(edges)), [sets_of[at].tolist() for at in first.tolist()]


def _nets(
    problem: Problem, numbered: Numbering, read: Readers, components: Int64, slots: Int64
) -> tuple[Int64, Int64, list[Net]]:
    """Component and number of the net of each map that is read, in order; nets by number.

    Then those of statistics of channels.
    """
    maps = np.flatnonzero(read.is_read)
    roots = numbered.root_of_task[maps]
    tasks, elements = read.local
    pin_slots = slots[elements]
    net_of = np.searchsorted(maps, tasks)
    is_other = pin_slots != slots[roots][net_of]
    pins = Sequences.of_pairs(net_of[is_other], pin_slots[is_other], len(maps))
    alike, _ = pins.alike()
    layers = np.searchsorted(problem.graph.first_task, maps, "right") - 1
    heads = np.stack([layers, read.set_of_task[maps], slots[roots]], axis=1)
    numbers, first = equal_rows(np.concatenate([heads, alike[:, None]], axis=1))
    nets = list[Net]()
    for example in first.tolist():
        at, entry_set, slot = heads[example].tolist()
        nets.append((at, entry_set, (slot, *pins[example].tolist()), False))
    gathering = [(at, number, (int(slots[own]),), True) for at, own, number in read.gathers]
    distinct_nets = {net: len(nets) + at for at, net in enumerate(dict.fromkeys(gathering))}
    own_numbers = np.array([distinct_nets[net] for net in gathering], dtype=np.int64)
    own_roots = np.array([own for _, own, _ in read.gathers], dtype=np.int64)
    return (
        np.concatenate([components[roots], components[own_roots]]),
        np.concatenate([numbers, own_numbers]),
        [*nets, *distinct_nets],
    )
