"""Hypergraph -> Symmetry: vertices that nothing tells apart are a class."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.symmetry.divisions import Division
from hgpart.partition.symmetry.symmetry import Symmetry, UnitElements


def vertex_classes(hypergraph: Hypergraph) -> Symmetry:
    """Find the classes of vertices: equal in weight, in the nets that they root and are pins of.

    The pins of a net but for its root are a set of vertices; nets of a dense layer share theirs.
    """
    sets: dict[bytes, int] = {b"": 0}
    members: list[list[int]] = [[]]
    rooted: list[Counter[int]] = [Counter() for _ in range(hypergraph.vertices)]
    ends = hypergraph.pointers.tolist()
    for net, cost in enumerate(hypergraph.costs.tolist()):
        pins = hypergraph.pins[ends[net] : ends[net + 1]]
        readers = np.unique(pins[pins != pins[0]])
        if cost == 0 or len(readers) == 0:
            continue
        number = sets.setdefault(readers.tobytes(), len(sets))
        if number == len(members):
            members.append(readers.tolist())
        rooted[int(pins[0])][number] += cost
    sets_of: list[list[int]] = [[] for _ in range(hypergraph.vertices)]
    for number, vertices in enumerate(members):
        for vertex in vertices:
            sets_of[vertex].append(number)

    numbers: dict[object, int] = {}
    examples: list[int] = []
    units: list[int] = []
    classes = np.empty(hypergraph.vertices, dtype=np.int64)
    place = np.empty(hypergraph.vertices, dtype=np.int64)
    for vertex, weight in enumerate(hypergraph.weights.tolist()):
        key = (weight, tuple(sets_of[vertex]), tuple(sorted(rooted[vertex].items())))
        number = numbers.setdefault(key, len(numbers))
        if number == len(units):
            units.append(0)
            examples.append(vertex)
        classes[vertex], place[vertex] = number, units[number]
        units[number] += 1
    nets = [
        (number, entry_set, cost)
        for number, vertex in enumerate(examples)
        for entry_set, cost in sorted(rooted[vertex].items())
    ]
    types = [sorted({int(classes[vertex]) for vertex in vertices}) for vertices in members]
    kinds = np.arange(len(units), dtype=np.int32)
    return Symmetry(
        class_units=np.array(units, dtype=np.int64),
        type_weights=hypergraph.weights[examples],
        type_memory=np.zeros(len(units), dtype=np.int64),
        type_classes=np.stack([kinds, np.full(len(units), -1, np.int32)], axis=1),
        type_layers=np.zeros(len(units), dtype=np.int32),
        set_pointers=np.cumsum([0, *map(len, types)], dtype=np.int64),
        set_types=np.array([kind for own in types for kind in own], dtype=np.int32),
        net_classes=np.array([net[0] for net in nets], dtype=np.int32),
        net_crossings=np.full(len(nets), -1, dtype=np.int32),
        net_sets=np.array([net[1] for net in nets], dtype=np.int32),
        net_costs=np.array([net[2] for net in nets], dtype=np.int64),
        net_gathers=np.zeros(len(nets), dtype=bool),
        net_keeps=np.ones(len(nets), dtype=bool),
        net_memory=np.zeros(len(nets), dtype=np.int64),
        net_pointers=np.arange(len(nets) + 1, dtype=np.int64),
        net_pins=np.array([2 * net[0] for net in nets], dtype=np.int32),
        elements=UnitElements([], [], classes, place, np.zeros_like(classes), {}, {}, {}),
        tiles=kinds.reshape(1, 1, -1),
    )


def division_of_parts(symmetry: Symmetry, parts: Int32, k: int) -> Division:
    """Count the vertices of each class in each part."""
    counts = np.zeros((len(symmetry.class_units), k), dtype=np.int64)
    np.add.at(counts, (symmetry.elements.classes, parts), 1)
    held = [np.flatnonzero(own) for own in counts]
    return Division(
        [own[chosen] for own, chosen in zip(counts, held, strict=True)],
        [chosen.astype(np.int32) for chosen in held],
    )


def parts_of_division(symmetry: Symmetry, division: Division) -> Int32:
    """Give each vertex a part, so that each class has as many in each part as the division says."""
    parts = np.empty(len(symmetry.elements.classes), dtype=np.int32)
    for number, (sizes, own) in enumerate(zip(division.sizes, division.parts, strict=True)):
        members = symmetry.elements.classes == number
        rows: Int64 = np.searchsorted(np.cumsum(sizes), symmetry.elements.units[members], "right")
        parts[members] = own[rows]
    return parts
