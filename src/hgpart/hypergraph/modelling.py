"""ChannelGraph + Modelling -> LayerVertices: which tasks and channels of a layer are vertices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError, check_whole, not_one_of
from hgpart.layers.channel_graph import (
    INPUT,
    LINEAR,
    OUTPUT,
    ChannelGraph,
    Layer,
    Read,
    RowSum,
)
from hgpart.sequences import distinct_pairs

GRAINS = ("coarse", "fine")
LINEAR_MODES = ("neuron", "layer")
NORMS = ("slice", "batch")

LARGEST_FACTOR = 2**20  # for samples in a batch and for bytes in an element
LARGEST_SLICES = LARGEST_BANDS = 2**10


@dataclass(frozen=True)
class Modelling:
    """How a ChannelGraph becomes a hypergraph.

    Attributes
    ----------
    grain : str
        "coarse", a vertex per filter (thesis 3.4), or "fine", a vertex per filter channel and
        one per reduction (thesis 3.3). Of either, a norm over channels has a vertex for its
        statistic, to which each part sends that of the channels that it normalises.
    linear : str
        "neuron", a vertex per output feature of a linear layer, or "layer", one for all of
        them, as in the thesis.
    batch_size : int
        Number of samples whose maps are sent together.
    bytes_per_element : int or None
        Size of an element of maps and parameters; None for the sizes of their own dtypes.
    input_vertex, output_vertex : bool
        Whether the model's inputs and its result have a vertex.
    slices : int
        Number of slices of the batch, as even as possible. Every task then has a vertex for each
        slice, and the slices of a filter share a net for its parameters, whose gradients are sent
        and summed. Parameters that many tasks read are one net of all these, in all slices. A model
        that mixes samples by anything but batch norms, such as a mean over the batch, has one
        slice.
    training : bool
        Whether parameters have gradients; if not, they cost nothing.
    norms : str
        Samples from which batch norms in training take their statistics: "slice", each slice its
        own, as in torch's DDP (slices with the same parts count as one), or "batch", all slices,
        which then send statistics to each other.
    bands : int
        Number of bands of rows that each layer's maps are divided into, as even as possible. A
        layer with fewer rows has a band for each; one that needs all rows has one band, but a sum
        over rows has cells: one for each band, whose partial sum it adds up. Every task then has a
        vertex for each band (and slice): a tile. What each of its rows reads is that of
        `LayerRows`, so that a band receives the rows of its windows and no others. The tiles of a
        filter share its parameters as slices do. Norms in training take their statistics of all
        rows, always. Fine-grain, tasks are not split into channels if they are sums over rows, or
        if two bands need the same row of their partial sums, as where pooling windows overlap.
    """

    grain: str = "coarse"
    linear: str = "neuron"
    batch_size: int = 32
    bytes_per_element: int | None = None
    input_vertex: bool = True
    output_vertex: bool = True
    slices: int = 1
    training: bool = True
    norms: str = "slice"
    bands: int = 1

    def __post_init__(self) -> None:
        """Raise an ArgumentError if a field is not accepted."""
        if self.grain not in GRAINS:
            raise not_one_of("grain", self.grain, GRAINS)
        if self.linear not in LINEAR_MODES:
            raise not_one_of("linear", self.linear, LINEAR_MODES)
        if self.norms not in NORMS:
            raise not_one_of("norms", self.norms, NORMS)
        check_whole("batch size", self.batch_size, 1, LARGEST_FACTOR)
        if self.bytes_per_element is not None:
            check_whole("bytes per element", self.bytes_per_element, 1, LARGEST_FACTOR)
        most = min(self.batch_size, LARGEST_SLICES)
        if type(self.slices) is not int or not 1 <= self.slices <= most:
            raise ArgumentError(
                f"slices {self.slices}: accepted is a whole number from 1 to {most}, for a batch "
                f"of {self.batch_size}"
            )
        check_whole("bands", self.bands, 1, LARGEST_BANDS)

    @property
    def can_run(self) -> bool:
        """Whether plans are placed: fine-grain ones over bands are only made and evaluated."""
        return self.grain == "coarse" or self.bands == 1

    @property
    def samples(self) -> tuple[int, ...]:
        """Samples of each slice.

        >>> Modelling(batch_size=8, slices=3).samples
        (2, 3, 3)
        """
        cuts = [at * self.batch_size // self.slices for at in range(self.slices + 1)]
        return tuple(last - first for first, last in pairwise(cuts))

    @property
    def slice_work(self) -> tuple[int, ...]:
        """Work of each slice, in proportion to its samples, in the smallest whole numbers.

        >>> Modelling(batch_size=8, slices=3).slice_work, Modelling(batch_size=8).slice_work
        ((2, 3, 3), (1,))
        """
        unit = math.gcd(*self.samples)
        return tuple(samples // unit for samples in self.samples)

    def of_samples(self, samples: int) -> Modelling:
        """The modelling of one slice of `samples` samples, as if it were the whole batch."""
        return replace(self, batch_size=samples, slices=1)

    def views(self, graph: ChannelGraph) -> tuple[LayerVertices, ...]:
        """The vertices of each layer."""
        return tuple(self._view(graph, at) for at in range(len(graph.layers)))

    def _view(self, graph: ChannelGraph, at: int) -> LayerVertices:
        layer, total = graph.layers[at], self._total(graph, at)
        split = None if total is not None else self.split_read(layer)
        partial_elements = layer.partial_elements if total is None else total.elements
        height = None if self.bands == 1 else graph.layer_rows[at].height
        # Layers that share weights share vertices, whose heights may differ.
        row_cuts = self._cuts(height or 1, 1 if _is_tied(graph, at) else self.bands)
        partial_rows: tuple[int, tuple[int, ...]] = (1, (1,))
        if split is not None and len(row_cuts) > 2:
            of_head = _rows_of_head(graph, at, row_cuts)
            split, partial_rows = (None, partial_rows) if of_head is None else (split, of_head)
        return LayerVertices(
            at=at,
            layer=layer,
            exists=self.has_vertices(layer),
            is_solid=self.is_solid(layer),
            split=split,
            statistic=self._statistic(graph, at),
            total=total,
            map_elements=graph.map_bytes(layer, self.batch_size, 1),
            partial_elements=partial_elements * self.batch_size,
            partial_rows=partial_rows,
            element_bytes=self.bytes_per_element or layer.bytes_per_element,
            parameters=self._parameters(layer),
            weight_bytes=self.bytes_per_element
            or (layer.weight.element_bytes if layer.weight else 0),
            row_cuts=row_cuts,
            cell_cuts=row_cuts if total is None else self._cuts(total.height, self.bands),
        )

    def _cuts(self, height: int, bands: int) -> tuple[int, ...]:
        """The first row of each band, and then the number of rows."""
        count = min(bands, height)
        return tuple(band * height // count for band in range(count + 1))

    def _total(self, graph: ChannelGraph, at: int) -> RowSum | None:
        """The sum over rows that a layer's tasks are, if partial sums of its bands travel."""
        if self.bands == 1 or _is_tied(graph, at):
            return None
        total = graph.layer_rows[at].total
        of_samples = graph.layers[at].fixed_elements == 0
        return total if total is not None and total.ends and of_samples else None

    def _statistic(self, graph: ChannelGraph, at: int) -> Statistic | None:
        """The statistics that a layer's tasks are, if parts send those of some channels each.

        They send maps where rows are divided, and of an input.
        """
        layer = graph.layers[at]
        read = next((read for read in layer.reads if read.is_statistic), None)
        if read is None or self.bands > 1:
            return None
        if any(graph.layers[source].kind == INPUT for source in graph.sources(layer)):
            return None
        first, last = graph.first_channel[at : at + 2]
        for reader in range(at + 1, len(graph.layers)):
            reads = graph.layers[reader].reads
            if any(((own.channels >= first) & (own.channels < last)).any() for own in reads):
                if any(np.array_equal(own.channels, read.channels) for own in reads):
                    tasks = np.arange(graph.layers[reader].tasks)
                    if len(tasks) == len(read.channels):
                        return Statistic(read, graph.first_task[reader] + tasks)
                break
        return Statistic(read, graph.task_of_channel[read.channels])

    def _parameters(self, layer: Layer) -> tuple[tuple[int, int], ...]:
        """Numbers of a layer's parameter elements, each with their size; tasks share the sum."""
        elements: dict[int, int] = {}
        for parameter in layer.own_parameters:
            size = self.bytes_per_element or parameter.element_bytes
            elements[size] = elements.get(size, 0) + parameter.elements
        return tuple((count, size) for size, count in elements.items())

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


@dataclass(frozen=True, eq=False)
class Statistic:
    """Statistics of channels, of which each part takes some.

    Attributes
    ----------
    read : Read
        The channels.
    takers : int64 array, shape (channels,)
        Number of the task, of all layers, in whose part each channel counts: the task that the
        statistic is for, which reads this channel, or else the one that makes it.
    """

    read: Read
    takers: Int64

    def of_group(self, group: int) -> Int64:
        """Tasks in whose parts the channels of a group count."""
        takers: Int64 = self.takers.reshape(self.read.groups, -1)[group]
        return takers


@dataclass(frozen=True, eq=False)
class LayerVertices:
    """The vertices of a layer.

    In the full hypergraph they are rows: each row is a task (or all tasks of a solid layer), and
    fine-grain has columns as well: the channels that split a task.

    Attributes
    ----------
    at : int
        The layer's index.
    exists : bool
        Whether the layer has vertices.
    is_solid : bool
        Whether all its tasks are one row.
    split : Read or None
        The read whose channels split each task; None where tasks stay whole.
    statistic : Statistic or None
        The statistics that its tasks are, if each part sends one of some channels; None if it sends
        maps.
    total : RowSum or None
        The sum over rows that each task is, if it has a cell for each band and a vertex that adds
        up their partial sums.
    map_elements, partial_elements : int
        Elements of a task's map, and of one of its partial sums, for a batch.
    partial_rows : tuple of int and tuple of int
        Number of rows of a partial sum, and those of each band.
    element_bytes : int
        Bytes of an element of its maps.
    parameters : tuple of pairs of int
        Numbers of elements of its own parameters, each with their size in bytes.
    weight_bytes : int
        Bytes of an element of the weight that multiplies the channels it reads.
    row_cuts : tuple of int
        The first row of each band of its maps, and then their number of rows; maps without rows
        have one.
    cell_cuts : tuple of int
        The same of the rows that it computes: those of its maps, or those that it sums.
    """

    at: int
    layer: Layer
    exists: bool
    is_solid: bool
    split: Read | None
    statistic: Statistic | None
    total: RowSum | None
    map_elements: int
    partial_elements: int
    partial_rows: tuple[int, tuple[int, ...]]
    element_bytes: int
    parameters: tuple[tuple[int, int], ...]
    weight_bytes: int
    row_cuts: tuple[int, ...]
    cell_cuts: tuple[int, ...]

    @property
    def bands(self) -> int:
        """Number of bands of the rows that it computes."""
        return len(self.cell_cuts) - 1

    @property
    def height(self) -> int:
        """Number of rows of its maps; 1 if they have none."""
        return self.row_cuts[-1]

    @property
    def read_as_statistic(self) -> Read | None:
        """The read of channels of which statistics are sent, not maps."""
        return None if self.statistic is None else self.statistic.read

    @property
    def has_cells(self) -> bool:
        """Whether tasks are divided into cells, and a vertex that adds up their partial sums."""
        return self.split is not None or self.total is not None

    def in_band(self, amount: int, band: int) -> int:
        """The share of a whole amount that the rows of a band have; 0 without the band."""
        above, below = (self.cell_cuts[min(cut, self.bands)] for cut in (band, band + 1))
        return amount * below // self.cell_cuts[-1] - amount * above // self.cell_cuts[-1]

    @property
    def first(self) -> int:
        """Index of the layer whose vertices these are: the first that shares a weight with it."""
        return self.layer.tied_to

    @property
    def is_first(self) -> bool:
        """Whether the vertices are not those of an earlier layer."""
        return self.first == self.at

    @property
    def is_own(self) -> bool:
        """Whether there are vertices, and they are not those of an earlier layer."""
        return self.exists and self.is_first

    @property
    def rows(self) -> int:
        """Rows of the full hypergraph."""
        return 1 if self.is_solid else self.layer.tasks

    @property
    def tasks_per_row(self) -> int:
        """Number of tasks in a row of the full hypergraph."""
        return self.layer.tasks if self.is_solid else 1

    @property
    def columns(self) -> int:
        """Number of channels that split the tasks, in all groups; 1 if tasks are not split."""
        return 1 if self.split is None else len(self.split.channels)

    @property
    def columns_per_task(self) -> int:
        """Number of channels that split a task; 1 if it is not split."""
        return 1 if self.split is None else self.columns // self.split.groups

    @property
    def count(self) -> int:
        """Number of vertices of the full hypergraph in a band: cells, and what adds them up."""
        return self.rows * (self.columns_per_task + 1) if self.has_cells else self.rows

    @property
    def vertex_bands(self) -> Int64:
        """Number of bands of each of these vertices: of cells, then of what adds them up."""
        bands = [self.bands] * (self.count - self.rows) + [len(self.row_cuts) - 1] * self.rows
        return np.array(bands, dtype=np.int64)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all its own parameters."""
        return sum(count * size for count, size in self.parameters)

    @property
    def map_bytes(self) -> int:
        """Bytes of a task's map, for a batch; for a parameter, whatever the batch."""
        return self.map_elements * self.element_bytes

    @property
    def partial_bytes(self) -> int:
        """Bytes of a partial sum of a task, for a batch."""
        return self.partial_elements * self.element_bytes

    def partial_bytes_in_band(self, band: int) -> int:
        """Bytes of the rows of a band of it; none where there is no such band."""
        height, of_bands = self.partial_rows
        return self.partial_bytes // height * of_bands[band] if band < len(of_bands) else 0


def _is_tied(graph: ChannelGraph, at: int) -> bool:
    """Whether a layer shares its vertices with another one."""
    return graph.layers[at].tied_to != at or at in graph.tied_layers


def _rows_of_head(
    graph: ChannelGraph, at: int, row_cuts: tuple[int, ...]
) -> tuple[int, tuple[int, ...]] | None:
    """Rows of what a layer's head computes, and those that each band needs; None if some share any.

    None, too, if another of the layer's operators reads what its head does: cells would be sent
    rows for that.
    """
    head, reads = graph.layer_rows[at].head, graph.layers[at].reads
    sources = [
        source
        for read in reads
        for source in np.unique(graph.layer_of_channel(read.channels[read.channels >= 0])).tolist()
    ]
    if head is None or len(set(sources)) < len(sources):
        return None
    bands = np.searchsorted(row_cuts, head.reads.owners, "right") - 1
    band, rows = distinct_pairs(bands, head.reads.values)
    if len(np.unique(rows)) < len(rows):
        return None
    return head.height, tuple(np.bincount(band, minlength=len(row_cuts) - 1).tolist())


def by_vertices(views: Sequence[LayerVertices]) -> dict[int, list[LayerVertices]]:
    """The layers that have vertices, grouped by shared vertices; keys are the first layers."""
    groups: dict[int, list[LayerVertices]] = {}
    for view in views:
        if view.exists:
            groups.setdefault(view.first, []).append(view)
    return groups
