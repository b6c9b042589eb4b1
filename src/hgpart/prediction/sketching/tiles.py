"""LayerFacts + Partition over bands of rows -> Sketch: tile by tile, without programs.

Who sends what, and the order in which parts compute, are those of `hgpart.placement`. Parts have
few tiles, so that they are followed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from torch import fx

from hgpart.arrays import Bool, Int64
from hgpart.execution.program import Transfer
from hgpart.hypergraph.shares import work_of_layers
from hgpart.layers.channel_graph import INPUT, OUTPUT, Layer
from hgpart.operators.calls import argument
from hgpart.partition import Partition
from hgpart.placement.building.blueprint import Blueprint, shared_statistics
from hgpart.placement.building.channel_transfers import ChannelTransfer
from hgpart.placement.building.order import Order, Sums, order_of_layers
from hgpart.placement.mode_programs import share_blueprints
from hgpart.placement.shares.batch_shares import in_shares
from hgpart.placement.shares.ownership import Tile
from hgpart.placement.shares.statistics import SharedStatistics
from hgpart.prediction.sketching.layer_facts import LayerFacts, SentTensor
from hgpart.prediction.sketching.sketch import (
    Batch,
    ShareSketch,
    Sketch,
    Transfers,
    WorkPiece,
)
from hgpart.prediction.steps import portions

Arriving = tuple[int, ChannelTransfer]  # its number, and what it brings


def sketch_of_tiles(facts: LayerFacts, partition: Partition) -> Sketch:
    """Sketch a partition over bands.

    Raises
    ------
    PlacementError
        If it can't be placed.
    """
    work = partition.problem.work
    shares = in_shares(partition, work)
    blueprints = share_blueprints(
        facts.blueprint.facts, shares, work, facts.trainable, facts.blueprint.norms
    )
    if not facts.trains:
        blueprints = tuple(replace(own, takes_statistics=False) for own in blueprints)
    statistics = shared_statistics(blueprints)
    order = order_of_layers(blueprints, statistics)
    return _Drawing(facts, blueprints, statistics).of(order)


class _Drawing:
    """A sketch under construction."""

    def __init__(
        self,
        facts: LayerFacts,
        blueprints: Sequence[Blueprint],
        statistics: Sequence[SharedStatistics],
    ) -> None:
        self.facts, self.blueprints, self.statistics = facts, blueprints, statistics
        self.k = blueprints[0].partition.k
        self.pieces: list[WorkPiece] = []
        self.work: list[float] = []
        self.needs: list[set[int]] = []  # pieces of the same part that each piece reads
        # Pieces that finish tiles, by share, layer and part.
        self.finished: dict[tuple[int, int, int], list[tuple[Tile, int]]] = {}
        self.latest: dict[tuple[int, int], int] = {}  # the last piece of each layer and part
        self.transfers: list[tuple[Transfer, int, int]] = []  # with its share and layer
        # What parts receive, by share, layer, whether it is partial sums, and receiver.
        self.arriving: dict[tuple[int, int, bool, int], list[Arriving]] = {}
        for number, blueprint in enumerate(blueprints):
            items = blueprint.channel_transfers
            for transfer, item in zip(blueprint.transfers, items, strict=True):
                key = number, item.layer, item.partial, item.receiver
                self.arriving.setdefault(key, []).append((transfer.number, item))
                self.transfers.append((transfer, number, item.layer))
        for number, own in enumerate(statistics):
            for sent in own.travelling:
                self.transfers.append((sent.transfer, number, sent.norm.layer))
        count = len(self.transfers)
        self.sent_in = np.full(count, -1, dtype=np.int64)
        self.read_in = np.full(count, -1, dtype=np.int64)
        self.packed = np.zeros(count, dtype=np.bool_)

    def of(self, order: Sequence[Order]) -> Sketch:
        """The sketch of parts that compute in an order."""
        pointers = [0]
        for part, own in enumerate(order):
            for piece in own:
                if isinstance(piece, Sums):
                    self._combine(part, piece)
                elif piece.partial:
                    self._sum_rows(part, piece.shares, piece.layer)
                else:
                    self._finish(part, piece.shares, piece.layer, piece.norms)
            self._receive_others(part)
            self._send_early(pointers[-1])
            pointers.append(len(self.pieces))
        places = np.zeros((len(self.facts.layers),) * 2, dtype=np.int64)
        for at, fact in enumerate(self.facts.layers):
            places[at, list(fact.sources)] = np.arange(len(fact.sources))
        readers = np.array([piece.layer for piece in self.pieces], dtype=np.int64)[self.read_in]
        transfers = self._as_arrays()
        return Sketch(
            k=self.k,
            shares=tuple(
                ShareSketch(
                    blueprint.share,
                    [None if own is None else own[0] for own in blueprint.owners.finish],
                )
                for blueprint in self.blueprints
            ),
            pieces=tuple(self.pieces),
            work=np.array(self.work),
            part_pointers=np.array(pointers, dtype=np.int64),
            transfers=transfers,
            sent_in=self.sent_in,
            read_in=self.read_in,
            operands=places[readers, transfers.layers],
        )

    def _as_arrays(self) -> Transfers:
        alone = [transfer for transfer, _, _ in self.transfers]
        return Transfers(
            senders=np.array([transfer.sender for transfer in alone], dtype=np.int64),
            receivers=np.array([transfer.receiver for transfer in alone], dtype=np.int64),
            packed=self.packed,
            at_once=np.array([transfer.at_once for transfer in alone], dtype=np.bool_),
            returned=np.array([transfer.differentiable for transfer in alone], dtype=np.bool_),
            batches=tuple(
                Batch(
                    share,
                    layer,
                    number,
                    number + 1,
                    tuple((SentTensor(None, tensor), None) for tensor in transfer.tensors),
                )
                for number, (transfer, share, layer) in enumerate(self.transfers)
            ),
            present={},
        )

    # -------------------------------------------------------------- pieces

    def _add(self, piece: WorkPiece, of_work: float = 0.0) -> int:
        """Add a piece, with a fraction of its part's work on the layer."""
        number, key = len(self.pieces), (piece.layer, piece.part)
        self.pieces.append(piece)
        self.needs.append({self.latest[key]} if key in self.latest else set())
        self.latest[key] = number
        shares = [self.blueprints[share].share for share in piece.shares]
        self.work.append(
            sum(
                of_work
                * float(self._layer_work[at][piece.layer, piece.part])
                * (len(share.slices) / share.of)
                for at, share in zip(piece.shares, shares, strict=True)
            )
        )
        return number

    @cached_property
    def _layer_work(self) -> list[Int64]:
        return [
            work_of_layers(blueprint.partition.model, blueprint.partition.parts, self.k)
            for blueprint in self.blueprints
        ]

    def _sum_rows(self, part: int, shares: tuple[int, ...], at: int) -> None:
        """Partial sums of a part's rows."""
        blueprint = self.blueprints[shares[0]]
        cells = blueprint.owners.cells[at]
        if cells is None or not cells[part]:
            return
        ((_, _, rows),) = portions(blueprint, at, part)
        tasks = sum(len(cell.tasks) for cell in cells[part])
        piece = self._add(WorkPiece(part, at, shares, tasks, 1, rows), 1.0)
        needed = _needed(blueprint, at, [self._summing(at)], None)
        read = np.unique(np.concatenate([cell.positions for cell in cells[part]]))
        tile = Tile(np.sort(np.concatenate([cell.tasks for cell in cells[part]])), read)
        for share in shares:
            self._receive(piece, share, self._read(at, needed), tile)
            for transfer, item in self.blueprints[share].departing.get((at, True, part), ()):
                self._send(transfer.number, piece, len(item.members) < tasks)

    def _finish(self, part: int, shares: tuple[int, ...], at: int, norms: int) -> None:
        """What comes behind the first `norms` norms of a layer, up to the next one."""
        blueprint, is_input = self.blueprints[shares[0]], self._layer(at).kind == INPUT
        own, tiles = self._of(shares[0]).norms.get(at, ()), blueprint.tiles(at, part)
        is_sum, every = blueprint.owners.cells[at] is not None, self._rows(at)
        is_timed = norms == 0 and not is_sum
        ends = [own[norms].operand] if norms < len(own) else [*blueprint.results[at]]
        begin = own[norms - 1].operand if norms else self._summing(at) if is_sum else None
        needed = _needed(blueprint, at, ends, begin)
        named = blueprint.traced.parameters
        times = {suffix: rows for suffix, _, rows in portions(blueprint, at, part)}
        sizes = [len(tile.tasks) * (1 if tile.rows is None else len(tile.rows)) for tile in tiles]
        for number, tile in enumerate(tiles):
            made = WorkPiece(
                part,
                at,
                shares,
                len(tile.tasks),
                int(self._computes(shares[0], part, at, needed)),
                rows=times[f"_tile_{number}" * (number > 0)] if is_timed else 1.0,
                bands=tile.bands,
                packs=is_input and _are_some(tile.rows, every),
                is_timed=is_timed,
                parameters=frozenset(named[node.name] for node in needed if node.name in named)
                if own
                else None,
            )
            piece = self._add(made, is_timed * sizes[number] / sum(sizes))
            if not (own or is_sum):  # tiles of a layer do not need each other
                self.needs[piece].clear()
            for share in shares:
                self._receive(piece, share, self._read(at, needed), tile)
                if is_sum:
                    for transfer, _ in self.arriving.get((share, at, True, part), ()):
                        self._note_read(transfer, piece)
                for item in self._of(share).coming(own[norms - 1], True, part) if norms else ():
                    if np.isin(item.tasks, tile.tasks).any():
                        self._note_read(item.transfer.number, piece)
                if norms == len(own):
                    self.finished.setdefault((share, at, part), []).append((tile, piece))
                    self._send_maps(share, part, at, number, piece)

    def _layer(self, at: int) -> Layer:
        return self.facts.layers[at].layer

    def _rows(self, at: int) -> Int64:
        return np.arange(self.blueprints[0].owners.height(at))

    def _summing(self, at: int) -> fx.Node:
        """The operator whose partial sums a layer adds up."""
        blueprint = self.blueprints[0]
        total = blueprint.graph.layer_rows[at].total
        assert total is not None
        return blueprint.nodes[total.operator]

    def _read(self, at: int, needed: set[fx.Node]) -> list[int]:
        """The layers that are read for some nodes, in the order of the layer's operands."""
        results = self.blueprints[0].results
        return [
            source
            for source in self.facts.layers[at].sources
            if not needed.isdisjoint(results[source])
        ]

    def _computes(self, share: int, part: int, at: int, needed: set[fx.Node]) -> bool:
        """Whether there is anything to compute for what finishes tasks."""
        layer, blueprint = self._layer(at), self.blueprints[share]
        if (cells := blueprint.owners.cells[at]) is not None:
            sums = [item.members for _, item in self.arriving.get((share, at, True, part), ())]
            sums += [cell.tasks for cell in cells[part]]
            tasks = blueprint.finishes(at, part)
            terms = [own for own in sums if np.isin(own, tasks).any()]
            names = {node.name for node in needed} - {self._summing(at).name}
            behind = not names.isdisjoint(layer.operators)
            return behind or len(terms) > 1 or len(np.intersect1d(terms[0], tasks)) < len(tasks)
        if layer.kind != OUTPUT:
            return self.facts.layers[at].computes
        return any(  # a result in several pieces, which are joined
            len(blueprint.tiles(source, part)) + sum(len(item.pieces) for _, item in arriving) > 1
            for source in blueprint.graph.sources(layer)
            for arriving in [self.arriving.get((share, source, False, part), ())]
        )

    def _combine(self, part: int, sums: Sums) -> None:
        """Statistics of a part's own tiles for others, or those of all tiles."""
        norm, statistics = sums.norm, self.statistics[sums.group]
        shares = (sums.group,) if len(self.statistics) > 1 else (*range(len(self.blueprints)),)
        own = [
            tile.tasks
            for share in shares
            for tile in self.blueprints[share].tiles(norm.layer, part)
        ]

        def add(tasks: Int64, sources: Sequence[Int64], updates: bool) -> int:
            met = [source for source in sources if np.isin(tasks, source).any()]
            takes = any(len(source) > np.isin(source, tasks).sum() for source in met)
            computes = len(met) > 1 or takes or updates or norm.row_cuts != (0, 1)
            nothing = frozenset[str]()
            made = WorkPiece(
                part, norm.layer, shares[:1], 0, int(computes), is_timed=False, parameters=nothing
            )
            return self._add(made)

        if not sums.whole:
            for item in statistics.leaving(norm, False, part):
                self._send(item.transfer.number, add(item.tasks, own, False), packed=False)
            return
        owned = statistics.owned(norm.layer, part)
        if len(owned):
            coming = statistics.coming(norm, False, part)
            updates = argument(norm.node, "running_mean") is not None
            piece = add(owned, [*own, *(item.tasks for item in coming)], updates)
            for item in coming:
                self._note_read(item.transfer.number, piece)
            for item in statistics.leaving(norm, True, part):
                self._send(item.transfer.number, piece, len(item.tasks) < len(owned))

    def _of(self, share: int) -> SharedStatistics:
        """The statistics that a share's norms have a part in."""
        return self.statistics[share if len(self.statistics) > 1 else 0]

    # -------------------------------------------------------------- what travels

    def _send(self, number: int, piece: int, packed: bool) -> None:
        self.sent_in[number], self.packed[number] = piece, packed

    def _note_read(self, number: int, piece: int) -> None:
        if self.read_in[number] < 0:
            self.read_in[number] = piece

    def _send_maps(self, share: int, part: int, at: int, last: int, piece: int) -> None:
        """Send what is there once a tile is, given by its number."""
        blueprint = self.blueprints[share]
        tiles = blueprint.tiles(at, part)
        for transfer, item in blueprint.departing.get((at, False, part), ()):
            if max(own.tile for own in item.pieces) == last:
                packed = any(
                    len(own.members) < len(blueprint.channels(at, tiles[own.tile].tasks))
                    or _are_some(own.rows, tiles[own.tile].rows)
                    for own in item.pieces
                )
                self._send(transfer.number, piece, packed)
                self.needs[piece].update(
                    made
                    for number, (_, made) in enumerate(self.finished[share, at, part])
                    if number in {own.tile for own in item.pieces}
                )

    def _receive(self, piece: int, share: int, sources: Sequence[int], tile: Tile) -> None:
        """What a piece, which computes a tile, reads of other layers: own, or just arriving."""
        part, at = self.pieces[piece].part, self.pieces[piece].layer
        for source in sources:
            here = self.finished.get((share, source, part), ())
            arriving = self.arriving.get((share, source, False, part), ())
            waiting = [(number, item) for number, item in arriving if self.read_in[number] < 0]
            if not waiting and not here:
                continue
            channels = self._channels_read(at, source, tile)
            read = [*self._rows_read(at, source, tile, channels)]

            def reads(
                members: Int64,
                some: Int64 | None,
                read: Sequence[tuple[Bool, Bool | None]] = read,
            ) -> bool:
                return any(
                    of[members].any() and (rows is None or some is None or rows[some].any())
                    for of, rows in read
                )

            for own, made in here:
                if reads(self.blueprints[share].channels(source, own.tasks), own.rows):
                    self.needs[piece].add(made)
            for number, item in waiting:
                if any(reads(own.members, own.rows) for own in item.pieces):
                    self.read_in[number] = piece

    def _channels_read(self, at: int, source: int, tile: Tile) -> Bool:
        """Whether a tile reads each channel of another layer."""
        graph, layer = self.blueprints[0].graph, self._layer(at)
        first = int(graph.first_channel[source])
        channels = np.zeros(graph.layers[source].channels, dtype=np.bool_)
        for read in layer.reads:
            groups = np.zeros(read.groups, dtype=np.bool_)
            groups[tile.tasks * read.groups // layer.tasks] = True
            count = len(read.channels)
            local = read.channels[groups[np.arange(count) * read.groups // max(1, count)]] - first
            channels[local[(local >= 0) & (local < len(channels))]] = True
        return channels

    def _rows_read(
        self, at: int, source: int, tile: Tile, channels: Bool
    ) -> Iterator[tuple[Bool, Bool | None]]:
        """Channels that a tile reads, and the rows of them; None for all rows."""
        computed, owners = self.blueprints[0].graph.layer_rows[at], self.blueprints[0].owners
        reads = computed.read_in_bands(of_partial_sums=owners.sums_rows(at))
        reads = tuple(own for own in reads if own.source == source)
        if not reads or tile.rows is None:
            yield channels, None
            return
        for own in reads:
            here = np.zeros(own.windows.height, dtype=np.bool_)
            here[own.windows.reads.take(tile.rows).values] = True
            of = channels
            if own.channels is not None:
                of = np.zeros_like(channels)
                of[own.channels] = channels[own.channels]
            yield of, here

    def _send_early(self, begin: int) -> None:
        """Put the pieces that sends need first among those that follow the same receives."""
        count = len(self.pieces)
        receives = np.bincount(self.read_in[self.read_in >= 0], minlength=count) > 0
        sends = np.bincount(self.sent_in[self.sent_in >= 0], minlength=count) > 0
        starts = [begin, *(at for at in range(begin + 1, count) if receives[at])]
        order, first = list(range(begin)), np.arange(count)
        for start, end in pairwise([*starts, count]):
            needed = set[int]()
            for at in reversed(range(start, end)):
                if sends[at] or at in needed:
                    needed |= {at, *self.needs[at]}
            first[start:end] = start  # all arrives before the first one
            order += sorted(range(start, end), key=lambda at: at not in needed)
        place = np.empty(count, dtype=np.int64)
        place[order] = np.arange(count)
        self.pieces[:] = [self.pieces[at] for at in order]
        self.work[:] = [self.work[at] for at in order]
        own = self.sent_in >= begin
        self.sent_in[own] = place[self.sent_in[own]]
        own = self.read_in >= begin
        self.read_in[own] = first[self.read_in[own]]

    def _receive_others(self, part: int) -> None:
        """What arrives though nothing reads it."""
        for number, (transfer, _, _) in enumerate(self.transfers):
            if transfer.receiver == part and self.read_in[number] < 0:
                self.read_in[number] = len(self.pieces) - 1


def _are_some(rows: Int64 | None, of: Int64 | None) -> bool:
    """Whether these are some of a tile's rows, and not all."""
    return rows is not None and of is not None and len(rows) < len(of)


def _needed(
    blueprint: Blueprint, at: int, ends: Sequence[fx.Node], begin: fx.Node | None
) -> set[fx.Node]:
    """The nodes that a layer goes through for some nodes, from what is there of it already."""
    of_sources = {
        node
        for source in blueprint.graph.sources(blueprint.graph.layers[at])
        for node in blueprint.results[source]
    }
    seen = set(ends)
    waiting = [node for node in ends if node not in of_sources and node is not begin]
    while waiting:
        for node in waiting.pop().all_input_nodes:
            if node not in seen and node is not begin:
                seen.add(node)
                if node not in of_sources:
                    waiting.append(node)
    return seen
