"""Norms of the whole batch -> SharedStatistics: who sends whom the statistics of their channels.

The statistics of a channel belong to the part that has it in the first share of the batch. The
others send it the mean and the variance of the samples that they have; it sends back those of all
samples. Backward, gradients of both go the other ways.
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
from hgpart.execution.transfers import Share, Transfer, TransferredTensor
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
    """A norm whose statistics are of all shares of the batch.

    Attributes
    ----------
    layer : int
        Index of the layer that it is in.
    number : int
        Among the layer's.
    node : fx.Node
        Of the traced graph.
    layout : ChannelLayout
        Of what it makes.
    values : int
        Of a channel in each sample.
    """

    layer: int
    number: int
    node: fx.Node
    layout: ChannelLayout
    values: int

    @property
    def operand(self) -> fx.Node:
        """What it is given."""
        found = argument(self.node, "input")
        assert isinstance(found, fx.Node)
        return found

    def positions(self, tasks: Int64) -> Int64:
        """Which of the norm's channels are those of some tasks of the layer, ascending."""
        if not self.layout.axes:
            return np.arange(self.layout.shape[1])
        return self.layout.positions(tasks)

    def box(self, tasks: Int64) -> Box:
        """What the norm makes of some tasks, and what it needs for that."""
        return {1: self.positions(tasks)} if self.layout.axes else {}


def norms_of_batch(facts: NodeFacts) -> dict[int, tuple[NormOfBatch, ...]]:
    """Per layer that has some, the norms that take a mean and a variance over the batch, in order.

    Raises
    ------
    PlacementError
        If the statistics of one can't be put together of those of samples, channel by channel.
    """
    nodes = {node.name: node for node in facts.traced.graph_module.graph.nodes}
    found: dict[int, tuple[NormOfBatch, ...]] = {}
    for at, layer in enumerate(facts.graph.layers):
        norms = [nodes[name] for name in layer.operators if _is_of_batch(nodes[name])]
        if norms:
            found[at] = tuple(_norm(facts, at, *pair) for pair in enumerate(norms))
    return found


def _is_of_batch(node: fx.Node) -> bool:
    """Whether it counts among `Layer.batch_statistics`."""
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
    if value.element_size() < 4:  # too few bits for sums to be put together of
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
    norm : NormOfBatch
    whole : bool
        Whether they are of the batch, and not of the sender's samples.
    sender, receiver : int
    tasks : int64 array
        Of whose channels, ascending.
    transfer : Transfer
    """

    norm: NormOfBatch
    whole: bool
    sender: int
    receiver: int
    tasks: Int64
    transfer: Transfer


@dataclass(frozen=True, eq=False)
class SharedStatistics:
    """What parts send each other of the statistics of norms of the whole batch.

    Attributes
    ----------
    norms : mapping of int to tuple of NormOfBatch
        Per layer; none where the norms of each share are its own.
    graph : ChannelGraph
    owners : sequence of Ownership
        Who computes what in each share of the batch.
    slices : int
        Of the batch.
    learns : sequence of bool
        Per layer whether gradients go back through it.
    names : sequence of str
        What parts call each layer.
    first_transfer : int
    """

    norms: Mapping[int, tuple[NormOfBatch, ...]]
    graph: ChannelGraph
    owners: Sequence[Ownership]
    slices: int
    learns: Sequence[bool]
    names: Sequence[str]
    first_transfer: int

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedStatistics:
        """Itself, as a Blueprint."""
        return self

    def finish(self, at: int) -> Int64:
        """The part of each task of a layer in each share, shape (shares, tasks)."""
        return np.stack([found for one in self.owners if (found := one.finish[at]) is not None])

    def name(self, norm: NormOfBatch, whole: bool, beside: str = "") -> str:
        """What statistics of the batch, or else of some samples, are called."""
        stem = "statistics" if whole else "before"
        return f"{self.names[norm.layer]}_{stem}_{norm.number}{beside}"

    def owned(self, at: int, part: int) -> Int64:
        """The tasks of a layer whose statistics belong to a part."""
        return np.flatnonzero(self.finish(at)[0] == part)

    @cached_property
    def travelling(self) -> tuple[Statistics, ...]:
        """All that travels, by norm, to whom it belongs and then back from there."""
        found: list[Statistics] = []
        for norm in (norm for norms in self.norms.values() for norm in norms):
            finish = self.finish(norm.layer)
            parts = np.unique(finish).tolist()
            ways = [(holder, owner) for holder in parts for owner in parts if holder != owner]
            for whole in (False, True):
                for holder, owner in ways:
                    tasks = np.flatnonzero((finish == holder).any(axis=0) & (finish[0] == owner))
                    if len(tasks):
                        way = (owner, holder) if whole else (holder, owner)
                        number = self.first_transfer + len(found)
                        transfer = self._transfer(norm, number, *way, tasks)
                        found.append(Statistics(norm, whole, *way, tasks, transfer))
        return tuple(found)

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
        """What a part is sent of a norm."""
        return [
            one
            for one in self.travelling
            if (one.norm, one.whole, one.receiver) == (norm, whole, receiver)
        ]

    def leaving(self, norm: NormOfBatch, whole: bool, sender: int) -> list[Statistics]:
        """What a part sends of a norm."""
        return [
            one
            for one in self.travelling
            if (one.norm, one.whole, one.sender) == (norm, whole, sender)
        ]


@dataclass(frozen=True, eq=False)
class Taken:
    """Statistics that a part has, to be combined with others.

    Attributes
    ----------
    name : str
    tasks : int64 array
        Of whose channels, ascending.
    shares : bool array, shape (shares, tasks of the layer)
        Of which shares of the batch they are.
    """

    name: str
    tasks: Int64
    shares: Bool


def combining_step(
    step: CutGraph,
    norm: NormOfBatch,
    taken: Sequence[Taken],
    samples: Sequence[str],
    updates: bool,
) -> Step:
    """Make the statistics of the channels of a step's tasks, of those of some samples each.

    Parameters
    ----------
    step : CutGraph
        Just begun.
    norm : NormOfBatch
    taken : sequence of Taken
    samples : sequence of str
        What the number of samples of each share of the batch is called.
    updates : bool
        Whether the norm's running statistics are updated by them.
    """
    channels = norm.positions(step.tasks)
    terms: list[fx.Node] = []
    places: list[fx.Node | None] = []
    members: list[Bool] = []
    for source in taken:
        here = np.isin(step.tasks, source.tasks)
        if here.any():
            have, some = norm.positions(source.tasks), norm.positions(step.tasks[here])
            term = step.placeholder(source.name)
            terms.append(step.take(term, 1, np.searchsorted(have, some), len(have)))
            every = len(some) == len(channels)
            places.append(None if every else step.index(np.searchsorted(channels, some)))
            members.append(source.shares[:, step.tasks] & here)
    made = terms[0]
    counts = [step.placeholder(name) for name in samples]
    if len(terms) > 1:
        rows = np.stack(members).reshape(-1, len(step.tasks))
        kinds, of_task = np.unique(rows, axis=1, return_inverse=True)
        by_kind = kinds.reshape(len(terms), len(samples), -1).swapaxes(1, 2).astype(np.int64)
        of_channel = None
        if kinds.shape[1] > 1:
            tasks = np.searchsorted(step.tasks, norm.layout.channels[channels])
            of_channel = step.index(of_task.reshape(-1)[tasks])
        made = step.call(combined, terms, places, step.index(by_kind.ravel()), of_channel, counts)
    running = [argument(norm.node, name) for name in ("running_mean", "running_var")]
    if updates and isinstance(running[0], fx.Node):
        held = [step.value(first_version(one), {0: channels}) for one in running]
        momentum = argument(norm.node, "momentum")
        step.call(update_running, *held, made, counts, norm.values, momentum)
    return finished_step(step, [made])
