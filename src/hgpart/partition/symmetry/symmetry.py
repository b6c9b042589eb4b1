"""Symmetry: a model's hypergraph by classes of interchangeable units.

Tasks that belong together because one reads just the other's map (residual adds, depthwise and
grouped layers, columns of a task matrix and the maps that they read) are one *unit*. Units that
nothing tells apart are a *class*; a partition is then how many units of a class lie how (design
section 3). Nothing is lost: loads and volume are those of the full hypergraph. `finding` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int32, Int64
from hgpart.sequences import Sequences


@dataclass(frozen=True, eq=False)
class TypeLimits:
    """Constraints on vertex types, and prices of parts; each array is empty where there are none.

    Attributes
    ----------
    parts : bool array, shape (types, k)
        Parts that the vertices of each type may lie in.
    groups : int32 array, shape (types,)
        All vertices of the types of a number lie in one part; -1 for others.
    sides : bool array, shape (sides, types)
        No part has vertices of types of both the sides 2 i and 2 i + 1.
    prices : int64 array, shape (types, k)
        Cost of a vertex in each part beside that of its nets: the price of its weights in parts
        that did not have them at the start, else 0.
    """

    parts: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    groups: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    sides: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    prices: Int64 = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.parts.size or self.groups.size or self.sides.size)

    def tiled(self, times: int) -> TypeLimits:
        """The same of types that come so many times."""
        return TypeLimits(
            np.tile(self.parts, (times, 1)),
            np.tile(self.groups, times),
            np.tile(self.sides, (1, times)),
            np.tile(self.prices // times, (times, 1)),
        )


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
        Bytes that one vertex keeps: the map that it makes and, where the batch is whole, copies of
        its parameters.
    type_classes : int32 array, shape (types, 2)
        The second is -1 where a vertex belongs to one unit.
    type_layers : int32 array, shape (types,)
        The layer whose work it is; that of tied layers is the first one's.
    set_pointers, set_types : int64 and int32 arrays
        CSR: the types of each set; set 0 is empty.
    net_classes, net_sets : int32 arrays, shape (nets,)
    net_crossings : int32 array, shape (nets,)
        The second class of nets that are one for each pair of units (the weights of cells, over
        slices); else -1.
    net_costs : int64 array, shape (nets,)
        Cost of one net.
    net_gathers : bool array, shape (nets,)
        Whether the root receives (partial sums, statistics) or sends (its map). Of nets with the
        same set all do, or none.
    net_keeps : bool array, shape (nets,)
        Whether what a part receives of it counts in its memory.
    net_memory : int64 array, shape (nets,)
        Bytes of one net that each part with a pin of it keeps: copies of parameters, once for all
        slices.
    net_pointers, net_pins : int64 and int32 arrays
        CSR: ``2 * type + axis``, where axis says which of the type's classes is the net's.
    elements : UnitElements
        Place of each task and channel among the units, in the first tile.
    tiles : int32 array, shape (slices, bands, types of the first band)
        The type with the same tasks in each slice of the batch and band of rows; -1 where it has
        fewer bands. Types, sets and nets come slice by slice; then nets of what tiles share
        (parameters, statistics of norms), whose pins are a unit's vertices of one kind in all
        tiles, and of parameters that others read, these too.
    limits : TypeLimits
        Where vertices may lie.
    """

    class_units: Int64
    type_weights: Int64
    type_memory: Int64
    type_classes: Int32
    type_layers: Int32
    set_pointers: Int64
    set_types: Int32
    net_classes: Int32
    net_sets: Int32
    net_crossings: Int32
    net_costs: Int64
    net_gathers: NDArray[np.bool_]
    net_keeps: NDArray[np.bool_]
    net_memory: Int64
    net_pointers: Int64
    net_pins: Int32
    elements: UnitElements
    tiles: Int32
    limits: TypeLimits = field(default_factory=TypeLimits)

    @property
    def slices(self) -> int:
        """Number of slices of the batch."""
        return len(self.tiles)

    def set_members(self, number: int) -> list[int]:
        """The types of a set."""
        pointers = self.set_pointers
        members: list[int] = self.set_types[pointers[number] : pointers[number + 1]].tolist()
        return members


@dataclass(frozen=True)
class UnitElements:
    """Tasks, and channels that split them: each is a slot of a unit of a class.

    Attributes
    ----------
    tasks, columns : list of int
        Per layer the first element; -1 where it has none. Tied layers share theirs.
    classes, units, slots : int64 arrays, shape (elements,)
    types : dict of (class, slot) to int
        Vertex type of a task.
    summed : dict of (class, slot) to int
        Vertex type of the cells of a task that is a sum over rows.
    cells : dict of (class, slot, class, slot) to int
        Vertex type of the cells of a task and a channel.
    """

    tasks: list[int]
    columns: list[int]
    classes: Int64
    units: Int64
    slots: Int64
    types: dict[tuple[int, int], int]
    summed: dict[tuple[int, int], int]
    cells: dict[tuple[int, int, int, int], int]

    @cached_property
    def by_class(self) -> Sequences:
        """The elements of each class, unit by unit, slot by slot."""
        order = np.lexsort((self.slots, self.units, self.classes))
        ends = np.cumsum(np.bincount(self.classes))
        return Sequences(np.concatenate([[0], ends]), order)
