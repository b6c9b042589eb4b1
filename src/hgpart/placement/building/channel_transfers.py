"""ChannelGraph + Ownership -> ChannelTransfers: which channels each part sends to which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hgpart.arrays import Bool, Int64
from hgpart.layers.channel_graph import INPUT, PARAMETER, ChannelGraph, Layer, Read
from hgpart.placement.shares.ownership import Ownership, Tile
from hgpart.sequences import equal_rows

RESULT_PART = 0  # puts the result together if the plan has no vertex for it


@dataclass(frozen=True, eq=False)
class TransferPiece:
    """Channels of one layer, all in the same rows, that one part sends to another.

    Attributes
    ----------
    members : int64 array
        Tasks if these are partial sums, else channels; numbered within the layer, ascending.
    rows : int64 array or None
        Their rows, ascending; None for all.
    tile : int
        Number of the sender's tile that they are in.
    """

    members: Int64
    rows: Int64 | None = None
    tile: int = 0


@dataclass(frozen=True, eq=False)
class ChannelTransfer:
    """Channels of one layer that one part sends to another.

    Attributes
    ----------
    layer : int
        Index of the layer.
    partial : bool
        Whether these are partial sums on the way to the layer's reduction.
    pieces : tuple of TransferPiece
        Pieces of the message, which do not overlap. There is one, unless rows are told apart.
    counted : bool
        Whether it is part of the communication volume; False for what only the result needs, if
        the plan has no output vertex.
    """

    layer: int
    partial: bool
    sender: int
    receiver: int
    pieces: tuple[TransferPiece, ...]
    counted: bool = True

    @property
    def members(self) -> Int64:
        """Tasks if partial, else channels, of which something is sent; ascending."""
        return np.unique(np.concatenate([piece.members for piece in self.pieces]))


def channel_transfers(
    graph: ChannelGraph, owners: Ownership, of_parameters: bool = True
) -> tuple[ChannelTransfer, ...]:
    """Follow every task to the channels that it reads: the definition, without the hypergraph.

    They are in the order of layers, partial sums before maps; then by sender and receiver. Those
    `of_parameters` are left out where parts have copies of the parameters that their tasks read.
    """
    shapes = [
        (layer.channels, owners.height(at), owners.k) for at, layer in enumerate(graph.layers)
    ]
    needed = [np.zeros(shape, dtype=np.bool_) for shape in shapes]
    for_result = [np.zeros(shape, dtype=np.bool_) for shape in shapes]
    for at, layer in enumerate(graph.layers):
        computing, cells = owners.computing[at], owners.cells[at]
        reads = needed
        # The result, which some part has to put together.
        if computing is None and layer.kind != INPUT:
            computing, reads = np.full((1, layer.tasks), RESULT_PART), for_result
        for number, read in enumerate(layer.reads):
            if cells is not None and number == owners.splits[at]:
                reading = np.zeros((1, len(read.channels), owners.k), dtype=np.bool_)
                for part, rectangles in enumerate(cells):
                    for rectangle in rectangles:
                        reading[0, rectangle.positions, part] = True
            else:
                assert computing is not None
                of_bands = [_readers(layer, read, of_band, owners.k) for of_band in computing]
                reading = np.stack(of_bands)
            _add_reads(graph, owners, at, read, reading, reads)
    transfers: list[ChannelTransfer] = []
    for at, layer in enumerate(graph.layers):
        transfers += _partial_sums(owners, at)
        if layer.kind != PARAMETER or of_parameters:
            transfers += _maps(layer, owners, at, needed[at], counted=True)
        only = for_result[at] & ~_sent_anyway(layer, needed[at])
        transfers += _maps(layer, owners, at, only, counted=False)
    return tuple(transfers)


def _add_reads(
    graph: ChannelGraph,
    owners: Ownership,
    at: int,
    read: Read,
    reading: Bool,
    needed: Sequence[Bool],
) -> None:
    """Note which parts need which rows of which channels for a read of a layer.

    `reading` says which parts read each position, in each band; shape (bands, positions, k).
    """
    known = np.flatnonzero(read.channels >= 0)
    sources = np.searchsorted(graph.first_channel, read.channels[known], "right") - 1
    for source in np.unique(sources).tolist():
        positions = known[sources == source]
        channels = read.channels[positions] - graph.first_channel[source]
        for alike, by_band in _rows_read(graph, owners, at, source):
            chosen = slice(None) if alike is None else np.isin(channels, alike)
            for of_band, rows in zip(reading, by_band, strict=True):
                parts = np.zeros((len(needed[source]), owners.k), dtype=np.bool_)
                np.logical_or.at(parts, channels[chosen], of_band[positions[chosen]])
                needed[source][:, rows] |= parts[:, None]


def _rows_read(
    graph: ChannelGraph, owners: Ownership, at: int, source: int
) -> Iterator[tuple[Int64 | None, list[Int64]]]:
    """Channels of another layer, or all (None), and the rows of them that each band reads."""
    if not owners.tells_rows:
        yield None, [np.zeros(1, np.int64)]
        return
    tied = graph.layers_tied_to(at)
    if len(tied) > 1:  # their only band is sent what any of them reads
        every = [own for other in tied for own in graph.layer_rows[other].reads]
        rows = [own.windows.reads.values for own in every if own.source == source]
        yield None, [np.unique(np.concatenate(rows))]
        return
    for own in graph.layer_rows[at].read_in_bands(of_partial_sums=owners.sums_rows(at)):
        if own.source == source:
            reads = own.windows.reads
            yield (
                own.channels,
                [
                    np.unique(reads.values[reads.pointers[first] : reads.pointers[last]])
                    for first, last in pairwise(owners.cell_cuts[at])
                ],
            )


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
    (owner,), sums = finish, list[ChannelTransfer]()
    for sender, rectangles in enumerate(cells):
        tasks = np.sort(np.concatenate([np.zeros(0, np.int64), *(r.tasks for r in rectangles)]))
        for receiver in np.unique(owner[tasks]).tolist():
            if receiver != sender:
                summed = TransferPiece(tasks[owner[tasks] == receiver])
                sums.append(ChannelTransfer(at, True, sender, receiver, (summed,)))
    return sums


def _maps(
    layer: Layer, owners: Ownership, at: int, needs: Bool, counted: bool
) -> list[ChannelTransfer]:
    finish, transfers = owners.finish[at], list[ChannelTransfer]()
    if finish is None:
        return transfers
    needs = _sent_anyway(layer, needs)
    for sender in np.unique(finish).tolist():
        tiles = owners.tiles(at, sender)
        for receiver in range(owners.k):
            if receiver != sender:
                pieces = tuple(
                    piece
                    for number, tile in enumerate(tiles)
                    for piece in _pieces(layer, tile, number, needs[:, :, receiver])
                )
                if pieces:
                    transfers.append(ChannelTransfer(at, False, sender, receiver, pieces, counted))
    return transfers


def _pieces(layer: Layer, tile: Tile, number: int, needed: Bool) -> Iterator[TransferPiece]:
    """What is needed of a tile, rows with the same channels at once; `needed`: (channels, rows)."""
    channels = np.arange(layer.channels) if layer.tasks == 1 else tile.tasks
    if tile.rows is None:
        some = channels[needed[channels, 0]]
        if len(some):
            yield TransferPiece(some, None, number)
        return
    by_row = needed[np.ix_(channels, tile.rows)].T
    kind_of_row, examples = equal_rows(np.packbits(by_row, axis=1).astype(np.int64))
    for kind, example in enumerate(examples.tolist()):
        if by_row[example].any():
            members, rows = channels[by_row[example]], tile.rows[kind_of_row == kind]
            yield TransferPiece(members, rows, number)
