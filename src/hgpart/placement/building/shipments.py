"""ChannelGraph + Ownership -> shipments: which channels go from which part to which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Bool, Int64
from hgpart.layers.channel_graph import INPUT, PARAMETER, ChannelGraph, Layer, Read
from hgpart.placement.cutting.ownership import Ownership

RESULT_PART = 0  # who puts the result together, where the plan has no vertex for it


@dataclass(frozen=True, eq=False)
class Shipment:
    """What one layer sends from one part to another.

    Attributes
    ----------
    layer : int
        Index of the layer.
    partial : bool
        Whether these are partial sums on their way to the layer's reductions.
    sender, receiver : int
    members : int64 array
        Tasks if partial, else channels; numbered within the layer, ascending.
    counted : bool
        False for what only the result needs, where the plan has no output vertex.
    """

    layer: int
    partial: bool
    sender: int
    receiver: int
    members: Int64
    counted: bool = True


def shipments(
    graph: ChannelGraph, owners: Ownership, of_parameters: bool = True
) -> tuple[Shipment, ...]:
    """Follow every task to the channels that it reads: the definition, without the hypergraph.

    In the order of the layers, partial sums before maps; then by sender and receiver. Without
    those `of_parameters` that tasks read, where parts have copies of what they read of these.
    """
    every = np.zeros((int(graph.first_channel[-1]), owners.k), dtype=np.bool_)
    for_result = every.copy()
    for at, layer in enumerate(graph.layers):
        finish, cells = owners.finish[at], owners.cells[at]
        reads = every
        if finish is None and layer.kind != INPUT:  # the result: someone has to put it together
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
    found: list[Shipment] = []
    for at, layer in enumerate(graph.layers):
        channels = slice(graph.first_channel[at], graph.first_channel[at + 1])
        found += _partial_sums(owners, at)
        if layer.kind != PARAMETER or of_parameters:
            found += _maps(layer, owners, at, every[channels], counted=True)
        only = for_result[channels] & ~_travelling(layer, every[channels])
        found += _maps(layer, owners, at, only, counted=False)
    return tuple(found)


def _travelling(layer: Layer, needs: Bool) -> Bool:
    """Channels that go to each part anyway: all that a task makes, where one of them does."""
    return np.broadcast_to(needs.any(axis=0), needs.shape) if layer.tasks == 1 else needs


def _readers(layer: Layer, read: Read, finish: Int64, k: int) -> Bool:
    """Whether a part finishes a task that reads a position of a read."""
    groups = np.zeros((read.groups, k), dtype=np.bool_)
    groups[np.arange(layer.tasks) * read.groups // layer.tasks, finish] = True
    count = len(read.channels)
    return groups[np.arange(count) * read.groups // max(1, count)]


def _partial_sums(owners: Ownership, at: int) -> list[Shipment]:
    cells, finish = owners.cells[at], owners.finish[at]
    if cells is None or finish is None:
        return []
    found = []
    for sender, rectangles in enumerate(cells):
        tasks = np.sort(np.concatenate([np.zeros(0, np.int64), *(r.tasks for r in rectangles)]))
        for receiver in np.unique(finish[tasks]).tolist():
            if receiver != sender:
                members = tasks[finish[tasks] == receiver]
                found.append(Shipment(at, True, sender, receiver, members))
    return found


def _maps(layer: Layer, owners: Ownership, at: int, needs: Bool, counted: bool) -> list[Shipment]:
    finish = owners.finish[at]
    if finish is None:
        return []
    single = layer.tasks == 1
    makers = np.repeat(finish, layer.channels) if single else finish
    found = []
    for sender in np.unique(makers).tolist():
        for receiver in range(owners.k):
            members = np.flatnonzero((makers == sender) & needs[:, receiver])
            if receiver != sender and len(members):
                members = np.arange(layer.channels) if single else members
                found.append(Shipment(at, False, sender, receiver, members, counted))
    return found
