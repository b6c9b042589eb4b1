"""CnnHypergraph -> Nets: who reads the maps of each block, and what each reduction sums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from hgpart.hypergraph.hypergraph import Int64
from hgpart.hypergraph.nets import Nets
from hgpart.sequences import Sequences, distinct_pairs, equal_rows, starts_of_runs

if TYPE_CHECKING:
    from hgpart.hypergraph.building import CnnHypergraph


def cnn_nets(model: CnnHypergraph) -> Nets:
    """Per layer a net for each row's partial sums, then one for maps with the same readers."""
    sums, maps = _reduction_nets(model), _map_nets(model)
    is_map = np.repeat([False, True], [len(sums.roots), len(maps.roots)])
    layers = np.concatenate([sums.layers, maps.layers])
    order = np.lexsort((is_map, layers % max(1, len(model.graph.layers))))
    return Nets(
        costs=np.concatenate([sums.costs, maps.costs])[order],
        gathers=~is_map[order],
        layers=layers[order],
        roots=np.concatenate([sums.roots, maps.roots])[order],
        readers=np.concatenate([sums.readers, maps.readers + len(sums.lists)])[order],
        lists=Sequences.joined([sums.lists, maps.lists.shifted(len(sums.sets))]),
        sets=Sequences.joined([sums.sets, maps.sets]),
    )


def _reduction_nets(model: CnnHypergraph) -> Nets:
    """A net for each row: its reduction first, then the cells that it sums."""
    graph, blocks, modelling = model.graph, model.blocks, model.modelling
    costs: list[int] = []
    layers, roots, firsts, lasts = [], [], [], []
    for at, (layer, layout) in enumerate(zip(graph.layers, model.layouts, strict=True)):
        read = modelling.split_read(layer)
        if layout is None or read is None:
            continue
        cuts, rows = blocks.columns[at], blocks.rows[at]
        per_group, channels = layer.tasks // read.groups, len(read.channels) // read.groups
        read_groups = Sequences.of_spans(rows[:-1] // per_group, (rows[1:] - 1) // per_group + 1)
        groups, row = read_groups.values, read_groups.owners
        begin = np.maximum(rows[row], groups * per_group)
        tasks = np.minimum(rows[row + 1], (groups + 1) * per_group) - begin
        low = np.searchsorted(cuts, groups * channels, "right") - 1
        high = np.searchsorted(cuts, (groups + 1) * channels - 1, "right") - 1
        numbers, example = equal_rows(np.stack([row, low, high], axis=1))
        times = np.zeros(len(example), dtype=np.int64)
        np.add.at(times, numbers, tasks)
        cost = (
            layer.partial_elements
            * modelling.batch_size
            * (modelling.bytes_per_element or layer.bytes_per_element)
        )
        costs += [cost * count for count in times.tolist()]
        layers.append(np.full(len(example), len(graph.layers) + at, dtype=np.int32))
        roots.append((layout.finish + row[example]).astype(np.int32))
        firsts.append(layout.cell(row[example], low[example]))
        lasts.append(layout.cell(row[example], high[example]))
    nothing = [np.zeros(0, np.int64)]
    first, last = np.concatenate([*nothing, *firsts]), np.concatenate([*nothing, *lasts])
    every = np.arange(len(first) + 1)
    return Nets(
        costs=np.array(costs, dtype=np.int64),
        gathers=np.ones(len(first), dtype=np.bool_),
        layers=np.concatenate([*nothing, *layers]).astype(np.int32),
        roots=np.concatenate([*nothing, *roots]).astype(np.int32),
        readers=every[:-1],
        lists=Sequences(every, every[:-1]),
        sets=Sequences.of_spans(first, last + 1),
    )


def _map_nets(model: CnnHypergraph) -> Nets:
    """A net for each set of maps with one producer and the same readers."""
    graph, modelling = model.graph, model.modelling
    tasks, own, sets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
    count = 0
    for members in _tied(model):
        read, numbers, vertices = _readers(model, members)
        tasks.append(read)
        own.append(count + numbers)
        sets.append(vertices)
        count += len(vertices)
    # Layers ascend, and so do their vertices.
    lists = Sequences.of_pairs(
        np.concatenate(tasks), np.concatenate(own), int(graph.first_task[-1])
    )
    read = np.flatnonzero(lists.lengths)
    layers = np.searchsorted(graph.first_task, read, "right") - 1
    roots = np.concatenate([np.zeros(0, np.int64), *_finishing(model)])[read]
    made = roots >= 0
    read, layers, roots = read[made], layers[made], roots[made]
    lists = lists.take(read)
    numbers, first = lists.alike()
    nets, examples = equal_rows(np.stack([layers, roots, numbers], axis=1))
    each = [
        graph.map_bytes(layer, modelling.batch_size, modelling.bytes_per_element)
        for layer in graph.layers
    ]
    times = np.bincount(nets, minlength=len(examples)).tolist()
    return Nets(
        costs=np.array(
            [each[at] * many for at, many in zip(layers[examples].tolist(), times, strict=True)],
            dtype=np.int64,
        ),
        gathers=np.zeros(len(examples), dtype=np.bool_),
        layers=layers[examples].astype(np.int32),
        roots=roots[examples].astype(np.int32),
        readers=numbers[examples],
        lists=lists.take(first),
        sets=Sequences.joined(sets),
    )


def _tied(model: CnnHypergraph) -> Iterable[list[int]]:
    """Layers that have the same vertices."""
    tied: dict[int, list[int]] = {}
    for at, (layer, layout) in enumerate(zip(model.graph.layers, model.layouts, strict=True)):
        if layout is not None:
            tied.setdefault(layer.tied_to, []).append(at)
    return tied.values()


def _finishing(model: CnnHypergraph) -> list[Int64]:
    """Per layer the vertex that finishes each task; -1 where a layer has none."""
    return [
        vertices if len(vertices) else np.full(layer.tasks, -1)
        for layer, vertices in zip(model.graph.layers, model.task_vertices, strict=True)
    ]


def _readers(model: CnnHypergraph, members: list[int]) -> tuple[Int64, Int64, Sequences]:
    """Tasks that tied layers read, which set of their vertices reads each, and these sets."""
    graph, modelling = model.graph, model.modelling
    rows = model.blocks.rows[members[0]]
    tasks, runs = [np.zeros(0, np.int64)], [np.zeros((0, 3), np.int64)]
    for at in members:
        layer = graph.layers[at]
        split = modelling.split_read(layer)
        for read in layer.reads:
            known = np.flatnonzero(read.channels >= 0)
            groups = known * read.groups // max(1, len(read.channels))
            per_group = layer.tasks // read.groups
            low = np.searchsorted(rows, groups * per_group, "right") - 1
            high = np.searchsorted(rows, (groups + 1) * per_group - 1, "right") - 1
            columns = np.full(len(known), -1)
            if split is read:
                columns = np.searchsorted(model.blocks.columns[at], known, "right") - 1
            tasks.append(graph.task_of_channel[read.channels[known]])
            runs.append(np.stack([low, high, columns], axis=1))
    table = np.concatenate(runs)
    numbers, first = equal_rows(table)
    low, high, column = table[first].T
    layout = model.layouts[members[0]]
    assert layout is not None
    reading = Sequences.of_spans(low, high + 1)
    column = column[reading.owners]
    cells = layout.cell(reading.values, np.maximum(column, 0))
    vertices = np.where(column < 0, layout.finish + reading.values, cells)
    found, numbers = distinct_pairs(np.concatenate(tasks), numbers)
    starts = starts_of_runs(found)
    lists = Sequences(starts, numbers)
    alike, examples = lists.alike()
    sets = lists.take(examples).united(Sequences(reading.pointers, vertices))
    return found[starts[:-1]], alike, sets
