"""Norms of the whole batch -> SharedStatistics: the statistics that parts send each other.

The statistics of a channel belong to the part that has it in the first share of the batch. The
other parts send it the mean and variance of their samples; it sends back those of all samples.
Backward, gradients of both go in the opposite directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
from hgpart.placement.cutting.ownership import Ownership
from hgpart.placement.cutting.replacements import first_version
from hgpart.placement.cutting.step_graph import Box
from hgpart.placement.cutting.steps import Step, finished_step
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
    values : int
        Values per channel and sample.
    """

    layer: int
    number: int
    node: fx.Node
    layout: ChannelLayout
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

    def box(self, tasks: Int64) -> Box:
        """Box of the norm's result, and of its operand, for some tasks."""
        return {1: self.positions(tasks)} if self.layout.axes else {}


def norms_of_batch(facts: NodeFacts) -> dict[int, tuple[NormOfBatch, ...]]:
    """Norms that take a mean and variance over the batch, in order, for each layer with some.

    Raises
    ------
    PlacementError
        If the statistics of a norm can't be combined, channel by channel, from those of some
        samples.
    """
    nodes = {node.name: node for node in facts.traced.graph_module.graph.nodes}
    by_layer: dict[int, tuple[NormOfBatch, ...]] = {}
    for at, layer in enumerate(facts.graph.layers):
        norms = [nodes[name] for name in layer.operators if _is_of_batch(nodes[name])]
        if norms:
            by_layer[at] = tuple(_norm(facts, at, *pair) for pair in enumerate(norms))
    return by_layer


def _is_of_batch(node: fx.Node) -> bool:
    """Whether a node counts in `Layer.batch_statistics`."""
    if not (operator_of(node).is_batch_norm and argument(node, "training", True)):
        return False
    shape = first_result(node).meta["val"].shape
    grows = elements_of_shape(shape)
    return isinstance(shape[1], int) and (grows is None or grows[0] > 0)


def _norm(facts: NodeFacts, at: int, number: int, node: fx.Node) -> NormOfBatch:
    value, layer = first_result(node).meta["val"], facts.graph.layers[at]
    layout, grows = facts.layout(at, first_result(node)), elements_of_shape(value.shape)
    named = f"{module_of(node) or node.name} in {layer.name}"
    if grows is None or grows[1]:
        raise PlacementError(
            f"{named} normalises maps of {shape_said(value.shape)}: accepted in norms of the "
            "batch, which is in slices, are maps that grow with the samples alone"
        )
    if layout.axes not in ((), (1,)) or layout.merged:
        raise PlacementError(
            f"{named} normalises maps whose channels lie along dimensions {layout.axes}: accepted "
            "in norms of the batch, which is in slices, is dimension 1"
        )
    if value.element_size() < 4:  # too few bits to combine statistics
        raise PlacementError(
            f"{named} normalises {value.dtype}: accepted in norms of the batch, which is in "
            "slices, are float32 and float64"
        )
    if value.element_size() != layer.bytes_per_element:
        raise PlacementError(
            f"{named} normalises {value.dtype}, and the layer makes elements of "
            f"{layer.bytes_per_element} bytes: accepted in norms of the batch, which is in slices, "
            "is one size"
        )
    return NormOfBatch(at, number, node, layout, grows[0] // int(value.shape[1]))


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
    """The statistics of norms of the whole batch that parts send each other.

    Attributes
    ----------
    norms : mapping of int to tuple of NormOfBatch
        Norms of each layer; empty if the norms of each share are its own.
    owners : sequence of Ownership
        The part that computes each task, for each share of the batch.
    slices : int
        Slices of the batch.
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
    slices: int
    learns: Sequence[bool]
    names: Sequence[str]
    first_transfer: int

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedStatistics:
        """The same object, as for a Blueprint."""
        return self

    def finish(self, at: int) -> Int64:
        """The part of each task of a layer in each share, shape (shares, tasks)."""
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
        share = Share(tuple(range(self.slices)), self.slices)
        shape = 2, len(norm.positions(tasks))
        return Transfer(
            number=number,
            layer=self.graph.layers[norm.layer].name,
            partial=False,
            sender=sender,
            receiver=receiver,
            tensors=(TransferredTensor((0, 0), shape, dtype, share),),
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
    shares : bool array, shape (shares, tasks of the layer)
        Whether they include a share of the batch, for each task of the layer.
    """

    name: str
    tasks: Int64
    shares: Bool


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
        Names of the number of samples of each share of the batch.
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
            members.append(source.shares[:, step.tasks] & here)
    total = terms[0]
    counts = [step.placeholder(name) for name in samples]
    if len(terms) > 1:
        rows = np.stack(members).reshape(-1, len(step.tasks))
        kinds, of_task = np.unique(rows, axis=1, return_inverse=True)
        by_kind = kinds.reshape(len(terms), len(samples), -1).swapaxes(1, 2).astype(np.int64)
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
