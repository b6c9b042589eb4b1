"""Problem -> Symmetry: units, their classes, the types and nets of a slice, then all tiles."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.assembly import Assembly
from hgpart.partition.symmetry.numbering import Numbering, numbering
from hgpart.partition.symmetry.readers import Readers, readers
from hgpart.partition.symmetry.symmetry import Symmetry
from hgpart.partition.symmetry.unit_classes import unit_classes


def symmetry_of(problem: Problem) -> Symmetry:
    """Find the classes of a model."""
    numbered = numbering(problem)
    read = readers(problem, numbered)
    classes = unit_classes(problem, numbered, read)
    modelling, sets = problem.modelling, len(read.sets)
    items = _items_of_sets(numbered, read) if modelling.bands > 1 else []
    if modelling.slices == modelling.bands == 1:
        return Assembly(problem, numbered, classes, items).symmetry(sets)
    of_samples = {}
    for samples in sorted(set(modelling.samples)):
        # Without limits, which count copies of parameters: slices share theirs.
        slice_problem = replace(problem, modelling=modelling.of_samples(samples), memory=None)
        of_samples[samples] = Assembly(slice_problem, numbered, classes, items)
    return _over_tiles(problem, [of_samples[samples] for samples in modelling.samples], sets)


def _items_of_sets(numbered: Numbering, read: Readers) -> list[dict[int, int]]:
    """For each set, the item by which each layer in it reads, as in `items_read`."""
    layers, items = numbered.labels[read.ranges[:, 0], 0].tolist(), read.items.tolist()
    ranges = map(read.sets.__getitem__, range(len(read.sets)))
    return [{layers[number]: items[number] for number in own.tolist()} for own in ranges]


def _over_tiles(problem: Problem, assemblies: list[Assembly], sets: int) -> Symmetry:
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
