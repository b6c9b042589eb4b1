"""ChannelGraph + grain -> Blocks: runs of equal tasks and channels that stay together.

The tasks of a layer are equal (same work, same readers), so a hypergraph whose vertices are
blocks of consecutive tasks is exact for every partition that keeps the blocks whole, and orders
of magnitude smaller than the one with a vertex per task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hgpart.errors import ArgumentError
from hgpart.layers.channel_graph import INPUT, LINEAR, OUTPUT, ChannelGraph, Layer, Read
from hgpart.work.figures import Work

Int64 = NDArray[np.int64]

GRAINS = ("coarse", "fine")
LINEAR_MODES = ("neuron", "layer")

LARGEST_FULL = 150_000_000  # pins of a hypergraph without blocks: 4 GB or so
LARGEST_FACTOR = 2**20  # of samples in a batch and of bytes in an element


@dataclass(frozen=True)
class Modelling:
    """How a ChannelGraph becomes a hypergraph.

    Attributes
    ----------
    grain : str
        "coarse", a vertex per filter (thesis 3.4), or "fine", a vertex per filter channel and
        one per reduction (thesis 3.3).
    linear : str
        "neuron", a vertex per output feature of a linear layer, or "layer", one for all of
        them, as in the thesis.
    batch_size : int
        Samples whose maps travel together.
    bytes_per_element : int or None
        None takes each map's own dtype.
    input_vertex, output_vertex : bool
        Whether the model's inputs and its result have a vertex.
    """

    grain: str = "coarse"
    linear: str = "neuron"
    batch_size: int = 32
    bytes_per_element: int | None = None
    input_vertex: bool = True
    output_vertex: bool = True

    def __post_init__(self) -> None:
        """Check every field at the door."""
        if self.grain not in GRAINS:
            raise ArgumentError(f"grain {self.grain!r}: accepted are {' and '.join(GRAINS)}")
        if self.linear not in LINEAR_MODES:
            raise ArgumentError(
                f"linear {self.linear!r}: accepted are {' and '.join(LINEAR_MODES)}"
            )
        for name, value in (
            ("batch size", self.batch_size),
            ("bytes per element", self.bytes_per_element),
        ):
            if value is not None and not 1 <= value <= LARGEST_FACTOR:
                raise ArgumentError(f"{name} {value}: accepted is 1 to {LARGEST_FACTOR}")

    def has_vertices(self, layer: Layer) -> bool:
        """Whether a layer's tasks are vertices."""
        if layer.kind == INPUT:
            return self.input_vertex
        return layer.kind != OUTPUT or self.output_vertex

    def is_solid(self, layer: Layer) -> bool:
        """Whether a layer is one vertex whatever its tasks (thesis: fully connected layers)."""
        return layer.tasks == 1 or (layer.kind == LINEAR and self.linear == "layer")

    def split_read(self, layer: Layer) -> Read | None:
        """The read whose channels split each task, fine-grain; None where tasks stay whole."""
        if self.grain == "coarse" or (layer.kind == LINEAR and self.linear == "layer"):
            return None
        for read in layer.reads:
            if read.partial and len(read.channels) > read.groups:
                return read
        return None


@dataclass(frozen=True)
class Blocks:
    """A division of every layer's tasks (rows) and input channels (columns) into blocks.

    Attributes
    ----------
    rows : tuple of int64 arrays
        Per layer the first task of each block, and the number of tasks last.
    columns : tuple of int64 arrays
        Per layer the first position of each block in the read that splits its tasks, and the
        number of positions last; ``[0, 1]`` where tasks are not split.
    """

    rows: tuple[Int64, ...]
    columns: tuple[Int64, ...]


def full_vertices(graph: ChannelGraph, modelling: Modelling) -> int:
    """Number of vertices of the full hypergraph: those of the `single_blocks`."""
    return sum(
        layer_vertices(layer, modelling)
        for at, layer in enumerate(graph.layers)
        if modelling.has_vertices(layer) and layer.tied_to == at
    )


def layer_vertices(layer: Layer, modelling: Modelling) -> int:
    """Number of a layer's vertices in the full hypergraph."""
    read = modelling.split_read(layer)
    if read is not None:
        return layer.tasks * (len(read.channels) // read.groups + 1)
    return 1 if modelling.is_solid(layer) else layer.tasks


def single_blocks(graph: ChannelGraph, modelling: Modelling) -> Blocks:
    """Put every task, and fine-grain every channel of it, in a block of its own.

    Raises
    ------
    ArgumentError
        If the full hypergraph that these blocks make would take too much memory.
    """
    if (pins := _full_pins(graph, modelling)) > LARGEST_FULL:
        raise ArgumentError(
            f"the full {modelling.grain}-grain hypergraph has {pins} pins: accepted are up to "
            f"{LARGEST_FULL} (partitioning it works, with blocks of equal tasks)"
        )
    rows, columns = [], []
    for layer in graph.layers:
        read = modelling.split_read(layer)
        rows.append(
            np.array([0, layer.tasks]) if modelling.is_solid(layer) else _every(layer.tasks)
        )
        columns.append(_every(1 if read is None else len(read.channels)))
    return Blocks(tuple(rows), tuple(columns))


def _full_pins(graph: ChannelGraph, modelling: Modelling) -> int:
    pins = 0
    for layer in graph.layers:
        if modelling.has_vertices(layer):
            tasks = 1 if modelling.is_solid(layer) else layer.tasks
            pins += sum(len(read.channels) // read.groups * tasks for read in layer.reads)
            pins += layer_vertices(layer, modelling)
    return pins


def layer_blocks(graph: ChannelGraph, modelling: Modelling) -> Blocks:
    """Every layer in one block."""
    return Blocks(
        tuple(np.array([0, layer.tasks]) for layer in graph.layers),
        tuple(
            np.array(
                [0, 1 if (read := modelling.split_read(layer)) is None else len(read.channels)]
            )
            for layer in graph.layers
        ),
    )


def divide(graph: ChannelGraph, work: Work, modelling: Modelling, blocks: int) -> Blocks:
    """Divide layers into about `blocks` blocks of equal work, at least one a layer.

    Block counts are powers of two, so that the columns of a layer line up with the rows of the
    one it reads; fine-grain tasks become grids of about twice as many rows as columns. Linked
    layers (`linked_layers`) have the same rows, tied ones the same columns too; other layers whose
    task j reads one channel (a batch norm over a concatenation) are cut where the layers that they
    read are cut.
    """
    loads = work.per_task * np.array([layer.tasks for layer in graph.layers])
    total = max(1, int(loads.sum()))
    linked = linked_layers(graph)
    grids = [
        _grid(layer, modelling, blocks * load / total)
        for layer, load in zip(graph.layers, loads.tolist(), strict=True)
    ]
    rows: list[Int64] = []
    columns: list[Int64] = []
    for at, layer in enumerate(graph.layers):
        members = np.flatnonzero(linked == linked[at]).tolist()
        split = [member for member in members if not modelling.is_solid(graph.layers[member])]
        if at not in split:
            rows.append(np.array([0, layer.tasks]))
        elif len(members) == 1 and (cuts := _inherited_cuts(graph, layer, rows)) is not None:
            rows.append(cuts)
        else:
            rows.append(_even(layer.tasks, max(grids[member][0] for member in split)))
        read = modelling.split_read(layer)
        tied = [member for member in members if graph.layers[member].tied_to == layer.tied_to]
        count = max(grids[member][1] for member in tied)
        columns.append(_every(1) if read is None else _even(len(read.channels), count))
    return Blocks(tuple(rows), tuple(columns))


def _grid(layer: Layer, modelling: Modelling, blocks: float) -> tuple[int, int]:
    """Rows and columns of a layer that is to have a number of blocks."""
    read = modelling.split_read(layer)
    if read is None:
        return _power_of_two(blocks), 1
    rows = min(layer.tasks, _power_of_two(math.sqrt(2 * blocks)))
    return rows, _power_of_two(blocks / rows) * read.groups


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


def halve(blocks: Blocks, graph: ChannelGraph, modelling: Modelling) -> Blocks:
    """Cut every block in two, rows and columns, down to single tasks and channels."""

    def halves(cuts: Int64) -> Int64:
        return np.unique(np.concatenate([cuts, (cuts[1:] + cuts[:-1]) // 2]))

    return Blocks(
        tuple(
            cuts if modelling.is_solid(layer) else halves(cuts)
            for cuts, layer in zip(blocks.rows, graph.layers, strict=True)
        ),
        tuple(
            cuts if modelling.split_read(layer) is None else halves(cuts)
            for cuts, layer in zip(blocks.columns, graph.layers, strict=True)
        ),
    )


def linked_layers(graph: ChannelGraph) -> Int64:
    """Per layer the first layer that it shares its division with.

    Layers that are tied by a weight, or whose task j reads channel j of the other (residual add,
    depthwise), are divided alike, so that what belongs together can stay together.
    """
    first = list(range(len(graph.layers)))

    def root(at: int) -> int:
        while first[at] != at:
            at = first[at]
        return at

    def link(one: int, other: int) -> None:
        low, high = sorted((root(one), root(other)))
        first[high] = low

    for at, layer in enumerate(graph.layers):
        link(at, layer.tied_to)
        for read in layer.reads:
            source = _same_index_source(graph, layer, read)
            if source is not None:
                link(at, source)
    return np.array([root(at) for at in range(len(graph.layers))], dtype=np.int64)


def _same_index_source(graph: ChannelGraph, layer: Layer, read: Read) -> int | None:
    """The layer whose channel j is read by task j, for all its channels."""
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
