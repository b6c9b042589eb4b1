"""ChannelGraph + work + Blocks -> CnnHypergraph, coarse-grain or fine-grain.

Pins are never listed per channel: the tasks that read a channel are runs of blocks, channels of a
block with the same readers share a net, and its cost is the sum of theirs. Nor are pins written
out before a partitioner or a file asks for them: metrics need only the sets of readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.channel_shares import row_shares
from hgpart.hypergraph.cnn_nets import map_nets, parameter_nets, statistics_nets
from hgpart.hypergraph.cnn_vertices import CnnVertices, Layout, band_by_band
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import Evaluation, evaluate
from hgpart.hypergraph.modelling import LayerVertices, Modelling
from hgpart.hypergraph.nets import Nets
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.work.figures import LARGEST_TOTAL, Work


@dataclass(frozen=True)
class CnnHypergraph(CnnVertices):
    """The hypergraph of a model, with its vertices (see `CnnVertices`)."""

    @cached_property
    def nets(self) -> Nets:
        """All nets, with their readers as sets."""
        return Nets.joined([self.map_nets, self.parameter_nets, self.statistics_nets])

    @cached_property
    def map_nets(self) -> Nets:
        """The nets of maps and partial sums."""
        return map_nets(self)

    @cached_property
    def parameter_nets(self) -> Nets:
        """The nets of parameters, each over the slices of a vertex."""
        return parameter_nets(self)

    @cached_property
    def statistics_nets(self) -> Nets:
        """The nets of norms with statistics of the batch, each over the slices of a vertex."""
        return statistics_nets(self)

    @cached_property
    def hypergraph(self) -> Hypergraph:
        """The vertices and the nets with all their pins, written out on first use."""
        return self.nets.written_out(self.weights)


def cnn_hypergraph(
    graph: ChannelGraph, work: Work, blocks: Blocks, modelling: Modelling
) -> CnnHypergraph:
    """Build the hypergraph of a model (thesis 3.3 and 3.4).

    With `single_blocks` it is the full hypergraph: a vertex per task (fine-grain: per channel of
    each task). With larger blocks it is exact for every partition that keeps blocks whole.

    Raises
    ------
    ArgumentError
        If `work` is not one number >= 0 per layer, the blocks belong to another graph, work or
        bytes exceed 64 bits, the batch is in slices and the model mixes samples, or there are bands
        and no map has so many rows.
    """
    check_work(graph, work, modelling)
    check_bytes(graph, modelling)
    check_slices(graph, modelling)
    check_bands(graph, modelling)
    return of_blocks(graph, work, blocks, modelling, modelling.views(graph))


def of_blocks(
    graph: ChannelGraph,
    work: Work,
    blocks: Blocks,
    modelling: Modelling,
    views: tuple[LayerVertices, ...],
) -> CnnHypergraph:
    """Build it like `cnn_hypergraph`, from work and views that were checked before."""
    _check(graph, blocks, modelling.grain, views)
    layouts, *tables = _lay_out(blocks, views)
    in_bands = band_by_band(_bands_of_vertices(views, tables[0], tables[2]))
    weights = np.concatenate(
        [
            _weights(_of_band(work, views, band), blocks, views, layouts, len(own))[own >= 0]
            for band, own in enumerate(in_bands)
        ]
    )
    owners, rows, columns = (table[np.nonzero(in_bands >= 0)[1]] for table in tables)
    if (count := len(owners) * modelling.slices) >= 2**31:
        raise ArgumentError(f"{count} vertices: accepted are fewer than 2^31 (use larger blocks)")
    slices = modelling.slices
    return CnnHypergraph(
        graph=graph,
        blocks=blocks,
        modelling=modelling,
        views=views,
        weights=np.outer(modelling.slice_work, weights).ravel(),
        vertex_layers=np.tile(owners, slices),
        vertex_rows=np.tile(rows, slices),
        vertex_columns=np.tile(columns, slices),
        layouts=layouts,
        in_bands=in_bands,
    )


def evaluate_parts(
    model: CnnHypergraph, parts: Int32, k: int, speeds: Sequence[float] | None = None
) -> Evaluation:
    """Compute all metrics of a partition as `evaluate` does, without writing out the pins.

    Parameters
    ----------
    parts : int32 array, shape (model.vertices,)
        Part of each vertex, 0 to k - 1.
    k, speeds
        See `evaluate`.

    Raises
    ------
    HypergraphError, ArgumentError
        For the reasons of `evaluate`.
    """
    between = model.nets.of_parts(model.weights, parts, k)
    return evaluate(between, np.arange(k, dtype=np.int32), k, speeds)


def check_work(graph: ChannelGraph, work: Work, modelling: Modelling) -> None:
    """Raise an ArgumentError if `work` is not one number >= 0 per layer, or its sum too large."""
    if len(work.per_task) != len(graph.layers) or (work.per_task < 0).any():
        raise ArgumentError(
            f"work of {len(work.per_task)} layers: accepted is one number >= 0 for each of "
            f"{len(graph.layers)} layers"
        )
    pairs = zip(work.per_task.tolist(), graph.layers, strict=True)
    total = sum(task_work * layer.tasks for task_work, layer in pairs) * sum(modelling.slice_work)
    if total > LARGEST_TOTAL:
        raise ArgumentError(f"work of {total} in all: accepted is up to {LARGEST_TOTAL}")


def check_slices(graph: ChannelGraph, modelling: Modelling) -> None:
    """Raise an ArgumentError for slices of a batch whose samples are not computed separately."""
    mixing = graph.mixing.of_norms(modelling.norms)
    if modelling.slices > 1 and mixing:
        raise ArgumentError(f"{modelling.slices} slices of the batch: {mixing}: accepted is 1")


def check_bands(graph: ChannelGraph, modelling: Modelling) -> None:
    """Raise an ArgumentError for more bands than any map has rows."""
    if modelling.bands == 1:
        return
    most = graph.most_rows
    if modelling.bands > most:
        why = "no layer has rows to divide" if most == 1 else f"the tallest maps have {most} rows"
        raise ArgumentError(
            f"{modelling.bands} bands: {why}: accepted is {'1' if most == 1 else f'1 to {most}'}"
        )


def check_bytes(graph: ChannelGraph, modelling: Modelling) -> None:
    """Raise an ArgumentError if the feature maps of a batch have too many bytes for 64 bits."""
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


def _check(
    graph: ChannelGraph, blocks: Blocks, grain: str, views: tuple[LayerVertices, ...]
) -> None:
    if len(blocks.rows) != len(views) or len(blocks.columns) != len(views):
        raise ArgumentError(
            f"blocks of {len(blocks.rows)} layers: accepted are those of {len(views)} layers"
        )
    for view, rows, columns in zip(views, blocks.rows, blocks.columns, strict=True):
        layer = view.layer
        if not _divides(rows, layer.tasks):
            raise ArgumentError(f"the blocks do not divide the {layer.tasks} tasks of {layer.name}")
        if view.is_solid and len(rows) > 2:
            raise ArgumentError(f"{layer.name} is one vertex: accepted is one block of all tasks")
        if not _divides(columns, view.columns):
            raise ArgumentError(
                f"the blocks do not divide the channels that a task of {layer.name} reads, "
                f"{grain}-grain"
            )
        same = np.array_equal(rows, blocks.rows[view.first])
        if not same or not np.array_equal(columns, blocks.columns[view.first]):
            raise ArgumentError(
                f"{layer.name} and {graph.layers[view.first].name} share a weight: accepted are "
                "blocks that are the same in both"
            )


def _divides(cuts: Int64, count: int) -> bool:
    return bool(cuts[0] == 0 and cuts[-1] == count and (np.diff(cuts) >= 1).all())


# ------------------------------------------------------------------ vertices


def _lay_out(
    blocks: Blocks, views: tuple[LayerVertices, ...]
) -> tuple[tuple[Layout | None, ...], Int32, Int32, Int32]:
    layouts: list[Layout | None] = []
    owners, rows, columns = [], [], []
    first = 0
    for at, view in enumerate(views):
        if not view.is_own:
            layouts.append(layouts[view.first] if view.exists else None)
            continue
        count = len(blocks.rows[at]) - 1
        spans = _column_spans(view, blocks)
        widths = spans[:, 1] - spans[:, 0] + view.has_cells
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


def _bands_of_vertices(views: tuple[LayerVertices, ...], owners: Int32, columns: Int32) -> Int64:
    """Number of bands of each vertex: of a cell those of its layer's rows, else of its maps."""
    cells = np.array([view.bands for view in views])
    others = np.array([len(view.row_cuts) - 1 for view in views])
    bands: Int64 = np.where(columns >= 0, cells[owners], others[owners])
    return bands


def _column_spans(view: LayerVertices, blocks: Blocks) -> Int64:
    """The first and last column block that each row block's tasks read."""
    rows, cuts = blocks.rows[view.at], blocks.columns[view.at]
    if view.split is None:
        return np.zeros((len(rows) - 1, 2), dtype=np.int64)
    tasks, groups, per_task = view.layer.tasks, view.split.groups, view.columns_per_task
    low = rows[:-1] * groups // tasks * per_task
    high = ((rows[1:] - 1) * groups // tasks + 1) * per_task - 1
    return np.stack(
        [np.searchsorted(cuts, low, "right") - 1, np.searchsorted(cuts, high, "right") - 1], axis=1
    )


def _of_band(work: Work, views: tuple[LayerVertices, ...], band: int) -> Int64:
    """The work of a task of each layer in a band, in proportion to its rows; 0 without the band."""
    pairs = zip(views, work.per_task.tolist(), strict=True)
    return np.array([view.in_band(per_task, band) for view, per_task in pairs], dtype=np.int64)


def _weights(
    per_task: Int64,
    blocks: Blocks,
    views: tuple[LayerVertices, ...],
    layouts: tuple[Layout | None, ...],
    vertices: int,
) -> Int64:
    weights = np.zeros(vertices, dtype=np.int64)
    for at, (view, layout) in enumerate(zip(views, layouts, strict=True)):
        if layout is None:
            continue
        sizes = np.diff(blocks.rows[at])
        finish = layout.finish + np.arange(len(sizes))
        totals = sizes * per_task[at]
        if view.total is not None:
            weights[layout.row_starts] += totals
            continue
        if view.split is not None:
            for row, cell_work in enumerate(row_shares(view, int(per_task[at]), blocks)):
                start = layout.row_starts[row]
                weights[start : start + len(cell_work)] += cell_work
                totals[row] -= cell_work.sum()
        weights[finish] += totals
    return weights
