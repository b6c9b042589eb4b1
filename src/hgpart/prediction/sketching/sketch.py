"""LayerFacts + Partition -> Sketch: what parts compute and send, as arrays, without programs.

A sketch has what `hgpart.placement` would build, and in the same order: pieces of work of each
part, each a layer's tasks for some shares of the batch, and transfers from piece to piece. It is of
coarse-grain partitions; of those over bands of rows, `tiles` makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hgpart.arrays import Bool, Float64, Int64
from hgpart.execution.program import Share
from hgpart.layers.channel_graph import INPUT, OUTPUT, PARAMETER
from hgpart.partition import Partition
from hgpart.placement.building.channel_transfers import RESULT_PART
from hgpart.placement.building.order import SECONDS_A_PARAMETER
from hgpart.placement.shares.joining import WorkUnit, joined
from hgpart.prediction.sketching.layer_facts import LayerFact, LayerFacts, SentTensor
from hgpart.schedules.costs import Costs
from hgpart.work.figures import seconds_a_unit

Finish = Sequence[Int64 | None]  # of each layer, the part of each task; None: has no vertices


class WorkPiece(NamedTuple):
    """A part's work on a layer for some shares of the batch, in neighbouring bands of rows.

    Attributes
    ----------
    tasks : int
        Number of tasks.
    steps : int
        1, or 0 where there is nothing to compute.
    rows : float
        Fraction of the rows that it computes.
    bands : range
        Their bands.
    packs : bool
        Whether it takes some rows of an input.
    is_timed : bool
        Whether the layer's seconds count here; if not, a step costs its overhead alone.
    parameters : frozenset of str, optional
        Parameters that it computes with. Default: the layer's.
    """

    part: int
    layer: int
    shares: tuple[int, ...]
    tasks: int
    steps: int
    rows: float = 1.0
    bands: range = range(1)
    packs: bool = False
    is_timed: bool = True
    parameters: frozenset[str] | None = None

    @property
    def instructs(self) -> bool:
        """Whether it does anything but receive and send."""
        return bool(self.steps) or self.packs


class Batch(NamedTuple):
    """Transfers of a layer of a share, which follow each other.

    Attributes
    ----------
    tensors : tuple of (SentTensor, int64 array or None)
        Each tensor, and its places in each transfer; None if all of it travels.
    """

    share: int
    layer: int
    first: int
    end: int
    tensors: tuple[tuple[SentTensor, Int64 | None], ...]


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers by number: by share, layer, sender and receiver.

    Attributes
    ----------
    senders, receivers : int64 arrays, shape (transfers,)
    packed : bool array, shape (transfers,)
        Whether only some of the sender's channels, or rows, travel.
    at_once : bool array, shape (transfers,)
        Whether it leaves before anything else is computed.
    returned : bool array, shape (transfers,)
        Whether a gradient comes back.
    batches : tuple of Batch
        All transfers.
    present : mapping of (int, int) to mapping of int to bytes
        For shares and layers of which parts have only some channels, these channels by part.
    """

    senders: Int64
    receivers: Int64
    packed: Bool
    at_once: Bool
    returned: Bool
    batches: tuple[Batch, ...]
    present: Mapping[tuple[int, int], Mapping[int, bytes | None]]

    @cached_property
    def shares(self) -> Int64:
        """The share of each transfer."""
        return self._each([batch.share for batch in self.batches])

    @cached_property
    def layers(self) -> Int64:
        """The layer of each transfer."""
        return self._each([batch.layer for batch in self.batches])

    def _each(self, values: Sequence[int]) -> Int64:
        counts = [batch.end - batch.first for batch in self.batches]
        return np.repeat(np.array(values, dtype=np.int64), counts)

    def nbytes(self, shares: Sequence[Share], batch_size: int) -> Int64:
        """Bytes of each transfer for a batch, as `Transfer.nbytes` counts."""
        nbytes = np.zeros(len(self.senders), dtype=np.int64)
        for share, _, first, end, tensors in self.batches:
            for sent, places in tensors:
                unit = sent.nbytes(shares[share], batch_size)
                nbytes[first:end] += unit if places is None else places * unit
        return nbytes


@dataclass(frozen=True, eq=False)
class Sketch:
    """What parts compute and send.

    Attributes
    ----------
    pieces : tuple of WorkPiece
        Pieces of all parts, part by part, each part's in its order.
    work : float64 array, shape (pieces,)
        Work of each piece, by which schedules are made.
    part_pointers : int64 array, shape (k + 1,)
        The first piece of each part, and the number of pieces.
    sent_in, read_in : int64 arrays, shape (transfers,)
        The piece behind which each transfer departs, and the one before which it is awaited.
    operands : int64 array, shape (transfers,)
        The place of its layer among the operands of the one that reads it.
    """

    k: int
    shares: tuple[ShareSketch, ...]
    pieces: tuple[WorkPiece, ...]
    work: Float64
    part_pointers: Int64
    transfers: Transfers
    sent_in: Int64
    read_in: Int64
    operands: Int64


def sketch(facts: LayerFacts, partition: Partition) -> Sketch:
    """Sketch a partition of the model of `facts`."""
    shares, k = shares_of(partition), partition.k
    transfers, readers = transfers_of(facts, shares, k)
    by_part = pieces_in_order(facts, partition, shares, transfers)
    pieces = [piece for own in by_part for piece in own]
    numbers = np.full((len(shares), len(facts.layers), k), -1, dtype=np.int64)
    for number, piece in enumerate(pieces):
        numbers[list(piece.shares), piece.layer, piece.part] = number
    sent_in = numbers[transfers.shares, transfers.layers, transfers.senders]
    read_in = numbers[transfers.shares, readers, transfers.receivers]
    pointers = np.cumsum([0, *map(len, by_part)])
    for at, piece in enumerate(pieces):
        if facts.layers[piece.layer].layer.kind == OUTPUT:
            several = _is_put_together(facts, shares, transfers, piece)
            pieces[at] = piece._replace(steps=int(several))
    places = np.zeros((len(facts.layers),) * 2, dtype=np.int64)
    for at, fact in enumerate(facts.layers):
        places[at, list(fact.sources)] = np.arange(len(fact.sources))
    operands = places[readers, transfers.layers]
    work = _work(partition, shares, pieces)
    return Sketch(
        k, tuple(shares), tuple(pieces), work, pointers, transfers, sent_in, read_in, operands
    )


def _work(
    partition: Partition, shares: Sequence[ShareSketch], pieces: Sequence[WorkPiece]
) -> Float64:
    """Work of each piece in its share of the batch; that of tied layers counts in the first."""
    per_task = [work_of_tasks(partition, at) for at in range(len(partition.model.views))]
    slices, of_pieces = shares[0].share.of, np.zeros(len(pieces))
    for at, piece in enumerate(pieces):
        if piece.steps and len(per_task[piece.layer]):
            here = sum(len(shares[own].share.slices) for own in piece.shares)
            work = per_task[piece.layer][0] * piece.tasks
            of_pieces[at] = float(work) * (here / slices)
    return of_pieces


def _is_put_together(
    facts: LayerFacts, shares: Sequence[ShareSketch], transfers: Transfers, piece: WorkPiece
) -> bool:
    """Whether a result consists of several pieces, which a step joins."""
    share = piece.shares[0]
    for source in facts.graph.sources(facts.layers[piece.layer].layer):
        finish = shares[share].finish[source]
        own = finish is not None and bool((finish == piece.part).any())
        here = transfers.receivers == piece.part
        here &= (transfers.layers == source) & (transfers.shares == share)
        if own + np.count_nonzero(here) > 1:
            return True
    return False


@dataclass(frozen=True, eq=False)
class ShareSketch:
    """A share of the batch: who finishes each task."""

    share: Share
    finish: Finish


def shares_of(partition: Partition) -> list[ShareSketch]:
    """Shares of the batch as `hgpart.placement.shares.batch_shares.in_shares` finds them."""
    model, slices = partition.model, partition.modelling.slices
    by_slice = partition.parts.reshape(slices, -1).astype(np.int64)
    members: dict[bytes, list[int]] = {}
    for number, parts in enumerate(by_slice):
        members.setdefault(parts.tobytes(), []).append(number)
    return [
        ShareSketch(
            Share(tuple(numbers), slices),
            [
                None if layout is None else by_slice[numbers[0]][vertices]
                for layout, vertices in zip(model.layouts, model.task_vertices, strict=True)
            ],
        )
        for numbers in members.values()
    ]


def transfers_of(
    facts: LayerFacts, shares: Sequence[ShareSketch], k: int
) -> tuple[Transfers, Int64]:
    """Follow all reads of all shares; with the first layer in which each transfer is read."""
    is_share = len(shares) > 1
    columns: tuple[list[Int64], ...] = ([], [], [], [])
    batches: list[Batch] = []
    present: dict[tuple[int, int], Mapping[int, bytes | None]] = {}
    first = 0
    for number, share in enumerate(shares):
        for at, fact in enumerate(facts.layers):
            makers = share.finish[at]
            if makers is None or (is_share and fact.layer.kind == PARAMETER):
                continue
            groups, needed = _of_layer(fact, makers, share.finish, k)
            if is_share and needed is not None:
                present[number, at] = _channels(fact, makers, needed)
            for group in groups:
                count = len(group.senders)
                if not count:
                    continue
                own = group.senders, group.receivers, group.packed.astype(np.int64), group.readers
                for column, values in zip(columns, own, strict=True):
                    column.append(values)
                batches.append(Batch(number, at, first, first + count, group.tensors))
                first += count
    senders, receivers, packed, readers = (
        np.concatenate([np.zeros(0, np.int64), *column]) for column in columns
    )
    are_returned = np.array([fact.returned for fact in facts.layers], dtype=np.bool_)
    layers = np.repeat(
        np.array([batch.layer for batch in batches], dtype=np.int64),
        [batch.end - batch.first for batch in batches],
    )
    transfers = Transfers(
        senders,
        receivers,
        packed.astype(np.bool_),
        np.zeros(len(layers), dtype=np.bool_),
        are_returned[layers],
        tuple(batches),
        present,
    )
    return transfers, readers


class _LayerTransfers(NamedTuple):
    senders: Int64
    receivers: Int64
    packed: Bool
    readers: Int64
    tensors: tuple[tuple[SentTensor, Int64 | None], ...]


def _channels(fact: LayerFact, makers: Int64, needed: Bool) -> dict[int, bytes | None]:
    """The channels that each part has, its own or received; None for all."""
    here = needed.copy()
    if fact.layer.tasks == 1:
        here[:, int(makers[0])] = True
    else:
        here[np.arange(len(makers)), makers] = True
    counts = here.sum(axis=0)
    return {
        part: None if counts[part] == len(here) else here[:, part].tobytes()
        for part in np.flatnonzero(counts).tolist()
    }


def _of_layer(
    fact: LayerFact, makers: Int64, finish: Finish, k: int
) -> tuple[list[_LayerTransfers], Bool | None]:
    """Transfers of a layer's maps, and then those that only the result needs.

    The channels that each part reads are returned, too, unless all are in one part.
    """
    channels, single = fact.layer.channels, fact.layer.tasks == 1
    of_channel = np.repeat(makers, channels) if single else makers
    if not fact.edges or ((makers[0] == makers).all() and _is_here(fact, int(makers[0]), finish)):
        return [], None
    order = np.argsort(of_channel, kind="stable")
    senders, starts = np.unique(of_channel[order], return_index=True)
    needed = np.zeros((channels, k), dtype=np.bool_)
    for_result = np.zeros(channels, dtype=np.bool_)
    readers = np.full((len(senders), k), -1, dtype=np.int64)
    for edge in fact.edges:
        reading = finish[edge.reader]
        if reading is None:  # the result, which some part has to put together
            for_result[edge.channels] = True
            some = np.zeros(k, dtype=np.bool_)
            some[RESULT_PART] = True
            pairs = _any_of(senders, of_channel[edge.channels])[:, None] & some
        elif edge.groups is None:
            some = np.zeros(k, dtype=np.bool_)
            some[reading] = True
            needed[edge.channels] |= some
            pairs = _any_of(senders, of_channel[edge.channels])[:, None] & some
        else:
            tasks = len(reading)
            by_group = np.zeros((edge.total, k), dtype=np.bool_)
            by_group[np.arange(tasks) * edge.total // tasks, reading] = True
            read = np.zeros((channels, k), dtype=np.bool_)
            if edge.is_once:
                read[edge.channels] = by_group[edge.groups]
            else:
                np.logical_or.at(read, edge.channels, by_group[edge.groups])
            needed |= read
            pairs = np.logical_or.reduceat(read[order], starts, axis=0)
        readers[(readers < 0) & pairs] = edge.reader
    anyway = np.logical_or.reduce(needed, axis=0, keepdims=True) if single else needed
    only = np.zeros((channels, k), dtype=np.bool_)
    only[:, RESULT_PART] = for_result & ~anyway[:, RESULT_PART]
    groups = []
    for wanted in (needed, only) if for_result.any() else (needed,):
        counts = np.add.reduceat(wanted[order], starts, axis=0, dtype=np.int64)
        counts[np.arange(len(senders)), senders] = 0
        at, receivers = np.nonzero(counts)
        tensors: list[tuple[SentTensor, Int64 | None]] = []
        for sent in fact.tensors:
            if single or sent.places is None:
                tensors.append((sent, None if sent.places is None else _full(sent, len(at))))
            elif (sent.places == sent.places[0]).all():
                tensors.append((sent, counts[at, receivers] * int(sent.places[0])))
            else:
                weighted = wanted[order] * sent.places[order][:, None]
                places = np.add.reduceat(weighted, starts, axis=0, dtype=np.int64)
                tensors.append((sent, places[at, receivers]))
        own = np.diff(np.append(starts, channels))
        is_cut = any(sent.places is not None for sent in fact.tensors) and not single
        packed = (counts[at, receivers] < own[at]) & is_cut
        groups.append(
            _LayerTransfers(senders[at], receivers, packed, readers[at, receivers], tuple(tensors))
        )
    return groups, needed | only


def _full(sent: SentTensor, count: int) -> Int64:
    assert sent.places is not None
    return np.full(count, int(sent.places.sum()))


def _is_here(fact: LayerFact, part: int, finish: Finish) -> bool:
    """Whether all that read a layer are in one part."""
    for edge in fact.edges:
        reading = finish[edge.reader]
        if reading is None:
            if part != RESULT_PART:
                return False
        elif not (reading == part).all():
            return False
    return True


def _any_of(senders: Int64, makers: Int64) -> Bool:
    """For each sender, whether it is among some makers."""
    there: Bool = np.isin(senders, makers)
    return there


def pieces_in_order(
    facts: LayerFacts, partition: Partition, shares: Sequence[ShareSketch], transfers: Transfers
) -> list[list[WorkPiece]]:
    """The pieces of each part, in the order of `hgpart.placement.building.order`."""
    if len(shares) > 1:
        return joined_pieces(facts, partition, shares, transfers)
    (share,) = shares
    pieces: list[list[WorkPiece]] = [[] for _ in range(partition.k)]
    for at, fact in enumerate(facts.layers):
        for part, tasks in tasks_by_part(fact, share.finish[at]):
            pieces[part].append(piece_of(fact, part, at, (0,), tasks))
    return pieces


def joined_pieces(
    facts: LayerFacts, partition: Partition, shares: Sequence[ShareSketch], transfers: Transfers
) -> list[list[WorkPiece]]:
    """The same where a part may do the work of several shares at once."""
    units, pieces = work_units(facts, partition, shares, transfers)
    by_part: list[list[WorkPiece]] = [[] for _ in range(partition.k)]
    for group in joined(units):
        first = pieces[group[0]]
        together = tuple(pieces[number].shares[0] for number in group)
        by_part[first.part].append(first._replace(shares=together))
    return by_part


def work_units(
    facts: LayerFacts, partition: Partition, shares: Sequence[ShareSketch], transfers: Transfers
) -> tuple[list[WorkUnit], list[WorkPiece]]:
    """The work of all parts on the layers of all shares, with estimated costs."""
    k, costs, work = partition.k, Costs(), partition.problem.work
    samples = partition.modelling.batch_size
    nbytes = transfers.nbytes([share.share for share in shares], samples)
    travels = costs.message + costs.byte * nbytes
    coming: dict[tuple[int, int, int], list[tuple[int, float]]] = {}
    keys = transfers.shares, transfers.layers, transfers.receivers, transfers.senders, travels
    for share, layer, receiver, sender, travel in zip(*(key.tolist() for key in keys), strict=True):
        coming.setdefault((share, layer, receiver), []).append((sender, travel))
    seconds_per_work = seconds_a_unit(work, samples, costs.work)
    units: list[WorkUnit] = []
    pieces: list[WorkPiece] = []
    made: dict[tuple[int, int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    per_task = [work_of_tasks(partition, at) for at in range(len(facts.layers))]
    total = [int(own.sum()) for own in per_task]
    for at, fact in enumerate(facts.layers):
        tied = fact.layer.tied_to
        parameters = facts.layers[tied].layer.parameters / max(1, total[tied])
        sources = facts.graph.sources(fact.layer)
        for number, share in enumerate(shares):
            unit_seconds = seconds_per_work * share.share.samples(samples)
            finish = share.finish[at]
            for part, tasks in tasks_by_part(fact, finish, every=k):
                before = last.get((number, part))
                needs = {} if before is None else {before: 0.0}
                for source in sources:
                    for sender, travel in coming.get((number, source, part), ()):
                        needs[made[number, source, sender]] = travel
                done = 0.0
                if finish is not None:
                    done = float(
                        total[tied]
                        if tasks == fact.layer.tasks
                        else per_task[tied][finish == part].sum()
                    )
                alike = None
                if fact.is_apart:
                    here = None if finish is None or tasks == fact.layer.tasks else finish == part
                    present = tuple(
                        _present(transfers, number, source, part, share.finish[source])
                        for source in sources
                    )
                    alike = at, None if here is None else here.tobytes(), present
                once = done * parameters * SECONDS_A_PARAMETER
                unit = WorkUnit(part, done * unit_seconds, needs, once, alike)
                made[number, at, part] = last[number, part] = len(units)
                units.append(unit)
                pieces.append(piece_of(fact, part, at, (number,), tasks))
    return units, pieces


def _present(
    transfers: Transfers, share: int, source: int, part: int, finish: Int64 | None
) -> bytes | None:
    """The channels of a layer that a part has; None for all."""
    known = transfers.present.get((share, source))
    return None if known is None or finish is None else known.get(part)


def work_of_tasks(partition: Partition, at: int) -> Int64:
    """Work of each task of a layer in its own vertices, as if the batch were not in slices."""
    model = partition.model
    layout = model.layouts[at]
    if layout is None or not model.views[at].is_own:
        return np.zeros(0, dtype=np.int64)
    rows = model.blocks.rows[at]
    weights = model.weights[layout.finish : layout.finish + len(rows) - 1]
    return np.repeat(weights // (model.modelling.slice_work[0] * np.diff(rows)), np.diff(rows))


def piece_of(fact: LayerFact, part: int, at: int, shares: tuple[int, ...], tasks: int) -> WorkPiece:
    """A piece; what is known of the step of a result is found later."""
    return WorkPiece(part, at, shares, tasks, int(fact.computes and fact.layer.kind != OUTPUT))


def tasks_by_part(fact: LayerFact, finish: Int64 | None, every: int = 0) -> list[tuple[int, int]]:
    """Parts that finish tasks of a layer, and how many; inputs without vertices are in `every`."""
    if finish is None:
        tasks = fact.layer.tasks
        return (
            [(part, tasks) for part in range(every)]
            if fact.layer.kind == INPUT
            else [(RESULT_PART, tasks)]
        )
    if (finish == finish[0]).all():
        return [(int(finish[0]), len(finish))]
    parts, counts = np.unique(finish, return_counts=True)
    return [*zip(parts.tolist(), counts.tolist(), strict=True)]
