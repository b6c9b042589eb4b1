"""ChannelGraph + grain -> Blocks: runs of equal tasks and channels that stay together.

The tasks of a layer are equal (same work, same readers), so a hypergraph whose vertices are
blocks of consecutive tasks is exact for every partition that keeps the blocks whole, and orders
of magnitude smaller than the one with a vertex per task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError
from hgpart.hypergraph.modelling import LayerVertices, Modelling
from hgpart.layers.channel_graph import ChannelGraph, Layer, Read
from hgpart.work.figures import Work

LARGEST_FULL = 150_000_000  # pins of a hypergraph without blocks: 4 GB or so


@dataclass(frozen=True)
class Blocks:
    """The cuts of every layer's tasks (rows) and input channels (columns) into blocks.

    Attributes
    ----------
    rows : tuple of int64 arrays
        For each layer, the first task of each block, then the number of tasks.
    columns : tuple of int64 arrays
        For each layer, the first position of each block in the read that splits its tasks, then
        the number of positions; ``[0, 1]`` where tasks are not split.
    """

    rows: tuple[Int64, ...]
    columns: tuple[Int64, ...]

    @classmethod
    def cut(
        cls,
        views: Sequence[LayerVertices],
        cuts: Callable[[LayerVertices], tuple[Int64, Int64]],
    ) -> Blocks:
        """Cut the rows and columns of each layer; layers with shared vertices are cut alike."""
        rows: list[Int64] = []
        columns: list[Int64] = []
        for view in views:
            own = cuts(view) if view.is_first else (rows[view.first], columns[view.first])
            rows.append(own[0])
            columns.append(own[1])
        return cls(tuple(rows), tuple(columns))


def full_vertices(views: Sequence[LayerVertices]) -> int:
    """Number of vertices of the full hypergraph, which has `single_blocks`."""
    return sum(int(view.vertex_bands.sum()) for view in views if view.is_own)


def single_blocks(graph: ChannelGraph, modelling: Modelling) -> Blocks:
    """Put every task (fine-grain: every channel of it) in a block of its own.

    Raises
    ------
    ArgumentError
        If the full hypergraph would take too much memory.
    """
    views = modelling.views(graph)
    if (pins := modelling.slices * _full_pins(views)) > LARGEST_FULL:
        raise ArgumentError(
            f"the full {modelling.grain}-grain hypergraph has {pins} pins: accepted are up to "
            f"{LARGEST_FULL} (partitioning works, with blocks of equal tasks)"
        )
    return Blocks.cut(
        views, lambda view: (_every(view.rows) * view.tasks_per_row, _every(view.columns))
    )


def _full_pins(views: Sequence[LayerVertices]) -> int:
    pins = 0
    for view in views:
        if view.exists:
            read = sum(len(read.channels) // read.groups * view.rows for read in view.layer.reads)
            pins += view.bands * read + int(view.vertex_bands.sum())
    return pins


def layer_blocks(views: Sequence[LayerVertices]) -> Blocks:
    """Every layer as one block."""
    return Blocks.cut(
        views,
        lambda view: (np.array([0, view.layer.tasks]), np.array([0, view.columns])),
    )


def divide(graph: ChannelGraph, work: Work, modelling: Modelling, blocks: int) -> Blocks:
    """Divide layers into about `blocks` blocks of equal work, at least one per layer.

    Block counts are powers of two, so that the columns of a layer line up with the rows of the
    layer that it reads; fine-grain tasks become grids of about twice as many rows as columns.
    Linked layers (`linked_layers`) have the same rows, tied ones the same columns too. Any other
    layer whose task j reads one channel (a batch norm over a concatenation) is cut where the
    layers that it reads are cut.
    """
    loads = work.per_task * np.array([layer.tasks for layer in graph.layers])
    total = max(1, int(loads.sum()))
    linked = linked_layers(graph)
    views = modelling.views(graph)
    grids = [
        _grid(view, blocks * load / total) for view, load in zip(views, loads.tolist(), strict=True)
    ]
    rows: list[Int64] = []
    columns: list[Int64] = []
    for at, view in enumerate(views):
        members = np.flatnonzero(linked == linked[at]).tolist()
        cut = [member for member in members if not views[member].is_solid]
        if at not in cut:
            rows.append(np.array([0, view.layer.tasks]))
        elif len(members) == 1 and (cuts := _inherited_cuts(graph, view.layer, rows)) is not None:
            rows.append(cuts)
        else:
            rows.append(_even(view.layer.tasks, max(grids[member][0] for member in cut)))
        tied = [member for member in members if views[member].first == view.first]
        columns.append(_even(view.columns, max(grids[member][1] for member in tied)))
    return Blocks(tuple(rows), tuple(columns))


def _grid(view: LayerVertices, blocks: float) -> tuple[int, int]:
    """Numbers of rows and columns for a layer that is to have about `blocks` blocks."""
    if view.split is None:
        return _power_of_two(blocks), 1
    rows = min(view.layer.tasks, _power_of_two(math.sqrt(2 * blocks)))
    return rows, _power_of_two(blocks / rows) * view.split.groups


def _power_of_two(number: float) -> int:
    """The nearest power of two, at least 1 (by ratio: 3 becomes 4, 2.8 becomes 2).

    >>> [_power_of_two(number) for number in (0.1, 2.8, 3, 100)]
    [1, 2, 4, 128]
    """
    return 1 << round(math.log2(max(1.0, number)))


def _inherited_cuts(graph: ChannelGraph, layer: Layer, rows: list[Int64]) -> Int64 | None:
    """Cuts of a layer whose task j reads one channel: where its sources or their blocks change."""
    if layer.tasks < 2 or not layer.reads:
        return None
    read = layer.reads[0]
    if read.groups != layer.tasks or len(read.channels) != layer.tasks:
        return None
    sources = graph.layer_of_channel(np.maximum(read.channels, 0))
    blocks = np.zeros(layer.tasks, dtype=np.int64)
    for source in np.unique(sources).tolist():
        own = sources == source
        within = read.channels[own] - graph.first_channel[source]
        single = graph.layers[source].tasks == 1
        blocks[own] = 0 if single else np.searchsorted(rows[source], within, "right")
    changes = (np.diff(sources) != 0) | (np.diff(blocks) != 0)
    return np.concatenate([[0], np.flatnonzero(changes) + 1, [layer.tasks]])


def halve(blocks: Blocks, views: Sequence[LayerVertices]) -> Blocks:
    """Cut every block in two, rows and columns, down to single tasks and channels."""

    def halves(cuts: Int64) -> Int64:
        return np.unique(np.concatenate([cuts, (cuts[1:] + cuts[:-1]) // 2]))

    return Blocks(
        tuple(
            cuts if view.is_solid else halves(cuts)
            for cuts, view in zip(blocks.rows, views, strict=True)
        ),
        tuple(
            cuts if view.split is None else halves(cuts)
            for cuts, view in zip(blocks.columns, views, strict=True)
        ),
    )


def linked_layers(graph: ChannelGraph) -> Int64:
    """For each layer, the first layer that it is cut like.

    Layers that are tied by a weight, or whose task j reads channel j of the other (residual add,
    depthwise), are cut alike, so that what belongs together can stay together.
    """
    first = list(range(len(graph.layers)))

    def root(at: int) -> int:
        while first[at] != at:
            at = first[at]
        return at

    def link(layer: int, other_layer: int) -> None:
        low, high = sorted((root(layer), root(other_layer)))
        first[high] = low

    for at, layer in enumerate(graph.layers):
        link(at, layer.tied_to)
        for read in layer.reads:
            source = _same_index_source(graph, layer, read)
            if source is not None:
                link(at, source)
    return np.array([root(at) for at in range(len(graph.layers))], dtype=np.int64)


def _same_index_source(graph: ChannelGraph, layer: Layer, read: Read) -> int | None:
    """The layer whose channel j is read by task j, for all channels; None if there is none."""
    if layer.tasks < 2 or read.groups != layer.tasks or len(read.channels) != layer.tasks:
        return None
    start = int(read.channels[0])
    if start < 0 or (np.diff(read.channels) != 1).any():
        return None
    source = int(graph.layer_of_channel(np.array([start]))[0])
    whole = start == graph.first_channel[source] and graph.layers[source].tasks == layer.tasks
    return source if whole else None


def _every(count: int) -> Int64:
    return np.arange(count + 1, dtype=np.int64)


def _even(count: int, blocks: int) -> Int64:
    """Cut `count` into nearly equal runs.

    >>> _even(10, 3).tolist()
    [0, 3, 6, 10]
    """
    blocks = max(1, min(count, blocks))
    return np.arange(blocks + 1, dtype=np.int64) * count // blocks
