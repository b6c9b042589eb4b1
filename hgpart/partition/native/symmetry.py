"""ChannelGraph + work -> Symmetry: classes of interchangeable units, and what they cost.

Tasks that belong together because one reads just the other's map (residual adds, depthwise and
grouped layers, columns of a task matrix and the maps that they read) are one *unit*. Units that
nothing tells apart are a *class*; a partition is then how many units of a class lie how (design
section 3). Nothing is lost: loads and volume are those of the full hypergraph.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hgpart.hypergraph.blocks import Modelling
from hgpart.hypergraph.building import channel_shares
from hgpart.hypergraph.hypergraph import Int32, Int64
from hgpart.layers.channel_graph import ChannelGraph, Layer, Read
from hgpart.sequences import Sequences, distinct, distinct_pairs, equal_rows, starts_of_runs
from hgpart.work.figures import Work

# Tasks x channels of a group that is one unit; larger groups are divided like dense layers.
LARGEST_LOCAL_GROUP = 64
MOST_LOCAL_SETS = 4  # of one read, for a map; a map that more of them read is one for all


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


def symmetry(
    graph: ChannelGraph, work: Work, modelling: Modelling, copies: float = 0.0
) -> Symmetry:
    """Find the classes of a model; a part keeps so many copies of its parameters."""
    return _Search(graph, work, modelling, copies).result()


def split_read(layer: Layer, modelling: Modelling) -> Read | None:
    """The read whose channels split each task here.

    A task that reads one channel stays whole where its partial sum is not less than its map:
    nothing is won by doing one here and the other there.
    """
    read = modelling.split_read(layer)
    if read is None:
        return None
    single = len(read.channels) == read.groups and read.groups > 1
    return None if single and layer.partial_elements >= layer.map_elements else read


def _is_local(layer: Layer, read: Read) -> bool:
    group = (layer.tasks // read.groups) * (len(read.channels) // read.groups)
    return read.groups > 1 and group <= LARGEST_LOCAL_GROUP


_Net = tuple[int, int, tuple[int, ...]]  # layer, set, slots


class _Search:
    """Elements, who reads them, components of them, and classes of those."""

    def __init__(
        self, graph: ChannelGraph, work: Work, modelling: Modelling, copies: float
    ) -> None:
        self.graph, self.work, self.modelling, self.copies = graph, work, modelling, copies
        self.layers = [
            (at, layer) for at, layer in enumerate(graph.layers) if modelling.has_vertices(layer)
        ]
        self.splits = {at: split_read(layer, modelling) for at, layer in self.layers}
        self.tied: dict[int, list[tuple[int, Layer]]] = {}  # of each first layer: those tied to it
        for at, layer in self.layers:
            self.tied.setdefault(layer.tied_to, []).append((at, layer))
        self.shares: dict[int, Int64] = {}  # of the first layers that are split
        self._number_elements()
        self.root_of_task = np.full(int(graph.first_task[-1]), -1, dtype=np.int64)
        for at, layer in self.layers:
            own = np.arange(layer.tasks) * (not modelling.is_solid(layer))
            first = int(graph.first_task[at])
            self.root_of_task[first : first + layer.tasks] = self.tasks[at] + own
        self._read()

    def _number_elements(self) -> None:
        graph = self.graph
        self.tasks, self.columns = [-1] * len(graph.layers), [-1] * len(graph.layers)
        labels = []  # of each element: layer, group where that matters, work, and what it spans
        first = 0
        for at, layer in self.layers:
            if layer.tied_to != at:
                self.tasks[at] = self.tasks[layer.tied_to]
                self.columns[at] = self.columns[layer.tied_to]
                continue
            count = 1 if self.modelling.is_solid(layer) else layer.tasks
            read = self.splits[at]
            self.tasks[at] = first
            groups = np.zeros(count, np.int64)
            if read is not None:
                groups = np.arange(count) * read.groups // layer.tasks
            none = np.full(count, -1)
            labels.append(np.stack([np.full(count, at), groups, none, none], axis=1))
            first += count
            if read is not None:
                self.columns[at] = first
                channels = len(read.channels)
                groups = np.arange(channels) * read.groups // channels
                self.shares[at] = self._shares(at)
                own = np.full(channels, at), groups, self.shares[at], read.sizes
                labels.append(np.stack(own, axis=1))
                first += channels
        self.labels = np.concatenate(labels or [np.zeros((0, 4), np.int64)])

    def _shares(self, at: int) -> Int64:
        """Work of a cell of each column, that of tied layers together."""
        shares: list[Int64] = [
            channel_shares(read, int(self.work.per_task[other])).ravel()
            for other, _ in self.tied[at]
            if (read := self.splits[other]) is not None
        ]
        total: Int64 = np.sum(shares, axis=0)
        return total

    def _read(self) -> None:
        """Find who reads each task's map: elements of its own, and sets of them for many maps."""
        graph = self.graph
        ranges: dict[tuple[int, int], int] = {}  # of elements: their numbers
        local_tasks, local_elements = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        wide_tasks, wide_ranges = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for at, layer in self.layers:
            solid = self.modelling.is_solid(layer)
            for read in layer.reads:
                known = np.flatnonzero(read.channels >= 0)
                tasks = graph.task_of_channel[read.channels[known]]
                made = self.root_of_task[tasks] >= 0
                known, tasks = known[made], tasks[made]
                if not len(known):
                    continue
                split = self.splits[at] is read
                groups = known if split else known * read.groups // len(read.channels)
                tasks, groups = distinct_pairs(tasks, groups)
                counts = np.diff(starts_of_runs(tasks))
                local = np.repeat(counts, counts) <= MOST_LOCAL_SETS
                if not split and not _is_local(layer, read):
                    local[:] = False
                if split:
                    size, first = 1, self.columns[at]
                else:
                    size = 1 if solid else layer.tasks // read.groups
                    first = self.tasks[at]
                    if solid:
                        groups[:] = 0
                begins = first + groups * size
                own = Sequences.of_spans(begins[local], begins[local] + size)
                local_tasks.append(tasks[local][own.owners])
                local_elements.append(own.values)
                wide_tasks.append(tasks[~local])
                starts = distinct(begins[~local])
                numbers = [
                    ranges.setdefault((begin, begin + size), len(ranges))
                    for begin in starts.tolist()
                ]
                places = np.searchsorted(starts, begins[~local])
                wide_ranges.append(np.array(numbers, dtype=np.int64)[places])
        self.ranges = np.array(list(ranges), dtype=np.int64).reshape(-1, 2)
        self.local = distinct_pairs(np.concatenate(local_tasks), np.concatenate(local_elements))
        count = len(self.root_of_task)
        owners, numbers_of = np.concatenate(wide_tasks), np.concatenate(wide_ranges)
        wide = Sequences.of_pairs(owners + 1, numbers_of, count + 1)  # set 0 is empty
        sets, first_of = wide.alike()
        self.sets, self.set_of_task = wide.take(first_of), sets[1:]
        self.is_read = self.set_of_task > 0
        self.is_read[self.local[0]] = True

    def _components(self) -> Int64:
        """The smallest element of each element's component."""
        found = np.arange(len(self.labels))
        one, other = self.root_of_task[self.local[0]], self.local[1]
        while True:
            lowest = np.minimum(found[one], found[other])
            before = found.copy()
            np.minimum.at(found, one, lowest)
            np.minimum.at(found, other, lowest)
            np.minimum.at(found, before, found)
            found = found[found]
            if (found == before).all():
                return found

    def _memberships(self) -> Int64:
        """A number for each element that says in which sets it is."""
        # Between two ends of ranges all elements are in the same sets.
        edges = distinct(np.concatenate([[0, len(self.labels)], self.ranges.ravel()]))
        low, high = np.searchsorted(edges, self.ranges).T
        pieces = self.sets.united(Sequences.of_spans(low, high))
        found = Sequences.of_pairs(pieces.values, pieces.owners, len(edges) - 1)
        numbers, first = found.alike()
        self.sets_of_membership = [found[at].tolist() for at in first.tolist()]
        return np.repeat(numbers, np.diff(edges))

    def _nets(self, components: Int64, slots: Int64) -> tuple[Int64, Int64, list[_Net]]:
        """Component and number of the net of each map that is read, in order; nets by number."""
        read = np.flatnonzero(self.is_read)
        roots = self.root_of_task[read]
        tasks, elements = self.local
        others = slots[elements]
        net_of = np.searchsorted(read, tasks)
        other = others != slots[roots][net_of]
        pins = Sequences.of_pairs(net_of[other], others[other], len(read))
        alike, _ = pins.alike()
        layers = np.searchsorted(self.graph.first_task, read, "right") - 1
        heads = np.stack([layers, self.set_of_task[read], slots[roots]], axis=1)
        numbers, first = equal_rows(np.concatenate([heads, alike[:, None]], axis=1))
        nets = []
        for one in first.tolist():
            at, entry_set, slot = heads[one].tolist()
            nets.append((at, entry_set, (slot, *pins[one].tolist())))
        return components[roots], numbers, nets

    def result(self) -> Symmetry:
        components = self._components()
        memberships = self._memberships()
        count = len(self.labels)
        order = np.argsort(components, kind="stable")
        starts = starts_of_runs(components[order])
        sizes = np.diff(starts)
        component_of = np.repeat(np.arange(len(sizes)), sizes)
        slots = np.empty(count, dtype=np.int64)
        slots[order] = np.arange(count) - starts[component_of]
        components[order] = component_of

        owners, numbers, nets = self._nets(components, slots)
        by_component = np.lexsort((numbers, owners))
        net_starts = np.searchsorted(owners[by_component], np.arange(len(sizes) + 1))
        alike, _ = Sequences(net_starts, numbers[by_component]).alike()
        kinds, _ = equal_rows(np.concatenate([self.labels, memberships[:, None]], axis=1))
        looks, _ = Sequences(starts, kinds[order]).alike()
        class_of, examples = equal_rows(np.stack([looks, alike], axis=1))

        by_class = np.argsort(class_of, kind="stable")
        class_starts = starts_of_runs(class_of[by_class])
        units_of = np.empty(len(sizes), dtype=np.int64)
        units_of[by_class] = np.arange(len(sizes)) - class_starts[class_of[by_class]]
        in_order = np.argsort(owners, kind="stable")
        class_nets = [
            Counter(nets[one] for one in numbers[in_order[net_starts[at] : net_starts[at + 1]]])
            for at in examples
        ]
        return self._assemble(
            np.diff(class_starts),
            [order[starts[at] : starts[at + 1]].tolist() for at in examples],
            class_nets,
            memberships,
            class_of[components],
            units_of[components],
            slots,
        )

    def _assemble(
        self,
        class_units: Int64,
        first_elements: list[list[int]],
        class_nets: list[Counter[_Net]],
        memberships: Int64,
        classes: Int64,
        units: Int64,
        slots: Int64,
    ) -> Symmetry:
        graph, modelling = self.graph, self.modelling
        types: dict[tuple[int, int], int] = {}
        cells: dict[tuple[int, int, int, int], int] = {}
        weights: list[int] = []
        memory: list[int] = []
        type_classes: list[tuple[int, int]] = []
        set_types: list[set[int]] = [set() for _ in range(len(self.sets))]
        # Row slots of each layer, and column slots of each group of a split one: (class, slot).
        rows: dict[int, list[tuple[int, int, int]]] = {}
        columns: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        whole: dict[int, int] = {}
        for number, elements in enumerate(first_elements):
            for slot, element in enumerate(elements):
                at, group, share, _ = self.labels[element].tolist()
                if share >= 0:
                    columns.setdefault((at, group), []).append((number, slot, element))
                    continue
                rows.setdefault(at, []).append((number, slot, group))
                if at not in whole:
                    whole[at] = sum(
                        int(self.work.per_task[other])
                        * (layer.tasks if modelling.is_solid(layer) else 1)
                        for other, layer in self.tied[at]
                    )
                types[number, slot] = len(weights)
                weight = whole[at]
                if (read := self.splits[at]) is not None:
                    weight -= int(self.shares[at].reshape(read.groups, -1)[group].sum())
                weights.append(weight)
                memory.append(self._memory(at, group))
                type_classes.append((number, -1))
                for entry_set in self.sets_of_membership[memberships[element]]:
                    set_types[entry_set].add(types[number, slot])
        along: dict[tuple[int, int], list[int]] = {}  # pins of a row's or column's cells
        for at in dict.fromkeys(at for at, _ in columns):
            for row_class, row_slot, group in rows[at]:
                for number, slot, element in columns[at, group]:
                    kind = cells[row_class, row_slot, number, slot] = len(weights)
                    weights.append(int(self.labels[element, 2]))
                    memory.append(self._cell_memory(at, element - self.columns[at]))
                    type_classes.append((row_class, number))
                    along.setdefault((row_class, row_slot), []).append(2 * kind)
                    along.setdefault((number, slot), []).append(2 * kind + 1)
                    for entry_set in self.sets_of_membership[memberships[element]]:
                        set_types[entry_set].add(kind)

        costs: Counter[tuple[int, int, tuple[int, ...], bool]] = Counter()
        for number, own in enumerate(class_nets):
            for (at, entry_set, net_slots), times in own.items():
                pins: list[int] = []
                for slot in net_slots:
                    if (number, slot) in types:
                        pins.append(2 * types[number, slot])
                    else:
                        pins.extend(along.get((number, slot), []))
                layer = graph.layers[at]
                cost = graph.map_bytes(layer, modelling.batch_size, modelling.bytes_per_element)
                if len(pins) > 1 or entry_set:
                    costs[number, entry_set, tuple(pins), False] += times * cost
        for at, layer in self.layers:
            if self.splits[at] is None:
                continue
            cost = (
                layer.partial_elements
                * modelling.batch_size
                * (modelling.bytes_per_element or layer.bytes_per_element)
            )
            for number, slot, _ in rows[layer.tied_to]:
                pins = [2 * types[number, slot], *along.get((number, slot), [])]
                costs[number, 0, tuple(pins), True] += cost
        nets = [(*key, cost) for key, cost in costs.items() if cost > 0]
        return Symmetry(
            class_units=class_units,
            type_weights=np.array(weights, dtype=np.int64),
            type_memory=np.array(memory, dtype=np.int64),
            type_classes=np.array(type_classes, dtype=np.int32).reshape(-1, 2),
            set_pointers=np.cumsum([0, *map(len, set_types)], dtype=np.int64),
            set_types=np.array([kind for own in set_types for kind in sorted(own)], dtype=np.int32),
            net_classes=np.array([net[0] for net in nets], dtype=np.int32),
            net_sets=np.array([net[1] for net in nets], dtype=np.int32),
            net_costs=np.array([net[4] for net in nets], dtype=np.int64),
            net_gathers=np.array([net[3] for net in nets], dtype=bool),
            net_pointers=np.cumsum([0, *(len(net[2]) for net in nets)], dtype=np.int64),
            net_pins=np.array([pin for net in nets for pin in net[2]], dtype=np.int32),
            elements=Elements(self.tasks, self.columns, classes, units, slots, types, cells),
        )

    def _memory(self, at: int, group: int) -> int:
        """Bytes of a row's vertex: what is not its cells' of its parameters, and its map."""
        graph, modelling = self.graph, self.modelling
        bytes_kept = 0
        for other, layer in self.tied[at]:
            tasks = layer.tasks if modelling.is_solid(layer) else 1
            held = -(-layer.parameters * tasks // layer.tasks)
            if (read := self.splits[other]) is not None:
                shares = channel_shares(read, layer.weights // layer.tasks)
                held -= int(shares[group].sum())
            made = graph.map_bytes(layer, modelling.batch_size, modelling.bytes_per_element)
            bytes_kept += self._kept(layer, held) + tasks * made
        return bytes_kept

    def _cell_memory(self, at: int, column: int) -> int:
        """Bytes of the parameters of a cell, with those of tied layers."""
        bytes_kept = 0
        for other, layer in self.tied[at]:
            if (read := self.splits[other]) is not None:
                shares = channel_shares(read, layer.weights // layer.tasks)
                bytes_kept += self._kept(layer, int(shares.ravel()[column]))
        return bytes_kept

    def _kept(self, layer: Layer, parameters: int) -> int:
        each = self.modelling.bytes_per_element or layer.bytes_per_element
        return math.ceil(self.copies * parameters * each)
