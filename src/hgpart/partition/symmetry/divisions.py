"""Blocks and parts <-> Division: how many units of each class lie in the parts in which way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.symmetry import Symmetry, UnitElements
from hgpart.sequences import equal_rows


@dataclass(frozen=True)
class Division:
    """A division of the units of each class into rows of units that lie alike.

    Rows are the same in all slices of the batch; their parts are not.

    Attributes
    ----------
    sizes : list of int64 arrays
        For each class, the number of units of each row.
    parts : list of int32 arrays
        For each vertex type its parts, shape (rows,) or (rows, rows of the second class).
    """

    sizes: list[Int64]
    parts: list[Int32]


def division_of(symmetry: Symmetry, model: CnnHypergraph, parts: Int32) -> Division:
    """Tell how a partition of blocks divides the classes; loads and volume stay the same.

    A group of tasks that is one unit's takes the part of its reductions.
    """
    elements = symmetry.elements
    count = len(elements.classes)
    blocks = np.zeros(count, dtype=np.int64)  # the block that each element is in
    for at, view in enumerate(model.views):
        if not view.is_own:
            continue
        first, rows = elements.tasks[at], np.arange(view.rows)
        blocks[first : first + view.rows] = (
            np.searchsorted(model.blocks.rows[at], rows, "right") - 1
        )
        if elements.columns[at] >= 0:
            first, columns = elements.columns[at], np.arange(view.columns)
            blocks[first : first + view.columns] = (
                np.searchsorted(model.blocks.columns[at], columns, "right") - 1
            )
    sizes, examples = rows_of_units(symmetry, blocks)
    layer_of = _layer_of_elements(model.views, elements, count)
    # Vertices of each type in the first tile.
    kinds: list[Int64] = [np.zeros(0, np.int64)] * symmetry.tiles.shape[2]
    for (number, slot), kind in elements.types.items():
        chosen = examples[number][:, slot]
        layout = model.layouts[int(layer_of[chosen[0]])]
        assert layout is not None
        kinds[kind] = layout.finish + blocks[chosen]
    for (number, slot), kind in elements.summed.items():
        chosen = examples[number][:, slot]
        layout = model.layouts[int(layer_of[chosen[0]])]
        assert layout is not None
        kinds[kind] = layout.row_starts[blocks[chosen]]
    for (number, slot, crossing_class, crossing_slot), kind in elements.cells.items():
        chosen, crossing = examples[number][:, slot], examples[crossing_class][:, crossing_slot]
        layout = model.layouts[int(layer_of[chosen[0]])]
        assert layout is not None
        kinds[kind] = layout.cell(blocks[chosen][:, None], blocks[crossing][None, :])
    return Division(
        sizes,
        [
            own[in_band[vertices]]
            for own, of_slice in zip(
                parts.reshape(symmetry.slices, -1), symmetry.tiles, strict=True
            )
            for in_band, types in zip(model.in_bands, of_slice, strict=True)
            for vertices, kind in zip(kinds, types.tolist(), strict=True)
            if kind >= 0
        ],
    )


def rows_of_units(symmetry: Symmetry, keys: Int64) -> tuple[list[Int64], list[Int64]]:
    """Put the units of each class whose elements have the same keys into one row.

    Returns
    -------
    list of int64 arrays
        Per class the units of each row.
    list of int64 arrays, shape (rows, slots)
        Per class the elements of a unit of each row.
    """
    sizes: list[Int64] = []
    examples: list[Int64] = []
    for number, units in enumerate(symmetry.class_units.tolist()):
        own_elements = symmetry.elements.by_class[number].reshape(units, -1)
        rows, first = equal_rows(keys[own_elements])
        sizes.append(np.bincount(rows))
        examples.append(own_elements[first])
    return sizes, examples


def _layer_of_elements(
    views: tuple[LayerVertices, ...], elements: UnitElements, count: int
) -> Int64:
    starts, owners = [], []
    for at, view in enumerate(views):
        if view.is_first:
            for first in (elements.tasks[at], elements.columns[at]):
                if first >= 0:
                    starts.append(first)
                    owners.append(at)
    return np.array(owners)[np.searchsorted(starts, np.arange(count), "right") - 1]


def blocks_of(
    problem: Problem, symmetry: Symmetry, division: Division
) -> tuple[CnnHypergraph, Int32]:
    """Cut the layers into the largest blocks that a division keeps whole.

    Returns
    -------
    CnnHypergraph and int32 array
        The blocks, and the part of each vertex.
    """
    elements = symmetry.elements
    row_of = np.empty(len(elements.classes), dtype=np.int64)
    for number, sizes in enumerate(division.sizes):
        own = elements.by_class[number]
        row_of[own] = np.searchsorted(np.cumsum(sizes), elements.units[own], "right")
    place = np.stack([elements.classes, elements.slots, row_of], axis=1)

    def cuts(view: LayerVertices) -> tuple[Int64, Int64]:
        rows, columns = np.array([0, view.layer.tasks]), np.array([0, view.columns])
        if (first := elements.tasks[view.at]) >= 0 and not view.is_solid:
            rows = _cuts(place[first : first + view.rows])
        if (first := elements.columns[view.at]) >= 0:
            columns = _cuts(place[first : first + view.columns])
        return rows, columns

    model = problem.hypergraph(Blocks.cut(problem.views, cuts))

    parts = np.empty((symmetry.slices, model.slice_vertices), dtype=np.int32)
    for in_slice, of_slice in zip(parts, symmetry.tiles, strict=True):
        for in_band, tile in zip(model.in_bands, of_slice, strict=True):
            # Types without the band stand for themselves in the first one, and are left out.
            kinds = np.where(tile >= 0, tile, of_slice[0]).tolist()
            types = [division.parts[kind] for kind in kinds]
            of_band, exists = _parts(problem, symmetry, model, types, place), in_band >= 0
            in_slice[in_band[exists]] = of_band[exists]
    return model, parts.ravel()


def _parts(
    problem: Problem,
    symmetry: Symmetry,
    model: CnnHypergraph,
    types: list[Int32],
    place: Int64,
) -> Int32:
    """The part of each vertex of a tile; `types` are those of the tile's types."""
    elements = symmetry.elements
    parts = np.zeros(model.in_bands.shape[1], dtype=np.int32)
    for at, (view, layout) in enumerate(zip(problem.views, model.layouts, strict=True)):
        if layout is None or not view.is_first:
            continue
        first = elements.tasks[at]
        tasks = np.array([first]) if view.is_solid else first + model.blocks.rows[at][:-1]

        def of_tasks(kinds: dict[tuple[int, int], int], places: Int64 = place[tasks]) -> list[int]:
            return [int(types[kinds[number, slot]][row]) for number, slot, row in places.tolist()]

        finish = of_tasks(elements.types)
        parts[layout.finish : layout.finish + len(finish)] = finish
        if view.total is not None:
            parts[layout.row_starts] = of_tasks(elements.summed)
        if view.split is None:
            continue
        starts = model.blocks.columns[at][:-1]
        for index, (number, slot, row) in enumerate(place[tasks].tolist()):
            low, high = layout.row_columns[index].tolist()
            start = int(layout.row_starts[index])
            if elements.columns[at] < 0:
                parts[start : start + high - low + 1] = finish[index]
                continue
            crossing = place[elements.columns[at] + starts[low : high + 1]].tolist()
            parts[start : start + high - low + 1] = [
                types[elements.cells[number, slot, crossing_class, crossing_slot]][row, column]
                for crossing_class, crossing_slot, column in crossing
            ]
    return parts


def _cuts(places: Int64) -> Int64:
    differ = (places[1:] != places[:-1]).any(axis=1)
    return np.concatenate([[0], np.flatnonzero(differ) + 1, [len(places)]])
