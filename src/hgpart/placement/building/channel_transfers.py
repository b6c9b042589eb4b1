"""ChannelGraph + Ownership -> ChannelTransfers: which channels each part sends to which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Bool, Int64
from hgpart.layers.channel_graph import INPUT, PARAMETER, ChannelGraph, Layer, Read
from hgpart.placement.cutting.ownership import Ownership

RESULT_PART = 0  # puts the result together if the plan has no vertex for it


@dataclass(frozen=True, eq=False)
class ChannelTransfer:
    """Channels of one layer that one part sends to another.

    Attributes
    ----------
    layer : int
        Index of the layer.
    partial : bool
        Whether these are partial sums on the way to the layer's reduction.
    members : int64 array
        Tasks if partial, else channels; numbered within the layer, ascending.
    counted : bool
        Whether it is part of the communication volume; False for what only the result needs, if
        the plan has no output vertex.
    """

    layer: int
    partial: bool
    sender: int
    receiver: int
    members: Int64
    counted: bool = True


def channel_transfers(
    graph: ChannelGraph, owners: Ownership, of_parameters: bool = True
) -> tuple[ChannelTransfer, ...]:
    """Follow every task to the channels that it reads: the definition, without the hypergraph.

    They are in the order of layers, partial sums before maps; then by sender and receiver. Those
    `of_parameters` are left out where parts have copies of the parameters that their tasks read.
    """
    needed = np.zeros((int(graph.first_channel[-1]), owners.k), dtype=np.bool_)
    for_result = needed.copy()
    for at, layer in enumerate(graph.layers):
        finish, cells = owners.finish[at], owners.cells[at]
        reads = needed
        # The result, which some part has to put together.
        if finish is None and layer.kind != INPUT:
            finish, reads = np.full(layer.tasks, RESULT_PART), for_result
        for number, read in enumerate(layer.reads):
            if cells is not None and number == owners.splits[at]:
                reading = np.zeros((len(read.channels), owners.k), dtype=np.bool_)
                for part, rectangles in enumerate(cells):
                    for rectangle in rectangles:
                        reading[rectangle.positions, part] = True
            else:
                assert finish is not None
                reading = _readers(layer, read, finish, owners.k)
            known = read.channels >= 0
            np.logical_or.at(reads, read.channels[known], reading[known])
    transfers: list[ChannelTransfer] = []
    for at, layer in enumerate(graph.layers):
        channels = slice(graph.first_channel[at], graph.first_channel[at + 1])
        transfers += _partial_sums(owners, at)
        if layer.kind != PARAMETER or of_parameters:
            transfers += _maps(layer, owners, at, needed[channels], counted=True)
        only = for_result[channels] & ~_sent_anyway(layer, needed[channels])
        transfers += _maps(layer, owners, at, only, counted=False)
    return tuple(transfers)


def _sent_anyway(layer: Layer, needs: Bool) -> Bool:
    """Channels that go to each part anyway: all channels of a task, if one of them does."""
    return np.broadcast_to(needs.any(axis=0), needs.shape) if layer.tasks == 1 else needs


def _readers(layer: Layer, read: Read, finish: Int64, k: int) -> Bool:
    """Whether a part finishes a task that reads a position of a read; shape (positions, k)."""
    groups = np.zeros((read.groups, k), dtype=np.bool_)
    groups[np.arange(layer.tasks) * read.groups // layer.tasks, finish] = True
    count = len(read.channels)
    return groups[np.arange(count) * read.groups // max(1, count)]


def _partial_sums(owners: Ownership, at: int) -> list[ChannelTransfer]:
    cells, finish = owners.cells[at], owners.finish[at]
    if cells is None or finish is None:
        return []
    sums = []
    for sender, rectangles in enumerate(cells):
        tasks = np.sort(np.concatenate([np.zeros(0, np.int64), *(r.tasks for r in rectangles)]))
        for receiver in np.unique(finish[tasks]).tolist():
            if receiver != sender:
                members = tasks[finish[tasks] == receiver]
                sums.append(ChannelTransfer(at, True, sender, receiver, members))
    return sums


def _maps(
    layer: Layer, owners: Ownership, at: int, needs: Bool, counted: bool
) -> list[ChannelTransfer]:
    finish = owners.finish[at]
    if finish is None:
        return []
    single = layer.tasks == 1
    makers = np.repeat(finish, layer.channels) if single else finish
    maps = []
    for sender in np.unique(makers).tolist():
        for receiver in range(owners.k):
            members = np.flatnonzero((makers == sender) & needs[:, receiver])
            if receiver != sender and len(members):
                members = np.arange(layer.channels) if single else members
                maps.append(ChannelTransfer(at, False, sender, receiver, members, counted))
    return maps
