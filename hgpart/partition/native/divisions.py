"""Blocks and parts <-> Division: how many units of each class lie in the parts in which way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.hypergraph.blocks import Blocks, Modelling
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.hypergraph import Int32, Int64
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.native.symmetry import Elements, Symmetry
from hgpart.sequences import equal_rows
from hgpart.work.figures import Work


@dataclass(frozen=True)
class Division:
    """How the units of each class are divided into rows of units that lie alike.

    Attributes
    ----------
    sizes : list of int64 arrays
        Per class the units of each row.
    parts : list of int32 arrays
        Per vertex type, shape (rows,) or (rows, rows of the second class).
    """

    sizes: list[Int64]
    parts: list[Int32]


def division_of(
    graph: ChannelGraph, found: Symmetry, modelling: Modelling, model: CnnHypergraph, parts: Int32
) -> Division:
    """Tell how a partition of blocks divides the classes; loads and volume stay the same.

    A group of tasks that is one unit's takes the part of its reductions.
    """
    elements = found.elements
    count = len(elements.classes)
    blocks = np.zeros(count, dtype=np.int64)  # the block that each element is in
    for at, layer in enumerate(graph.layers):
        layout = model.layouts[at]
        if layout is None or layer.tied_to != at:
            continue
        rows = model.blocks.rows[at]
        count_of = 1 if modelling.is_solid(layer) else layer.tasks
        first = elements.tasks[at]
        blocks[first : first + count_of] = np.searchsorted(rows, np.arange(count_of), "right") - 1
        if elements.columns[at] >= 0:
            cuts = model.blocks.columns[at]
            first, own = elements.columns[at], int(cuts[-1])
            blocks[first : first + own] = np.searchsorted(cuts, np.arange(own), "right") - 1
    sizes, examples = rows_of_units(found, blocks)
    layer_of = _layer_of_elements(graph, elements, count)
    kinds: list[Int32] = [np.zeros(0, np.int32)] * len(found.type_weights)
    for (number, slot), kind in elements.types.items():
        chosen = examples[number][:, slot]
        layout = model.layouts[int(layer_of[chosen[0]])]
        assert layout is not None
        kinds[kind] = parts[layout.finish + blocks[chosen]]
    for (number, slot, other, other_slot), kind in elements.cells.items():
        chosen, crossing = examples[number][:, slot], examples[other][:, other_slot]
        layout = model.layouts[int(layer_of[chosen[0]])]
        assert layout is not None
        kinds[kind] = parts[layout.cell(blocks[chosen][:, None], blocks[crossing][None, :])]
    return Division(sizes, kinds)


def rows_of_units(found: Symmetry, keys: Int64) -> tuple[list[Int64], list[Int64]]:
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
    for number, units in enumerate(found.class_units.tolist()):
        own_elements = found.elements.by_class[number].reshape(units, -1)
        rows, first = equal_rows(keys[own_elements])
        sizes.append(np.bincount(rows))
        examples.append(own_elements[first])
    return sizes, examples


def _layer_of_elements(graph: ChannelGraph, elements: Elements, count: int) -> Int64:
    starts, owners = [], []
    for at, layer in enumerate(graph.layers):
        if layer.tied_to == at:
            for first in (elements.tasks[at], elements.columns[at]):
                if first >= 0:
                    starts.append(first)
                    owners.append(at)
    return np.array(owners)[np.searchsorted(starts, np.arange(count), "right") - 1]


def blocks_of(
    graph: ChannelGraph, work: Work, found: Symmetry, modelling: Modelling, division: Division
) -> tuple[CnnHypergraph, Int32]:
    """Cut the layers into the largest blocks that a division keeps whole.

    Returns
    -------
    CnnHypergraph and int32 array
        The blocks, and the part of each vertex.
    """
    elements = found.elements
    row_of = np.empty(len(elements.classes), dtype=np.int64)
    for number, sizes in enumerate(division.sizes):
        own = elements.by_class[number]
        row_of[own] = np.searchsorted(np.cumsum(sizes), elements.units[own], "right")
    place = np.stack([elements.classes, elements.slots, row_of], axis=1)

    rows: list[Int64] = []
    columns: list[Int64] = []
    for at, layer in enumerate(graph.layers):
        first = elements.tasks[at]
        if layer.tied_to != at and first >= 0:
            rows.append(rows[layer.tied_to])
            columns.append(columns[layer.tied_to])
            continue
        solid = first < 0 or modelling.is_solid(layer)
        rows.append(
            np.array([0, layer.tasks]) if solid else _cuts(place[first : first + layer.tasks])
        )
        read = modelling.split_read(layer)
        if read is None:
            columns.append(np.array([0, 1]))
        elif elements.columns[at] < 0:
            columns.append(np.array([0, len(read.channels)]))
        else:
            first = elements.columns[at]
            columns.append(_cuts(place[first : first + len(read.channels)]))
    model = cnn_hypergraph(graph, work, Blocks(tuple(rows), tuple(columns)), modelling)

    parts = np.empty(model.vertices, dtype=np.int32)
    for at, layer in enumerate(graph.layers):
        layout = model.layouts[at]
        if layout is None or layer.tied_to != at:
            continue
        first = elements.tasks[at]
        solid = modelling.is_solid(layer)
        tasks = np.array([first]) if solid else first + model.blocks.rows[at][:-1]
        finish = np.array(
            [
                division.parts[elements.types[number, slot]][row]
                for number, slot, row in place[tasks].tolist()
            ],
            dtype=np.int32,
        )
        parts[layout.finish : layout.finish + len(finish)] = finish
        if modelling.split_read(layer) is None:
            continue
        cuts = model.blocks.columns[at][:-1]
        for index, (number, slot, row) in enumerate(place[tasks].tolist()):
            low, high = layout.row_columns[index].tolist()
            start = int(layout.row_starts[index])
            if elements.columns[at] < 0:
                parts[start : start + high - low + 1] = finish[index]
                continue
            crossing = place[elements.columns[at] + cuts[low : high + 1]].tolist()
            parts[start : start + high - low + 1] = [
                division.parts[elements.cells[number, slot, other, other_slot]][row, column]
                for other, other_slot, column in crossing
            ]
    return model, parts


def _cuts(places: Int64) -> Int64:
    differ = (places[1:] != places[:-1]).any(axis=1)
    return np.concatenate([[0], np.flatnonzero(differ) + 1, [len(places)]])
