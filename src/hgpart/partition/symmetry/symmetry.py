"""Problem -> Symmetry: classes of interchangeable units, and what they cost.

Tasks that belong together because one reads just the other's map (residual adds, depthwise and
grouped layers, columns of a task matrix and the maps that they read) are one *unit*. Units that
nothing tells apart are a *class*; a partition is then how many units of a class lie how (design
section 3). Nothing is lost: loads and volume are those of the full hypergraph.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.channel_shares import channel_shares
from hgpart.hypergraph.cnn_nets import Reader, Segments
from hgpart.hypergraph.cnn_vertices import band_by_band
from hgpart.hypergraph.modelling import LayerVertices, by_vertices
from hgpart.hypergraph.parameters import NUMBERS_A_CHANNEL
from hgpart.layers.channel_graph import PARAMETER
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.numbering import Numbering, numbering
from hgpart.partition.symmetry.readers import Readers, readers
from hgpart.partition.symmetry.unit_classes import UnitClasses, unit_classes
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


def symmetry_of(problem: Problem) -> Symmetry:
    """Find the classes of a model."""
    numbered = numbering(problem)
    read = readers(problem, numbered)
    classes = unit_classes(problem, numbered, read)
    modelling, sets = problem.modelling, len(read.sets)
    items = _items_of_sets(numbered, read) if modelling.bands > 1 else []
    if modelling.slices == modelling.bands == 1:
        return _Assembly(problem, numbered, classes, items).symmetry(sets)
    of_samples = {}
    for samples in sorted(set(modelling.samples)):
        # Without limits, which count copies of parameters: slices share theirs.
        slice_problem = replace(problem, modelling=modelling.of_samples(samples), memory=None)
        of_samples[samples] = _Assembly(slice_problem, numbered, classes, items)
    return _over_tiles(problem, [of_samples[samples] for samples in modelling.samples], sets)


def _items_of_sets(numbered: Numbering, read: Readers) -> list[dict[int, int]]:
    """For each set, the item by which each layer in it reads, as in `items_read`."""
    layers, items = numbered.labels[read.ranges[:, 0], 0].tolist(), read.items.tolist()
    ranges = map(read.sets.__getitem__, range(len(read.sets)))
    return [{layers[number]: items[number] for number in own.tolist()} for own in ranges]


def _over_tiles(problem: Problem, assemblies: list[_Assembly], sets: int) -> Symmetry:
    """Slices beside each other, and the nets that join tiles of a unit: of what they share."""
    modelling = problem.modelling
    of_parameters = modelling.slices == 1  # then they travel like maps
    slices = [assembly.symmetry(sets, of_parameters) for assembly in assemblies]
    types, first = len(slices[0].type_weights), slices[0]
    offsets = range(0, types * len(slices), types)
    tiles = np.concatenate(
        [
            np.where(piece.tiles >= 0, piece.tiles + offset, -1).astype(np.int32)
            for piece, offset in zip(slices, offsets, strict=True)
        ]
    )
    own_nets = sum(len(piece.net_costs) for piece in slices)
    # Sets of the slices without the empty net; then, of what is read in all, those of all slices.
    set_types = [
        piece.set_types[start:end] + offset
        for piece, offset in zip(slices, offsets, strict=True)
        for start, end in pairwise(piece.set_pointers[1:].tolist())
    ]
    set_offsets = np.cumsum([0, *(len(piece.set_pointers) - 2 for piece in slices)])[:-1]
    shared = assemblies[0].shared(problem, tiles)
    read = sorted({net.types for net in shared} - {()})
    numbers = {own: 1 + len(set_types) + at for at, own in enumerate(read)} | {(): 0}
    set_types += [np.array(own, dtype=np.int32) for own in read]
    pins = [piece.net_pins + 2 * offset for piece, offset in zip(slices, offsets, strict=True)]
    pins += [np.array(net.pins, dtype=np.int32) for net in shared]
    sizes = [size for piece in slices for size in np.diff(piece.net_pointers).tolist()]
    sizes += [len(net.pins) for net in shared]
    roots = [net.pins[0] // 2 % types for net in shared]
    return Symmetry(
        class_units=first.class_units,
        type_weights=np.outer(modelling.slice_work, first.type_weights).ravel(),
        type_memory=np.concatenate([piece.type_memory for piece in slices]),
        type_classes=np.tile(first.type_classes, (len(slices), 1)),
        type_layers=np.tile(first.type_layers, len(slices)),
        set_pointers=np.cumsum([0, 0, *map(len, set_types)], dtype=np.int64),
        set_types=np.concatenate([np.zeros(0), *set_types]).astype(np.int32),
        net_classes=np.concatenate(
            [*(piece.net_classes for piece in slices), first.type_classes[roots, 0]]
        ),
        net_crossings=np.concatenate(
            [np.full(own_nets, -1, dtype=np.int32), first.type_classes[roots, 1]]
        ),
        net_sets=np.concatenate(
            [
                *(
                    np.where(piece.net_sets > 0, piece.net_sets + offset, 0)
                    for offset, piece in zip(set_offsets, slices, strict=True)
                ),
                [numbers[net.types] for net in shared],
            ]
        ).astype(np.int32),
        net_costs=np.concatenate(
            [*(piece.net_costs for piece in slices), [net.cost for net in shared]]
        ).astype(np.int64),
        net_gathers=np.concatenate(
            [*(piece.net_gathers for piece in slices), [not net.is_read for net in shared]]
        ).astype(bool),
        net_keeps=np.array([True] * own_nets + [net.is_read for net in shared], dtype=bool),
        net_memory=np.concatenate([np.zeros(own_nets), [net.kept for net in shared]]).astype(
            np.int64
        ),
        net_pointers=np.cumsum([0, *sizes], dtype=np.int64),
        net_pins=np.concatenate([np.zeros(0), *pins]).astype(np.int32),
        elements=first.elements,
        tiles=tiles,
        limits=first.limits.tiled(len(slices)),
    )


@dataclass(frozen=True)
class _Shared:
    """A net of what tiles share: a unit's vertices, and types that read it.

    Attributes
    ----------
    pins, types : tuple of int
        Pins, and types of a set, numbered as in `Symmetry`.
    cost, kept : int
        Bytes that travel, and those that each part with a pin keeps.
    is_read : bool
        Whether it is of parameters that others read: they are sent them, and keep them.
    """

    pins: tuple[int, ...]
    types: tuple[int, ...]
    cost: int
    kept: int
    is_read: bool


class _Segmented:
    """Nets and sets of an assembly whose types have bands: of each segment of the rows of a map.

    Attributes
    ----------
    sets : list of list of int
        The types of each set, by number.
    """

    def __init__(self, assembly: _Assembly, tiles: Int64) -> None:
        self._assembly, self._tiles = assembly, tiles.tolist()
        self._segments = Segments(assembly.problem.graph, assembly.problem.views)
        self._numbers: dict[tuple[int, ...], int] = {(): 0}

    @property
    def sets(self) -> list[list[int]]:
        return [[*types] for types in self._numbers]

    def of(
        self, at: int, entry_set: int, pins: list[int]
    ) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """The rows, set and pins of each segment of a map, whose root is the first pin."""
        layers, items = self._assembly.type_layers, self._assembly.items_of_set[entry_set]
        root, *others = pins
        in_set = self._assembly.types_of_set[entry_set] if entry_set else ()
        near = [(pin, (layers[pin // 2], 0)) for pin in others]
        dense = [(2 * kind, (layers[kind], items[layers[kind]])) for kind in sorted(in_set)]
        readers = sorted({reader for _, reader in (*near, *dense)})
        for band, rows, read in self._segments.of(at, tuple(readers)):

            def tiles(
                pins: list[tuple[int, Reader]], read: Sequence[tuple[Reader, int]] = read
            ) -> list[int]:
                return [
                    2 * self._tiles[reading][pin // 2] + pin % 2
                    for pin, own in pins
                    for reader, reading in read
                    if own == reader
                ]

            members = tuple(sorted(pin // 2 for pin in tiles(dense)))
            number = self._numbers.setdefault(members, len(self._numbers))
            yield rows, number, (2 * self._tiles[band][root // 2], *tiles(near))


class _Assembly:
    """Vertex types of the classes' slots and of the cells where they cross, then net types."""

    def __init__(
        self,
        problem: Problem,
        numbered: Numbering,
        classes: UnitClasses,
        items_of_set: Sequence[Mapping[int, int]],
    ) -> None:
        self.problem, self.numbered, self.classes = problem, numbered, classes
        self.tied = by_vertices(problem.views)
        self.types: dict[tuple[int, int], int] = {}
        self.summed: dict[tuple[int, int], int] = {}
        self.cells: dict[tuple[int, int, int, int], int] = {}
        self.weights: list[int] = []
        self.memory: list[int] = []
        self.parameters: list[int] = []  # bytes of a vertex of each type
        # By type, then by layer, bytes of parameters that others read.
        self.read_parameters: dict[int, dict[int, int]] = {}
        self.statistics: list[int] = []  # the same, of norms
        self.type_classes: list[tuple[int, int]] = []
        self.type_layers: list[int] = []
        self.type_bands: list[int] = []
        self.type_elements: list[int] = []  # of a cell its channel, else the task
        self.type_masks: list[int] = []  # numbers of masks of parts; -1 without
        self.types_of_set: dict[int, set[int]] = defaultdict(set)
        self.items_of_set = items_of_set
        # Row slots of each layer, and column slots of each group of a split one: class, slot, and
        # group of the row or element of the column.
        self.rows: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self.columns: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        self.along: dict[tuple[int, int], list[int]] = defaultdict(list)  # pins of a slot's cells
        self._add_rows()
        self._add_cells()

    def shared(self, problem: Problem, tiles: Int32) -> list[_Shared]:
        """Nets of what travels, or is kept, once for all tiles of a problem."""
        modelling, shared = problem.modelling, list[_Shared]()
        every = tiles.reshape(-1, tiles.shape[2])

        def over(own: Int32, kinds: Iterable[int]) -> list[int]:
            types = own[:, [*kinds]].ravel()
            existing: list[int] = types[types >= 0].tolist()
            return existing

        def add(own: Int32, kind: int, cost: int, kept: int) -> None:
            pins = tuple(2 * tile for tile in over(own, (kind,)))
            if cost * modelling.training * (len(pins) > 1) or kept:
                shared.append(_Shared(pins, (), cost * modelling.training, kept, False))

        for kind, (own, numbers) in enumerate(zip(self.parameters, self.statistics, strict=True)):
            read = sum(self.read_parameters.get(kind, {}).values())
            kept = math.ceil(problem.copies * (own + read))
            add(every, kind, own + numbers * (modelling.norms == "batch"), kept)
            if modelling.norms == "slice" and modelling.bands > 1:
                for of_slice in tiles:
                    add(of_slice, kind, numbers, 0)
        is_shared = modelling.training and modelling.slices > 1
        readers = self._readers_of_parameters()
        for kind, layers in self.read_parameters.items() if is_shared else ():
            for at, own in layers.items():
                pins, types = readers.get(at, (set(), set()))
                of_unit = [
                    2 * tile + pin % 2
                    for tile_types in every
                    for pin in (2 * kind, *sorted(pins - {2 * kind}))
                    for tile in over(tile_types[None], (pin // 2,))
                ]
                reading = sorted(over(every, sorted(types)))
                shared.append(_Shared(tuple(of_unit), tuple(reading), own, 0, True))
        return shared

    def _readers_of_parameters(self) -> dict[int, tuple[set[int], set[int]]]:
        """Pins of its unit and types of sets, for each layer whose parameters others read."""
        by_layer: dict[int, tuple[set[int], set[int]]] = {}
        for number, own in enumerate(self.classes.nets):
            for at, entry_set, net_slots, _ in own:
                if self.problem.views[at].layer.kind == PARAMETER:
                    pins = self._pins(number, net_slots)
                    readers = by_layer.setdefault(at, (set(), set()))
                    readers[0].update(pins)
                    readers[1].update(self.types_of_set[entry_set] if entry_set else ())
        return by_layer

    def symmetry(self, sets: int, of_parameters: bool = True) -> Symmetry:
        """Build the Symmetry of a slice.

        It is without nets of parameters that others read if these are shared.
        """
        classes, numbered = self.classes, self.numbered
        views = [self.problem.views[at] for at in self.type_layers]
        tiles = band_by_band(np.array(self.type_bands))
        kinds = [(kind, band) for band, kind in np.argwhere(tiles >= 0).tolist()]
        segments = _Segmented(self, tiles) if len(tiles) > 1 else None
        costs = self._costs(of_parameters, tiles, segments)
        for (number, slot), cells in self.summed.items():
            view = self.problem.views[self.type_layers[cells]]
            of_bands = tiles[: view.bands, cells].tolist()
            pins = tuple(2 * tile for tile in (tiles[0, self.types[number, slot]], *of_bands))
            costs[number, 0, pins, True] += view.tasks_per_row * view.partial_bytes
        nets = [(*key, cost) for key, cost in costs.items() if cost > 0]
        if segments is None:
            set_types = [sorted(self.types_of_set[number]) for number in range(sets)]
        else:
            set_types = segments.sets
        return Symmetry(
            class_units=classes.units,
            type_weights=np.array([self._weight(*tile) for tile in kinds], dtype=np.int64),
            type_memory=np.array(
                [
                    self.memory[kind]
                    if self.type_bands[kind] == 1
                    else views[kind].in_band(self.memory[kind], band)
                    for kind, band in kinds
                ],
                dtype=np.int64,
            ),
            type_classes=np.array(
                [self.type_classes[kind] for kind, _ in kinds], dtype=np.int32
            ).reshape(-1, 2),
            type_layers=np.array([self.type_layers[kind] for kind, _ in kinds], dtype=np.int32),
            set_pointers=np.cumsum([0, *map(len, set_types)], dtype=np.int64),
            set_types=np.array([kind for own in set_types for kind in own], dtype=np.int32),
            net_classes=np.array([net[0] for net in nets], dtype=np.int32),
            net_sets=np.array([net[1] for net in nets], dtype=np.int32),
            net_crossings=np.full(len(nets), -1, dtype=np.int32),
            net_costs=np.array([net[4] for net in nets], dtype=np.int64),
            net_gathers=np.array([net[3] for net in nets], dtype=bool),
            net_keeps=np.ones(len(nets), dtype=bool),
            net_memory=np.zeros(len(nets), dtype=np.int64),
            net_pointers=np.cumsum([0, *(len(net[2]) for net in nets)], dtype=np.int64),
            net_pins=np.array([pin for net in nets for pin in net[2]], dtype=np.int32),
            elements=UnitElements(
                numbered.tasks,
                numbered.columns,
                classes.class_of,
                classes.unit_of,
                classes.slot_of,
                self.types,
                self.summed,
                self.cells,
            ),
            tiles=tiles[None].astype(np.int32),
            limits=self._limits([kind for kind, _ in kinds]),
        )

    def _limits(self, kinds: list[int]) -> TypeLimits:
        """Constraints on the types of all bands, from those on the first bands' kinds."""
        rules = self.problem.layer_constraints
        if rules is None:
            return TypeLimits()
        layers = np.array(self.type_layers, dtype=np.int64)[kinds]
        limits = TypeLimits()
        masks, numbers = self.numbered.masks, np.array(self.type_masks, dtype=np.int64)[kinds]
        anywhere = np.ones((1, rules.k), dtype=np.bool_)
        if not masks[:, 0].all():
            limits = replace(limits, parts=np.concatenate([masks[:, 0], anywhere])[numbers])
        start = self.problem.start
        if start is not None and start.price:
            homes = np.concatenate([masks[:, 1], anywhere])[numbers]
            sizes = [
                self.parameters[kind] + sum(self.read_parameters.get(kind, {}).values())
                for kind in kinds
            ]
            bands = [self.type_bands[kind] for kind in kinds]
            away = start.price * np.array(sizes) / np.array(bands)
            prices = np.where(homes, 0, np.rint(away)[:, None]).astype(np.int64)
            limits = replace(limits, prices=prices)
        if (rules.groups >= 0).any():
            limits = replace(limits, groups=rules.groups[layers])
        if rules.sides:
            sides = [np.isin(layers, sorted(own)) for pair in rules.sides for own in pair]
            limits = replace(limits, sides=np.array(sides))
        return limits

    def _weight(self, kind: int, band: int) -> int:
        """Work of a vertex of a type in a band, of each of its tasks in proportion to the rows."""
        view = self.problem.views[self.type_layers[kind]]
        if self.type_bands[kind] == 1:  # tied layers may have other numbers of tasks in a row
            return self.weights[kind]
        if view.split is None:
            tasks = view.tasks_per_row
            return tasks * view.in_band(self.weights[kind] // tasks, band)
        per_task = view.in_band(int(self.problem.work.per_task[view.at]), band)
        shares, element = channel_shares(view.split, per_task), self.type_elements[kind]
        if self.type_classes[kind][1] >= 0:
            return int(shares.ravel()[element - self.numbered.columns[view.at]])
        return per_task - int(shares[self.numbered.labels[element, 1]].sum())

    def _add_rows(self) -> None:
        whole: dict[int, int] = {}  # work of a row, with that of tied layers and of its cells
        for number, elements in enumerate(self.classes.examples):
            for slot, element in enumerate(elements):
                at, group, cell_work, _, mask = self.numbered.labels[element].tolist()
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
                classes, sets = (number, -1), self.classes.sets[number][slot]
                if self.problem.views[at].total is not None:  # it has no parameters
                    self.summed[number, slot] = self._add(element, weight, 0, classes, sets, mask)
                    weight, sets = 0, []
                self.types[number, slot] = self._add(
                    element,
                    weight,
                    self._row_memory(at, group),
                    classes,
                    sets,
                    mask,
                    bands=len(self.problem.views[at].row_cuts) - 1,
                    parameters=self._row_parameters(at, group),
                    statistics=self._row_statistics(at),
                )
                if read_bytes := self._read_parameters(at):
                    self.read_parameters[self.types[number, slot]] = read_bytes

    def _add_cells(self) -> None:
        for at in dict.fromkeys(at for at, _ in self.columns):
            for row_class, row_slot, group in self.rows[at]:
                row = self.classes.examples[row_class][row_slot]
                for number, slot, element in self.columns.get((at, group), ()):
                    column = element - self.numbered.columns[at]
                    kind = self._add(
                        element,
                        int(self.numbered.labels[element, 2]),
                        self._cell_memory(at, column),
                        (row_class, number),
                        self.classes.sets[number][slot],
                        int(self.numbered.labels[row, 4]),
                        parameters=self._cell_parameters(at, column),
                    )
                    self.cells[row_class, row_slot, number, slot] = kind
                    self.along[row_class, row_slot].append(2 * kind)
                    self.along[number, slot].append(2 * kind + 1)

    def _add(
        self,
        element: int,
        weight: int,
        memory: int,
        classes: tuple[int, int],
        sets: list[int],
        mask: int,
        *,
        bands: int | None = None,
        parameters: int = 0,
        statistics: int = 0,
    ) -> int:
        """Add the vertex type of a task, or of a cell's channel, and return its number.

        It has as many bands as its layer computes, unless `bands` says otherwise.
        """
        kind, at = len(self.weights), int(self.numbered.labels[element, 0])
        self.weights.append(weight)
        self.memory.append(memory)
        self.parameters.append(parameters)
        self.statistics.append(statistics)
        self.type_classes.append(classes)
        self.type_layers.append(at)
        self.type_bands.append(self.problem.views[at].bands if bands is None else bands)
        self.type_elements.append(element)
        self.type_masks.append(mask)
        for number in sets:
            self.types_of_set[number].add(kind)
        return kind

    def _pins(self, number: int, slots: Iterable[int]) -> list[int]:
        """The vertex of the first slot of a class's unit, and those of others that read its map."""
        pins: list[int] = []
        for slot in slots:
            if pins and (number, slot) in self.summed:
                pins.append(2 * self.summed[number, slot])
            elif (number, slot) in self.types:
                pins.append(2 * self.types[number, slot])
            else:
                pins.extend(self.along.get((number, slot), ()))
        return pins

    def _costs(
        self, of_parameters: bool, tiles: Int64, segments: _Segmented | None
    ) -> Counter[tuple[int, int, tuple[int, ...], bool]]:
        """Cost of the nets of one unit, by class, set, pins and whether the root gathers."""
        costs: Counter[tuple[int, int, tuple[int, ...], bool]] = Counter()
        for number, own in enumerate(self.classes.nets):
            for (at, entry_set, net_slots, gathers), times in own.items():
                view, pins = self.problem.views[at], self._pins(number, net_slots)
                if gathers:
                    cost = times * view.tasks_per_row * view.partial_bytes
                    costs[number, entry_set, tuple(pins), True] += cost
                    continue
                counts = of_parameters or view.layer.kind != PARAMETER
                if not counts or (len(pins) < 2 and not entry_set):
                    continue
                if segments is None:
                    costs[number, entry_set, tuple(pins), False] += times * view.map_bytes
                    continue
                row_bytes = times * view.map_bytes // view.height
                for rows, members, own_pins in segments.of(at, entry_set, pins):
                    if len(own_pins) > 1 or members:
                        costs[number, members, own_pins, False] += rows * row_bytes
        for view in self.problem.views:
            if not view.exists or view.split is None:
                continue
            for number, slot, _ in self.rows[view.first]:
                pins = [2 * self.types[number, slot], *self.along.get((number, slot), ())]
                for band in range(view.bands):
                    of_band = tuple(2 * int(tiles[band, pin // 2]) + pin % 2 for pin in pins)
                    costs[number, 0, of_band, True] += view.partial_bytes_in_band(band)
        return costs

    def _row_memory(self, at: int, group: int) -> int:
        """Bytes of a row's vertex: what is not its cells' of its parameters, and its map."""
        bytes_kept = 0
        for view in self.tied[at]:
            kept = self._kept(_held_by_row(view, group))
            bytes_kept += kept + view.tasks_per_row * view.map_bytes
        return bytes_kept

    def _row_parameters(self, at: int, group: int) -> int:
        """Bytes of what is not its cells' of a row's parameters, with those of tied layers.

        Without parameters that others read.
        """
        return sum(
            _held_by_row(view, group) for view in self.tied[at] if view.layer.kind != PARAMETER
        )

    def _read_parameters(self, at: int) -> dict[int, int]:
        """Bytes of the parameters of a row that others read, by layer, with tied ones."""
        return {
            view.at: view.parameter_bytes for view in self.tied[at] if view.layer.kind == PARAMETER
        }

    def _cell_parameters(self, at: int, column: int) -> int:
        """Bytes of the parameters of a cell, with those of tied layers."""
        return sum(_held_by_cell(view, column) for view in self.tied[at])

    def _row_statistics(self, at: int) -> int:
        """Bytes of what norms of a row take of the batch, with those of tied layers."""
        return sum(
            NUMBERS_A_CHANNEL
            * (view.layer.batch_statistics * view.tasks_per_row // view.layer.tasks)
            * view.element_bytes
            for view in self.tied[at]
        )

    def _cell_memory(self, at: int, column: int) -> int:
        """Bytes of the parameters of a cell that are kept, with those of tied layers."""
        return sum(self._kept(_held_by_cell(view, column)) for view in self.tied[at])

    def _kept(self, parameter_bytes: int) -> int:
        return math.ceil(self.problem.copies * parameter_bytes)


def _held_by_row(view: LayerVertices, group: int) -> int:
    """Bytes of the parameters of a row, less those of its cells."""
    layer = view.layer
    held = sum(
        -(-count * view.tasks_per_row // layer.tasks) * size for count, size in view.parameters
    )
    if (read := view.split) is not None:
        weights = int(channel_shares(read, layer.weights // layer.tasks)[group].sum())
        held -= weights * view.weight_bytes
    return held


def _held_by_cell(view: LayerVertices, column: int) -> int:
    """Bytes of the parameters of a cell: none of a layer that is not split."""
    if (read := view.split) is None:
        return 0
    shares = channel_shares(read, view.layer.weights // view.layer.tasks)
    return int(shares.ravel()[column]) * view.weight_bytes
