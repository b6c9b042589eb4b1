"""ChannelGraph + work + Blocks -> CnnHypergraph, coarse-grain or fine-grain.

Pins are never listed per channel: the tasks that read a channel are runs of blocks, channels of
one block with the same readers share one net, and its cost is the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hgpart.blocks import Blocks, Modelling
from hgpart.errors import ArgumentError
from hgpart.graph import ChannelGraph, Layer, Read
from hgpart.hypergraph import Hypergraph
from hgpart.work import LARGEST_TOTAL, Work

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class CnnHypergraph:
    """The Hypergraph of a model, and what its vertices are.

    Vertices come layer by layer. Where tasks are split (fine-grain), a layer's f(row, column)
    come row by row, then its reductions r(row); elsewhere a layer has one vertex a row. A layer
    that is tied to an earlier one has no vertices of its own.

    Attributes
    ----------
    hypergraph : Hypergraph
    blocks : Blocks
    vertex_layers, vertex_rows : int32 arrays, shape (vertices,)
        The (first) layer of a vertex, and its row block there.
    vertex_columns : int32 array, shape (vertices,)
        Its column block; -1 for a reduction or a task that is not split.
    layouts : tuple of Layout or None
        Where each layer's vertices are; None for a layer that has none.
    """

    hypergraph: Hypergraph
    blocks: Blocks
    vertex_layers: Int32
    vertex_rows: Int32
    vertex_columns: Int32
    layouts: tuple[Layout | None, ...]

    @cached_property
    def task_vertices(self) -> tuple[Int64, ...]:
        """Per layer the vertex that finishes each task: the reduction, or the task itself."""
        return tuple(
            np.zeros(0, np.int64)
            if layout is None
            else layout.finish + np.repeat(np.arange(len(rows) - 1), np.diff(rows))
            for layout, rows in zip(self.layouts, self.blocks.rows, strict=True)
        )


@dataclass(frozen=True)
class Layout:
    """Where the vertices of one layer are.

    Attributes
    ----------
    finish : int
        First of the vertices that finish a row: ``finish + row``.
    row_starts : int64 array, shape (rows,)
        Of a split layer: the vertex of the row's first column block.
    row_columns : int64 array, shape (rows, 2)
        Of a split layer: first and last column block of each row (all of them, or those of the
        groups that the row's tasks read).
    """

    finish: int
    row_starts: Int64
    row_columns: Int64

    def cell(self, row: Int64, column: Int64) -> Int64:
        """Vertices f(row, column)."""
        vertices: Int64 = self.row_starts[row] + column - self.row_columns[row, 0]
        return vertices


def cnn_hypergraph(
    graph: ChannelGraph, work: Work, blocks: Blocks, modelling: Modelling
) -> CnnHypergraph:
    """Build the hypergraph of a model (design section 2; thesis 3.3 and 3.4).

    With `single_blocks` it is the full hypergraph: a vertex per task, fine-grain per channel of
    each task. With larger blocks it is exact for every partition that keeps blocks whole.

    Raises
    ------
    ArgumentError
        If `work` is not one number >= 0 for each layer, or the blocks are not the graph's, or work
        or bytes exceed 64 bits.
    """
    check_work(graph, work)
    check_bytes(graph, modelling)
    _check(graph, blocks, modelling)
    layouts, owners, rows, columns = _lay_out(graph, blocks, modelling)
    if len(owners) >= 2**31:
        raise ArgumentError(f"{len(owners)} vertices: accepted are less than 2^31 (larger blocks)")
    weights = _weights(graph, work, blocks, modelling, layouts, len(owners))
    reductions = _reduction_nets(graph, blocks, modelling, layouts)
    maps = _map_nets(graph, blocks, modelling, layouts)
    nets = [net for at in range(len(graph.layers)) for net in (*reductions[at], *maps[at])]
    pins = [net.pins for net in nets]
    hypergraph = Hypergraph(
        weights=weights,
        costs=np.array([net.cost for net in nets], dtype=np.int64),
        pointers=np.cumsum([0, *map(len, pins)], dtype=np.int64),
        pins=np.concatenate(pins) if pins else np.zeros(0, np.int32),
        gathers=np.array([net.gathers for net in nets], dtype=np.bool_),
        net_layers=np.array([net.layer for net in nets], dtype=np.int32),
    )
    return CnnHypergraph(hypergraph, blocks, owners, rows, columns, layouts)


def vertex_weights(graph: ChannelGraph, work: Work, blocks: Blocks, modelling: Modelling) -> Int64:
    """Return the weights of `cnn_hypergraph` alone, without its nets."""
    check_work(graph, work)
    _check(graph, blocks, modelling)
    layouts, owners, _, _ = _lay_out(graph, blocks, modelling)
    return _weights(graph, work, blocks, modelling, layouts, len(owners))


@dataclass(frozen=True)
class _Net:
    pins: Int32
    cost: int
    gathers: bool
    layer: int


def check_work(graph: ChannelGraph, work: Work) -> None:
    """Raise an ArgumentError if `work` is not one number >= 0 a layer, or too much in all."""
    if len(work.per_task) != len(graph.layers) or (work.per_task < 0).any():
        raise ArgumentError(
            f"work of {len(work.per_task)} layers: accepted is one number >= 0 for each of "
            f"{len(graph.layers)} layers"
        )
    pairs = zip(work.per_task.tolist(), graph.layers, strict=True)
    if (total := sum(each * layer.tasks for each, layer in pairs)) > LARGEST_TOTAL:
        raise ArgumentError(f"work of {total} in all: accepted is up to {LARGEST_TOTAL}")


def check_bytes(graph: ChannelGraph, modelling: Modelling) -> None:
    """Raise an ArgumentError if a batch of all feature maps is too much for 64 bits."""
    elements = sum(
        layer.tasks
        * max(layer.map_elements, layer.partial_elements)
        * (modelling.bytes_per_element or layer.bytes_per_element)
        for layer in graph.layers
    )
    if (total := elements * modelling.batch_size) > LARGEST_TOTAL:
        raise ArgumentError(
            f"feature maps of {total} bytes in a batch of {modelling.batch_size}: accepted are up "
            f"to {LARGEST_TOTAL}"
        )


def _check(graph: ChannelGraph, blocks: Blocks, modelling: Modelling) -> None:
    if len(blocks.rows) != len(graph.layers) or len(blocks.columns) != len(graph.layers):
        raise ArgumentError(
            f"blocks of {len(blocks.rows)} layers: accepted are those of {len(graph.layers)} layers"
        )
    for at, layer in enumerate(graph.layers):
        read = modelling.split_read(layer)
        rows, columns = blocks.rows[at], blocks.columns[at]
        if not _divides(rows, layer.tasks):
            raise ArgumentError(f"the blocks do not divide the {layer.tasks} tasks of {layer.name}")
        if modelling.is_solid(layer) and len(rows) > 2:
            raise ArgumentError(f"{layer.name} is one vertex: accepted is one block of all tasks")
        if not _divides(columns, 1 if read is None else len(read.channels)):
            raise ArgumentError(
                f"the blocks do not divide the channels that a task of {layer.name} reads, "
                f"{modelling.grain}-grain"
            )
        first = layer.tied_to
        same = np.array_equal(rows, blocks.rows[first])
        if not same or not np.array_equal(columns, blocks.columns[first]):
            raise ArgumentError(
                f"{layer.name} and {graph.layers[first].name} share a weight: accepted are blocks "
                "that are the same in both"
            )


def _divides(cuts: Int64, count: int) -> bool:
    return bool(cuts[0] == 0 and cuts[-1] == count and (np.diff(cuts) >= 1).all())


# ------------------------------------------------------------------ vertices


def _lay_out(
    graph: ChannelGraph, blocks: Blocks, modelling: Modelling
) -> tuple[tuple[Layout | None, ...], Int32, Int32, Int32]:
    layouts: list[Layout | None] = []
    owners, rows, columns = [], [], []
    first = 0
    for at, layer in enumerate(graph.layers):
        if not modelling.has_vertices(layer):
            layouts.append(None)
            continue
        if layer.tied_to != at:
            layouts.append(layouts[layer.tied_to])
            continue
        count = len(blocks.rows[at]) - 1
        read = modelling.split_read(layer)
        spans = _column_spans(layer, read, blocks, at)
        widths = spans[:, 1] - spans[:, 0] + 1 if read is not None else np.zeros(count, np.int64)
        starts = first + np.concatenate([[0], np.cumsum(widths)])
        layouts.append(Layout(int(starts[-1]), starts[:-1], spans))
        cells = int(widths.sum())
        owners.append(np.full(cells + count, at, dtype=np.int32))
        cell_rows = np.repeat(np.arange(count, dtype=np.int32), widths)
        rows.append(np.concatenate([cell_rows, np.arange(count, dtype=np.int32)]))
        within = np.arange(cells) - (starts[:-1] - first)[cell_rows] + spans[cell_rows, 0]
        columns.append(np.concatenate([within, np.full(count, -1)]).astype(np.int32))
        first += cells + count
    nothing = [np.zeros(0, np.int32)]
    return (
        tuple(layouts),
        np.concatenate(owners or nothing),
        np.concatenate(rows or nothing),
        np.concatenate(columns or nothing),
    )


def _column_spans(layer: Layer, read: Read | None, blocks: Blocks, at: int) -> Int64:
    """First and last column block that each row block's tasks read."""
    rows = blocks.rows[at]
    if read is None:
        return np.zeros((len(rows) - 1, 2), dtype=np.int64)
    per_group = len(read.channels) // read.groups
    low = rows[:-1] * read.groups // layer.tasks * per_group
    high = ((rows[1:] - 1) * read.groups // layer.tasks + 1) * per_group - 1
    cuts = blocks.columns[at]
    return np.stack(
        [np.searchsorted(cuts, low, "right") - 1, np.searchsorted(cuts, high, "right") - 1], axis=1
    )


def _weights(
    graph: ChannelGraph,
    work: Work,
    blocks: Blocks,
    modelling: Modelling,
    layouts: tuple[Layout | None, ...],
    vertices: int,
) -> Int64:
    weights = np.zeros(vertices, dtype=np.int64)
    for at, (layer, layout) in enumerate(zip(graph.layers, layouts, strict=True)):
        if layout is None:
            continue
        rows = blocks.rows[at]
        sizes = np.diff(rows)
        finish = layout.finish + np.arange(len(sizes))
        totals = sizes * work.per_task[at]
        read = modelling.split_read(layer)
        if read is not None:
            shares = row_shares(layer, read, int(work.per_task[at]), blocks, at)
            for row, cell_work in enumerate(shares):
                start = layout.row_starts[row]
                weights[start : start + len(cell_work)] += cell_work
                totals[row] -= cell_work.sum()
        weights[finish] += totals
    return weights


def channel_shares(read: Read, each: int) -> Int64:
    """Divide what `each` task has among the channels that it reads, by what a channel spans.

    Whole numbers, shape (groups, channels a group); what is left of a task is its reduction's.
    """
    sizes = read.sizes.reshape(read.groups, -1)
    totals = sizes.sum(axis=1, keepdims=True)
    # sizes * each // totals, in steps that can't overflow
    shares: Int64 = each // totals * sizes + each % totals * sizes // totals
    return shares


def row_shares(layer: Layer, read: Read, each: int, blocks: Blocks, at: int) -> list[Int64]:
    """Divide what `each` task has among its cells, as `channel_shares` does; per row block."""
    per_group = len(read.channels) // read.groups
    cuts, rows = blocks.columns[at], blocks.rows[at]
    reach = np.concatenate([[0], np.cumsum(channel_shares(read, each))])
    result: list[Int64] = []
    same: dict[tuple[tuple[int, int], ...], Int64] = {}
    for first, last in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True):
        pieces = tuple(_tasks_by_group(layer, read, first, last))
        if pieces not in same:
            low, high = pieces[0][0] * per_group, (pieces[-1][0] + 1) * per_group
            inner = cuts[(cuts > low) & (cuts < high)]
            edges = np.concatenate([[low], inner, [high]])
            same[pieces] = sum(
                tasks * np.diff(reach[np.clip(edges, group * per_group, (group + 1) * per_group)])
                for group, tasks in pieces
            )
        result.append(same[pieces])
    return result


def _tasks_by_group(layer: Layer, read: Read, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The groups that tasks first to last - 1 read, and how many of the tasks read each."""
    per_group = layer.tasks // read.groups
    for group in range(first // per_group, (last - 1) // per_group + 1):
        begin, end = max(first, group * per_group), min(last, (group + 1) * per_group)
        yield group, end - begin


# ------------------------------------------------------------------ nets


def _reduction_nets(
    graph: ChannelGraph,
    blocks: Blocks,
    modelling: Modelling,
    layouts: tuple[Layout | None, ...],
) -> list[list[_Net]]:
    """Per layer, a net for each row: its reduction first, then the cells that it sums."""
    nets: list[list[_Net]] = []
    for at, (layer, layout) in enumerate(zip(graph.layers, layouts, strict=True)):
        nets.append([])
        read = modelling.split_read(layer)
        if layout is None or read is None:
            continue
        per_group = len(read.channels) // read.groups
        cuts, rows = blocks.columns[at], blocks.rows[at]
        cost = (
            layer.partial_elements
            * modelling.batch_size
            * (modelling.bytes_per_element or layer.bytes_per_element)
        )
        bounds = zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True)
        for row, (first, last) in enumerate(bounds):
            tasks_of: dict[tuple[int, int], int] = {}
            for group, tasks in _tasks_by_group(layer, read, first, last):
                low, high = group * per_group, (group + 1) * per_group - 1
                span = (
                    int(np.searchsorted(cuts, low, "right")) - 1,
                    int(np.searchsorted(cuts, high, "right")) - 1,
                )
                tasks_of[span] = tasks_of.get(span, 0) + tasks
            start = int(layout.row_starts[row]) - int(layout.row_columns[row, 0])
            for span, tasks in tasks_of.items():
                pins = np.empty(span[1] - span[0] + 2, dtype=np.int32)
                pins[0] = layout.finish + row
                pins[1:] = np.arange(start + span[0], start + span[1] + 1)
                nets[-1].append(_Net(pins, cost * tasks, True, len(graph.layers) + at))
    return nets


class _Readers:
    """Who reads each task's map: pairs of a task and a numbered set of vertices."""

    def __init__(self, graph: ChannelGraph) -> None:
        self.graph = graph
        self.tasks: list[Int64] = []
        self.sets: list[Int64] = []
        self.vertices: list[Int32] = []

    def add(self, channels: Int64, keys: Int64, vertices_of: dict[int, Int32]) -> None:
        """Channel c is read by the vertices of its key; equal keys are one set."""
        found, numbers = np.unique(keys, return_inverse=True)
        known = channels >= 0
        self.tasks.append(self.graph.task_of_channel[channels[known]])
        self.sets.append(len(self.vertices) + numbers[known])
        self.vertices.extend(vertices_of[key] for key in found.tolist())

    def by_task(self) -> tuple[Int64, Int64]:
        """Distinct (task, set) pairs, sorted."""
        nothing = [np.zeros(0, np.int64)]
        pairs = np.stack(
            [np.concatenate(self.tasks or nothing), np.concatenate(self.sets or nothing)], axis=1
        )
        pairs = np.unique(pairs, axis=0)
        return pairs[:, 0], pairs[:, 1]


def _map_nets(
    graph: ChannelGraph,
    blocks: Blocks,
    modelling: Modelling,
    layouts: tuple[Layout | None, ...],
) -> list[list[_Net]]:
    """Per layer, a net for each set of maps with one producer and the same readers."""
    readers = _Readers(graph)
    for at, (layer, layout) in enumerate(zip(graph.layers, layouts, strict=True)):
        if layout is not None:
            split = modelling.split_read(layer)
            for read in layer.reads:
                _add_readers(readers, layer, read, layout, blocks, at, split is read)
    tasks, sets = readers.by_task()
    nets: list[list[_Net]] = [[] for _ in graph.layers]
    starts = np.flatnonzero(np.diff(tasks, prepend=-1))
    ends = np.flatnonzero(np.diff(tasks, append=-1)) + 1
    groups: dict[tuple[int, int, bytes], list[int]] = {}
    layer_of_task = np.searchsorted(graph.first_task, tasks[starts], "right") - 1
    for begin, end, at in zip(starts.tolist(), ends.tolist(), layer_of_task.tolist(), strict=True):
        layout = layouts[at]
        if layout is not None:
            task = int(tasks[begin]) - int(graph.first_task[at])
            row = int(np.searchsorted(blocks.rows[at], task, "right")) - 1
            key = (at, layout.finish + row, sets[begin:end].tobytes())
            groups.setdefault(key, []).append(begin)
    for (at, root, packed), members in groups.items():
        numbers = np.frombuffer(packed, dtype=np.int64).tolist()
        layer = graph.layers[at]
        cost = graph.map_bytes(layer, modelling.batch_size, modelling.bytes_per_element)
        pins = _pins(root, [readers.vertices[number] for number in numbers])
        nets[at].append(_Net(pins, cost * len(members), False, at))
    return nets


def _pins(root: int, readers: list[Int32]) -> Int32:
    """Root first, then the readers ascending, each once."""
    others = readers[0] if len(readers) == 1 else np.unique(np.concatenate(readers))
    if len(others) and others[0] <= root <= others[-1]:
        others = others[others != root]
    return np.concatenate([np.array([root], dtype=np.int32), others])


def _add_readers(
    readers: _Readers,
    layer: Layer,
    read: Read,
    layout: Layout,
    blocks: Blocks,
    at: int,
    split: bool,
) -> None:
    positions = np.arange(len(read.channels))
    groups = positions * read.groups // max(1, len(positions))
    per_group = layer.tasks // read.groups
    first_task, last_task = groups * per_group, (groups + 1) * per_group - 1
    rows = blocks.rows[at]
    low = np.searchsorted(rows, first_task, "right") - 1
    high = np.searchsorted(rows, last_task, "right") - 1
    count = len(rows) - 1
    columns = np.zeros_like(positions)
    if split:
        columns = np.searchsorted(blocks.columns[at], positions, "right") - 1
    keys = (columns * count + low) * count + high
    vertices: dict[int, Int32] = {}
    found, first = np.unique(keys, return_index=True)
    for key, position in zip(found.tolist(), first.tolist(), strict=True):
        reading = np.arange(low[position], high[position] + 1)
        pins = layout.cell(reading, columns[position]) if split else layout.finish + reading
        vertices[key] = pins.astype(np.int32)
    readers.add(read.channels, keys, vertices)
