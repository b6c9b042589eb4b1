"""Classes of units -> Symmetry of a slice: vertex types, the nets that join them, and limits."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.channel_shares import channel_shares
from hgpart.hypergraph.cnn_nets import Reader, Segments
from hgpart.hypergraph.cnn_vertices import band_by_band
from hgpart.layers.channel_graph import PARAMETER
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.held_bytes import HeldBytes
from hgpart.partition.symmetry.numbering import Numbering
from hgpart.partition.symmetry.symmetry import Symmetry, TypeLimits, UnitElements
from hgpart.partition.symmetry.unit_classes import UnitClasses


@dataclass(frozen=True)
class SharedNet:
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

    def __init__(self, assembly: Assembly, tiles: Int64) -> None:
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


class Assembly:
    """Vertex types of the classes' slots and of the cells where they cross, then net types."""

    def __init__(
        self,
        problem: Problem,
        numbered: Numbering,
        classes: UnitClasses,
        items_of_set: Sequence[Mapping[int, int]],
    ) -> None:
        self.problem, self.numbered, self.classes = problem, numbered, classes
        self.held = HeldBytes(problem)
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

    def shared(self, problem: Problem, tiles: Int32) -> list[SharedNet]:
        """Nets of what travels, or is kept, once for all tiles of a problem."""
        modelling, shared = problem.modelling, list[SharedNet]()
        every = tiles.reshape(-1, tiles.shape[2])

        def over(own: Int32, kinds: Iterable[int]) -> list[int]:
            types = own[:, [*kinds]].ravel()
            existing: list[int] = types[types >= 0].tolist()
            return existing

        def add(own: Int32, kind: int, cost: int, kept: int) -> None:
            pins = tuple(2 * tile for tile in over(own, (kind,)))
            if cost * modelling.training * (len(pins) > 1) or kept:
                shared.append(SharedNet(pins, (), cost * modelling.training, kept, False))

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
                shared.append(SharedNet(tuple(of_unit), tuple(reading), own, 0, True))
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
                        for view in self.held.tied[at]
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
                    self.held.row_memory(at, group),
                    classes,
                    sets,
                    mask,
                    bands=len(self.problem.views[at].row_cuts) - 1,
                    parameters=self.held.row_parameters(at, group),
                    statistics=self.held.row_statistics(at),
                )
                if read_bytes := self.held.read_parameters(at):
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
                        self.held.cell_memory(at, column),
                        (row_class, number),
                        self.classes.sets[number][slot],
                        int(self.numbered.labels[row, 4]),
                        parameters=self.held.cell_parameters(at, column),
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
