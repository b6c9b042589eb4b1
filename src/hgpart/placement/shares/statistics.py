"""Norms over several tiles -> SharedStatistics: the statistics that parts send each other.

The statistics of a channel belong to the part that has it in the first tile: the first band of the
first share of the batch. The other parts send it the mean and variance of their samples and rows;
it sends back those of all.
Backward, gradients of both go in the opposite directions.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from torch import fx

from hgpart.arrays import Bool, Int64
from hgpart.errors import PlacementError
from hgpart.execution.batch_norms import combined, update_running
from hgpart.execution.program import Share, Transfer, TransferredTensor
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.operators.calls import argument, module_of
from hgpart.operators.table import operator_of
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.layouts import ChannelLayout
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.replacements import first_version
from hgpart.placement.cutting.step_graph import Box
from hgpart.placement.cutting.steps import Step, finished_step
from hgpart.placement.shares.ownership import Ownership
from hgpart.tracing.batches import elements_of_shape, shape_said
from hgpart.tracing.traced_nodes import first_result


@dataclass(frozen=True, eq=False)
class NormOfBatch:
    """A norm with statistics over all shares of the batch.

    Attributes
    ----------
    layer : int
        Index of its layer.
    number : int
        Its number among the layer's norms.
    node : fx.Node
        Node of the traced graph.
    layout : ChannelLayout
        Layout of its result.
    row_cuts : tuple of int
        The first row of its result for each band of the layer, and then its number of rows: each
        row counts in one band. 0 and 1 if the layer is in one band.
    values : int
        Values per channel, sample and row.
    """

    layer: int
    number: int
    node: fx.Node
    layout: ChannelLayout
    row_cuts: tuple[int, ...]
    values: int

    @property
    def operand(self) -> fx.Node:
        """The value that it normalises."""
        value = argument(self.node, "input")
        assert isinstance(value, fx.Node)
        return value

    def positions(self, tasks: Int64) -> Int64:
        """The norm's channels that belong to some tasks of the layer, ascending."""
        if not self.layout.axes:
            return np.arange(self.layout.shape[1])
        return self.layout.positions(tasks)

    def box(self, tasks: Int64, rows: Box) -> Box:
        """Box of the norm's result, and of its operand, for some tasks and rows."""
        return {1: self.positions(tasks), **rows} if self.layout.axes else rows


def norms_of_batch(
    facts: NodeFacts, row_cuts: Mapping[int, Sequence[int]]
) -> dict[int, tuple[NormOfBatch, ...]]:
    """Norms that take a mean and variance over the batch, in order, for each layer with some.

    Parameters
    ----------
    row_cuts : mapping of int to sequence of int
        Layers in tiles: the first row of each band, and then the number of rows.

    Raises
    ------
    PlacementError
        If the statistics of a norm can't be combined, channel by channel, from those of some
        samples or rows.
    """
    nodes = {node.name: node for node in facts.traced.graph_module.graph.nodes}
    by_layer: dict[int, tuple[NormOfBatch, ...]] = {}
    for at, cuts in row_cuts.items():
        operators = facts.graph.layers[at].operators
        norms = [nodes[name] for name in operators if _is_of_batch(nodes[name])]
        if norms:
            by_layer[at] = tuple(_norm(facts, at, cuts, *pair) for pair in enumerate(norms))
    return by_layer


def _is_of_batch(node: fx.Node) -> bool:
    """Whether a node counts in `Layer.batch_statistics`."""
    if not (operator_of(node).is_batch_norm and argument(node, "training", True)):
        return False
    shape = first_result(node).meta["val"].shape
    grows = elements_of_shape(shape)
    return isinstance(shape[1], int) and (grows is None or grows[0] > 0)


def _norm(
    facts: NodeFacts, at: int, cuts: Sequence[int], number: int, node: fx.Node
) -> NormOfBatch:
    value, layer = first_result(node).meta["val"], facts.graph.layers[at]
    layout, grows = facts.layout(at, first_result(node)), elements_of_shape(value.shape)
    named = f"{module_of(node) or node.name} in {layer.name}"
    if grows is None or grows[1]:
        raise PlacementError(
            f"{named} normalises maps of {shape_said(value.shape)}: accepted in norms over slices "
            "or bands are maps that grow with the samples alone"
        )
    if layout.axes not in ((), (1,)) or layout.merged:
        raise PlacementError(
            f"{named} normalises maps whose channels lie along dimensions {layout.axes}: accepted "
            "in norms over slices or bands is dimension 1"
        )
    if value.element_size() < 4:  # too few bits to combine statistics
        raise PlacementError(
            f"{named} normalises {value.dtype}: accepted in norms over slices or bands are "
            "float32 and float64"
        )
    if value.element_size() != layer.bytes_per_element:
        raise PlacementError(
            f"{named} normalises {value.dtype}, and the layer makes elements of "
            f"{layer.bytes_per_element} bytes: accepted in norms over slices or bands is one size"
        )
    row_cuts = _cuts_of_norm(facts, at, cuts, node, named) if len(cuts) > 2 else (0, 1)
    values = grows[0] // (int(value.shape[1]) * row_cuts[-1])
    return NormOfBatch(at, number, node, layout, row_cuts, values)


def _cuts_of_norm(
    facts: NodeFacts, at: int, cuts: Sequence[int], node: fx.Node, named: str
) -> tuple[int, ...]:
    """The first row of a norm for each band of its layer: the first that its rows read.

    Raises
    ------
    PlacementError
        If a part would not have all that a row is computed from which none of the layer's rows
        reads: that row counts in the statistics all the same.
    """
    inside = facts.rows_inside
    read, of_norm = inside.read_by_results(at, node), inside.read_of_sources(at, node)
    firsts = np.full(len(cuts) - 1, read.height)
    np.minimum.at(firsts, np.searchsorted(cuts, read.reads.owners, "right") - 1, read.reads.values)
    firsts[0] = 0
    ends = (*np.minimum.accumulate(firsts[::-1])[::-1].tolist(), read.height)
    of_layer = dict[int, Bool]()
    for rows in facts.graph.layer_rows[at].reads:
        table = rows.windows.table
        of_layer[rows.source] = of_layer.get(rows.source, np.zeros_like(table)) | table
    for band, (first, last) in enumerate(pairwise(ends)):
        for rows in of_norm:
            needed = np.any(rows.windows.table[first:last], axis=0, keepdims=True)
            there = of_layer.get(rows.source, np.zeros_like(needed))[cuts[band] : cuts[band + 1]]
            if (needed & ~np.any(there, axis=0, keepdims=True)).any():
                raise PlacementError(
                    f"{named} takes statistics of rows that the layer's results do not need, and "
                    f"of which band {band} has not all that they are computed from: accepted in "
                    "bands are norms all of whose rows are needed, or a plan without bands"
                )
    return ends


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics that one part sends to another.

    Attributes
    ----------
    whole : bool
        Whether they are those of the batch, not only of the sender's samples.
    tasks : int64 array
        Tasks whose channels they are for, ascending.
    """

    norm: NormOfBatch
    whole: bool
    sender: int
    receiver: int
    tasks: Int64
    transfer: Transfer


@dataclass(frozen=True, eq=False)
class SharedStatistics:
    """The statistics of norms over some shares of the batch that parts send each other.

    Attributes
    ----------
    norms : mapping of int to tuple of NormOfBatch
        Norms of each layer with tiles whose statistics are combined.
    owners : sequence of Ownership
        The part that computes each task, for each of the shares.
    share : Share
        The slices of all these shares.
    learns : sequence of bool
        Whether gradients go back through each layer.
    names : sequence of str
        Names of the layers in parts.
    first_transfer : int
        Number of the first transfer of statistics.
    """

    norms: Mapping[int, tuple[NormOfBatch, ...]]
    graph: ChannelGraph
    owners: Sequence[Ownership]
    share: Share
    learns: Sequence[bool]
    names: Sequence[str]
    first_transfer: int

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedStatistics:
        """The same object, as for a Blueprint."""
        return self

    def finish(self, at: int) -> Int64:
        """The part of each task of a layer in each tile, shape (tiles, tasks): share by share."""
        by_share = (owners.finish[at] for owners in self.owners)
        return np.concatenate([finish for finish in by_share if finish is not None])

    def name(self, norm: NormOfBatch, whole: bool, beside: str = "") -> str:
        """Name of the statistics of the batch, or of some samples."""
        stem = "statistics" if whole else "before"
        return f"{self.names[norm.layer]}_{stem}_{norm.number}{beside}"

    def owned(self, at: int, part: int) -> Int64:
        """Tasks of a layer whose statistics belong to a part."""
        return np.flatnonzero(self.finish(at)[0] == part)

    @cached_property
    def travelling(self) -> tuple[Statistics, ...]:
        """All statistics that are sent, by norm: first to their owner, then back from there."""
        sent: list[Statistics] = []
        for norm in (norm for norms in self.norms.values() for norm in norms):
            finish = self.finish(norm.layer)
            parts = np.unique(finish).tolist()
            pairs = [(holder, owner) for holder in parts for owner in parts if holder != owner]
            for whole in (False, True):
                for holder, owner in pairs:
                    tasks = np.flatnonzero((finish == holder).any(axis=0) & (finish[0] == owner))
                    if len(tasks):
                        ends = (owner, holder) if whole else (holder, owner)
                        number = self.first_transfer + len(sent)
                        transfer = self._transfer(norm, number, *ends, tasks)
                        sent.append(Statistics(norm, whole, *ends, tasks, transfer))
        return tuple(sent)

    def _transfer(
        self, norm: NormOfBatch, number: int, sender: int, receiver: int, tasks: Int64
    ) -> Transfer:
        dtype = first_result(norm.node).meta["val"].dtype
        shape = 2, len(norm.positions(tasks))
        return Transfer(
            number=number,
            layer=self.graph.layers[norm.layer].name,
            partial=False,
            sender=sender,
            receiver=receiver,
            tensors=(TransferredTensor((0, 0), shape, dtype, self.share),),
            differentiable=self.learns[norm.layer],
        )

    def coming(self, norm: NormOfBatch, whole: bool, receiver: int) -> list[Statistics]:
        """Statistics of a norm that a part receives."""
        return [
            item
            for item in self.travelling
            if (item.norm, item.whole, item.receiver) == (norm, whole, receiver)
        ]

    def leaving(self, norm: NormOfBatch, whole: bool, sender: int) -> list[Statistics]:
        """Statistics of a norm that a part sends."""
        return [
            item
            for item in self.travelling
            if (item.norm, item.whole, item.sender) == (norm, whole, sender)
        ]


@dataclass(frozen=True, eq=False)
class SourceStatistics:
    """Statistics in a part that are to be combined with others.

    Attributes
    ----------
    tasks : int64 array
        Tasks whose channels they are for, ascending.
    tiles : bool array, shape (tiles, tasks of the layer)
        Whether they include a tile, for each task of the layer.
    """

    name: str
    tasks: Int64
    tiles: Bool


def combining_step(
    step: CutGraph,
    norm: NormOfBatch,
    sources: Sequence[SourceStatistics],
    samples: Sequence[str],
    updates: bool,
) -> Step:
    """Make the step that combines statistics for the channels of its tasks.

    Parameters
    ----------
    step : CutGraph
        A new step.
    samples : sequence of str
        Names of the number of samples of each share.
    updates : bool
        Whether the step updates the norm's running statistics.
    """
    channels = norm.positions(step.tasks)
    terms: list[fx.Node] = []
    places: list[fx.Node | None] = []
    members: list[Bool] = []
    for source in sources:
        here = np.isin(step.tasks, source.tasks)
        if here.any():
            have, some = norm.positions(source.tasks), norm.positions(step.tasks[here])
            term = step.placeholder(source.name)
            terms.append(step.take(term, 1, np.searchsorted(have, some), len(have)))
            every = len(some) == len(channels)
            places.append(None if every else step.index(np.searchsorted(channels, some)))
            members.append(source.tiles[:, step.tasks] & here)
    total = terms[0]
    rows = np.diff(norm.row_cuts).tolist()
    sizes = [step.placeholder(name) for name in samples]
    counts = [
        size if rows == [1] else step.call(operator.mul, size, count)
        for size in sizes
        for count in rows
    ]
    if len(terms) > 1:
        lines = np.stack(members).reshape(-1, len(step.tasks))
        kinds, of_task = np.unique(lines, axis=1, return_inverse=True)
        by_kind = kinds.reshape(len(terms), len(counts), -1).swapaxes(1, 2).astype(np.int64)
        of_channel = None
        if kinds.shape[1] > 1:
            tasks = np.searchsorted(step.tasks, norm.layout.channels[channels])
            of_channel = step.index(of_task.reshape(-1)[tasks])
        total = step.call(combined, terms, places, step.index(by_kind.ravel()), of_channel, counts)
    running = [argument(norm.node, name) for name in ("running_mean", "running_var")]
    if updates and isinstance(running[0], fx.Node):
        held = [step.value(first_version(buffer), {0: channels}) for buffer in running]
        momentum = argument(norm.node, "momentum")
        step.call(update_running, *held, total, counts, norm.values, momentum)
    return finished_step(step, [total])
