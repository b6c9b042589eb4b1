"""Problem -> Symmetry: classes of interchangeable units, and what they cost.

Tasks that belong together because one reads just the other's map (residual adds, depthwise and
grouped layers, columns of a task matrix and the maps that they read) are one *unit*. Units that
nothing tells apart are a *class*; a partition is then how many units of a class lie how (design
section 3). Nothing is lost: loads and volume are those of the full hypergraph.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.building import channel_shares
from hgpart.hypergraph.modelling import LayerVertices, by_vertices
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.numbering import Numbering, numbering
from hgpart.partition.symmetry.readers import readers
from hgpart.partition.symmetry.unit_classes import UnitClasses, unit_classes
from hgpart.sequences import Sequences


@dataclass(frozen=True)
class Symmetry:
    """A model's hypergraph by classes of units.

    A vertex type has one vertex for each unit of its class or, if it has two classes, for each
    pair of units (the cells of a task matrix: rows x columns). A net type has one net for each
    unit of its class; its pins are the unit's vertices of some types, and all vertices of a
    *set* of types (the readers of a dense layer's maps). The first of its own pins is its root.

    Attributes
    ----------
    class_units : int64 array, shape (classes,)
    type_weights : int64 array, shape (types,)
        Work of one vertex.
    type_memory : int64 array, shape (types,)
        Bytes that one vertex keeps: copies of its parameters, and the map that it makes.
    type_classes : int32 array, shape (types, 2)
        The second is -1 where a vertex belongs to one unit.
    set_pointers, set_types : int64 and int32 arrays
        CSR: the types of each set; set 0 is empty.
    net_classes, net_sets : int32 arrays, shape (nets,)
    net_costs : int64 array, shape (nets,)
        Of one net.
    net_gathers : bool array, shape (nets,)
        Whether the root receives (partial sums) or sends (its map).
    net_pointers, net_pins : int64 and int32 arrays
        CSR: ``2 * type + axis``, where axis says which of the type's classes is the net's.
    elements : Elements
        Where the tasks and channels of the layers are among the units.
    """

    class_units: Int64
    type_weights: Int64
    type_memory: Int64
    type_classes: Int32
    set_pointers: Int64
    set_types: Int32
    net_classes: Int32
    net_sets: Int32
    net_costs: Int64
    net_gathers: NDArray[np.bool_]
    net_pointers: Int64
    net_pins: Int32
    elements: Elements

    def set_members(self, number: int) -> list[int]:
        """The types of a set."""
        pointers = self.set_pointers
        members: list[int] = self.set_types[pointers[number] : pointers[number + 1]].tolist()
        return members


@dataclass(frozen=True)
class Elements:
    """Tasks, and channels that split them: each is a slot of a unit of a class.

    Attributes
    ----------
    tasks, columns : list of int
        Per layer the first element; -1 where it has none. Tied layers share theirs.
    classes, units, slots : int64 arrays, shape (elements,)
    types : dict of (class, slot) to int
        Vertex type of a task.
    cells : dict of (class, slot, class, slot) to int
        Vertex type of the cells of a task and a channel.
    """

    tasks: list[int]
    columns: list[int]
    classes: Int64
    units: Int64
    slots: Int64
    types: dict[tuple[int, int], int]
    cells: dict[tuple[int, int, int, int], int]

    @cached_property
    def by_class(self) -> Sequences:
        """The elements of each class, unit by unit, slot by slot."""
        order = np.lexsort((self.slots, self.units, self.classes))
        ends = np.cumsum(np.bincount(self.classes))
        return Sequences(np.concatenate([[0], ends]), order)


def symmetry(problem: Problem) -> Symmetry:
    """Find the classes of a model."""
    numbered = numbering(problem)
    read = readers(problem, numbered)
    found = unit_classes(problem, numbered, read)
    return _Assembly(problem, numbered, found).symmetry(len(read.sets))


class _Assembly:
    """Vertex types of the classes' slots and of the cells where they cross, then net types."""

    def __init__(self, problem: Problem, numbered: Numbering, found: UnitClasses) -> None:
        self.problem, self.numbered, self.found = problem, numbered, found
        self.tied = by_vertices(problem.views)
        self.types: dict[tuple[int, int], int] = {}
        self.cells: dict[tuple[int, int, int, int], int] = {}
        self.weights: list[int] = []
        self.memory: list[int] = []
        self.type_classes: list[tuple[int, int]] = []
        self.types_of_set: dict[int, set[int]] = defaultdict(set)
        # Row slots of each layer, and column slots of each group of a split one: class, slot, and
        # group of the row or element of the column.
        self.rows: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self.columns: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        self.along: dict[tuple[int, int], list[int]] = defaultdict(list)  # pins of a slot's cells
        self._add_rows()
        self._add_cells()

    def symmetry(self, sets: int) -> Symmetry:
        found, numbered = self.found, self.numbered
        nets = [(*key, cost) for key, cost in self._costs().items() if cost > 0]
        set_types = [sorted(self.types_of_set[number]) for number in range(sets)]
        return Symmetry(
            class_units=found.units,
            type_weights=np.array(self.weights, dtype=np.int64),
            type_memory=np.array(self.memory, dtype=np.int64),
            type_classes=np.array(self.type_classes, dtype=np.int32).reshape(-1, 2),
            set_pointers=np.cumsum([0, *map(len, set_types)], dtype=np.int64),
            set_types=np.array([kind for own in set_types for kind in own], dtype=np.int32),
            net_classes=np.array([net[0] for net in nets], dtype=np.int32),
            net_sets=np.array([net[1] for net in nets], dtype=np.int32),
            net_costs=np.array([net[4] for net in nets], dtype=np.int64),
            net_gathers=np.array([net[3] for net in nets], dtype=bool),
            net_pointers=np.cumsum([0, *(len(net[2]) for net in nets)], dtype=np.int64),
            net_pins=np.array([pin for net in nets for pin in net[2]], dtype=np.int32),
            elements=Elements(
                numbered.tasks,
                numbered.columns,
                found.class_of,
                found.unit_of,
                found.slot_of,
                self.types,
                self.cells,
            ),
        )

    def _add_rows(self) -> None:
        whole: dict[int, int] = {}  # work of a row, with that of tied layers and of its cells
        for number, elements in enumerate(self.found.examples):
            for slot, element in enumerate(elements):
                at, group, cell_work, _ = self.numbered.labels[element].tolist()
                if cell_work >= 0:
                    self.columns[at, group].append((number, slot, element))
                    continue
                self.rows[at].append((number, slot, group))
                if at not in whole:
                    whole[at] = sum(
                        int(self.problem.work.per_task[view.at]) * view.tasks_per_row
                        for view in self.tied[at]
                    )
                weight = whole[at]
                if (read := self.problem.views[at].split) is not None:
                    work = self.numbered.cell_work[at].reshape(read.groups, -1)
                    weight -= int(work[group].sum())
                sets = self.found.sets[number][slot]
                self.types[number, slot] = self._add(
                    weight, self._row_memory(at, group), (number, -1), sets
                )

    def _add_cells(self) -> None:
        for at in dict.fromkeys(at for at, _ in self.columns):
            for row_class, row_slot, group in self.rows[at]:
                for number, slot, element in self.columns.get((at, group), ()):
                    kind = self._add(
                        int(self.numbered.labels[element, 2]),
                        self._cell_memory(at, element - self.numbered.columns[at]),
                        (row_class, number),
                        self.found.sets[number][slot],
                    )
                    self.cells[row_class, row_slot, number, slot] = kind
                    self.along[row_class, row_slot].append(2 * kind)
                    self.along[number, slot].append(2 * kind + 1)

    def _add(self, weight: int, memory: int, classes: tuple[int, int], sets: list[int]) -> int:
        """A vertex type more."""
        kind = len(self.weights)
        self.weights.append(weight)
        self.memory.append(memory)
        self.type_classes.append(classes)
        for number in sets:
            self.types_of_set[number].add(kind)
        return kind

    def _costs(self) -> Counter[tuple[int, int, tuple[int, ...], bool]]:
        """What the nets of one unit cost, by class, set, pins and whether the root gathers."""
        costs: Counter[tuple[int, int, tuple[int, ...], bool]] = Counter()
        for number, own in enumerate(self.found.nets):
            for (at, entry_set, net_slots), times in own.items():
                pins: list[int] = []
                for slot in net_slots:
                    if (number, slot) in self.types:
                        pins.append(2 * self.types[number, slot])
                    else:
                        pins.extend(self.along.get((number, slot), ()))
                if len(pins) > 1 or entry_set:
                    cost = times * self.problem.views[at].map_bytes
                    costs[number, entry_set, tuple(pins), False] += cost
        for view in self.problem.views:
            if not view.exists or view.split is None:
                continue
            for number, slot, _ in self.rows[view.first]:
                pins = [2 * self.types[number, slot], *self.along.get((number, slot), ())]
                costs[number, 0, tuple(pins), True] += view.partial_bytes
        return costs

    def _row_memory(self, at: int, group: int) -> int:
        """Bytes of a row's vertex: what is not its cells' of its parameters, and its map."""
        bytes_kept = 0
        for view in self.tied[at]:
            layer = view.layer
            held = -(-layer.parameters * view.tasks_per_row // layer.tasks)
            if (read := view.split) is not None:
                shares = channel_shares(read, layer.weights // layer.tasks)
                held -= int(shares[group].sum())
            bytes_kept += self._kept(view, held) + view.tasks_per_row * view.map_bytes
        return bytes_kept

    def _cell_memory(self, at: int, column: int) -> int:
        """Bytes of the parameters of a cell, with those of tied layers."""
        bytes_kept = 0
        for view in self.tied[at]:
            if (read := view.split) is not None:
                shares = channel_shares(read, view.layer.weights // view.layer.tasks)
                bytes_kept += self._kept(view, int(shares.ravel()[column]))
        return bytes_kept

    def _kept(self, view: LayerVertices, parameters: int) -> int:
        return math.ceil(self.problem.copies * parameters * view.element_bytes)
