"""Sketch, LayerTimes, Machine -> SketchedCosts: seconds of chunks, messages and the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hgpart.arrays import Float64, Int64
from hgpart.machines.machine import Machine
from hgpart.prediction.device_times import Times, timed_devices
from hgpart.prediction.measured_costs import ADDING, OF_UPDATE, Overheads, passes_of
from hgpart.prediction.sketching.chunks import backward_chunks, forward_chunks
from hgpart.prediction.sketching.layer_facts import LayerFacts
from hgpart.prediction.sketching.sketch import Sketch, WorkPiece
from hgpart.prediction.sketching.step import Tables
from hgpart.prediction.sketching.weights import Weights
from hgpart.prediction.steps import LayerShare
from hgpart.schedules.schedule import Direction
from hgpart.sequences import sums_of
from hgpart.work.layer_times import Pass

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


@dataclass(eq=False)
class SketchedCosts:
    """Seconds of a sketch's chunks and messages, by the costs of `MeasuredCosts`."""

    facts: LayerFacts
    drawn: Sketch
    times: Times
    machine: Machine
    overheads: Overheads
    sizes: Sequence[int]
    weights: Weights | None = None
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the chunks."""
        timed = timed_devices(self.machine, self.times)[: self.drawn.k]
        self.speeds = np.array([device.speed for device in timed])
        self.times_of = [device.times for device in timed]
        shares = [share.share for share in self.drawn.shares]
        self.shares, transfers = shares, self.drawn.transfers
        slices = shares[0].of
        nbytes = transfers.nbytes(shares, slices) // slices
        self.returned = transfers.returned
        self.chunks = {
            FORWARD: forward_chunks(self.drawn, nbytes),
            BACKWARD: backward_chunks(self.drawn, nbytes, self.returned),
        }

    @property
    def tables(self) -> Tables:
        """All seconds, for `timed`."""
        return Tables(
            (self.chunks[FORWARD], self.chunks[BACKWARD]),
            self.sizes,
            lambda direction, batch: self.of_chunks(direction, self.sizes[batch], batch > 0),
            self.travel,
            self.products(),
            self.machine.handling,
        )

    # -------------------------------------------------------------- seconds of jobs

    def share(self, piece: WorkPiece) -> LayerShare:
        """The share of a layer that a piece computes."""
        fact, slices = self.facts.layers[piece.layer], self.shares[0].of
        here = sum(len(self.shares[number].slices) for number in piece.shares)
        matrices = [] if len(piece.shares) > 1 else fact.matrices
        cut = [
            (rows * piece.tasks // fact.layer.tasks, columns, size)
            for rows, columns, size in matrices
        ]
        return LayerShare(
            layer=piece.layer,
            share=piece.tasks / fact.layer.tasks,
            of_batch=here / slices * piece.rows,
            trains=fact.trains,
            returns=fact.returns,
            multiplies=fact.multiplies,
            matrix_bytes=sum(rows * columns * size for rows, columns, size in cut),
            row_bytes=sum((rows + columns) * size for rows, columns, size in cut),
        )

    def seconds(self, which: Pass, part: int, share: LayerShare, samples: float) -> float:
        """The seconds of a pass through a share on a device of speed 1, remembered."""
        times = self.times_of[part]
        key = id(times), share.layer, which, share.share, samples
        if key not in self._known:
            self._known[key] = times.seconds(share.layer, which, share.share, samples)
        return self._known[key]

    def of_pieces(self, direction: Direction, samples: int, later: bool) -> Float64:
        """Seconds of each piece, and those that are memory-bound, shape (pieces, 2)."""
        waits = len(self.sizes) > 1
        table = np.zeros((len(self.drawn.pieces), 2))
        known: dict[tuple[object, ...], tuple[float, float]] = {}
        for number, piece in enumerate(self.drawn.pieces):
            if not piece.steps:
                continue
            part = piece.part
            timed = piece.layer, piece.shares, piece.tasks, piece.rows, piece.is_timed
            key = id(self.times_of[part]), *timed
            if not piece.is_timed:
                known[key] = self.overheads.step, 0.0
            elif key not in known:
                share = self.share(piece)
                of_batch = share.of_batch * samples
                trains = share.trains and not (waits and share.is_product(of_batch))
                passes = passes_of(direction, share.returns, trains)
                total = sum(self.seconds(which, part, share, of_batch) for which in passes)
                if waits and later and not ADDING.isdisjoint(passes):
                    total += OF_UPDATE * self.seconds(Pass.UPDATE, part, share, 1)
                known[key] = total, total * (not share.multiplies)
            table[number] = known[key]
        parts = np.array([piece.part for piece in self.drawn.pieces], dtype=np.int64)
        at_speed: Float64 = table / self.speeds[parts, None]
        return at_speed

    def products(self) -> Float64:
        """Seconds of each part at the end of a step; see `MeasuredCosts.products`."""
        seconds = np.zeros(self.drawn.k)
        if len(self.sizes) == 1 or not self.facts.trains:
            return seconds
        samples = max(self.sizes)
        for piece in self.drawn.pieces:
            if piece.steps and piece.is_timed and self.facts.layers[piece.layer].matrices:
                share = self.share(piece)
                if share.trains and share.is_product(share.of_batch * samples):
                    whole = share.of_batch * sum(self.sizes)
                    seconds[piece.part] += self.seconds(Pass.WEIGHTS, piece.part, share, whole)
        at_speed: Float64 = seconds / self.speeds
        return at_speed

    def of_chunks(self, direction: Direction, samples: int, later: bool) -> tuple[Float64, Float64]:
        """Seconds of each chunk, and the fraction of them that is memory-bound."""
        chunks = self.chunks[FORWARD if direction is FORWARD else BACKWARD]
        table = self.of_pieces(direction, samples, later)[chunks.pieces.values]
        seconds, bound = (
            sums_of(chunks.pieces.owners, column, len(chunks.pieces)) for column in table.T
        )
        seconds += self.packing(direction, samples)
        return seconds, np.divide(bound, seconds, np.zeros_like(bound), where=seconds > 0)

    def packing(self, direction: Direction, samples: int) -> Float64:
        """Seconds that each chunk packs and unpacks."""
        chunks = self.chunks[FORWARD if direction is FORWARD else BACKWARD]
        if direction is Direction.WEIGHTS:
            return np.zeros(len(chunks.pieces))
        parts = np.repeat(np.arange(self.drawn.k), np.diff(chunks.part_pointers))
        return self.handled(parts, chunks.transfers, samples * chunks.handled)

    def handled(self, parts: Int64, transfers: Int64 | int, nbytes: Float64) -> Float64:
        """Seconds that transfers cost the parts that pack or unpack them."""
        per_transfer = self.overheads.transfer + self.machine.stall
        seconds = per_transfer * transfers + self.overheads.byte * nbytes
        at_speed: Float64 = seconds / self.speeds[parts]
        return at_speed

    def update(self) -> float:
        """Seconds of the optimizer in the part that takes longest."""
        seconds = np.zeros(self.drawn.k)
        for at, fact in enumerate(self.facts.layers):
            if any(own.name in self.facts.trainable for own in fact.layer.own_parameters):
                for part, share in self._owned(at):
                    seconds[part] += self.times_of[part].seconds(at, Pass.UPDATE, share, 1)
        return float((seconds / self.speeds).max())

    def _owned(self, at: int) -> list[tuple[int, float]]:
        """The parts that own parameters of a layer, and the fractions of it."""
        finish = self.drawn.shares[0].finish[at]
        assert finish is not None  # as it has parameters
        owners = finish if self.weights is None else self.weights.owner_of_tasks(at)
        parts, counts = np.unique(owners, return_counts=True)
        return [*zip(parts.tolist(), (counts / len(owners)).tolist(), strict=True)]

    # -------------------------------------------------------------- messages

    def sent(self) -> Int64:
        """Bytes from part to part in a step."""
        transfers, k = self.drawn.transfers, self.drawn.k
        there = transfers.senders * k + transfers.receivers
        back = transfers.receivers * k + transfers.senders
        sent = np.zeros(k * k, dtype=np.int64)
        for size in self.sizes:
            nbytes = transfers.nbytes(self.shares, size)
            np.add.at(sent, there, nbytes)
            np.add.at(sent, back, nbytes * (self.returned & self.facts.trains))
        if (weights := self.weights) is not None:
            np.add.at(sent, weights.owner * k + weights.holder, weights.nbytes)
            np.add.at(sent, weights.holder * k + weights.owner, weights.nbytes)
        return sent.reshape(k, k)

    def travel(self, senders: Int64, receivers: Int64, nbytes: Float64, both: bool) -> Float64:
        """Seconds of messages over the links."""
        links, numbers = self.machine.links(self.drawn.k)
        seconds, of_message = np.zeros(len(nbytes)), numbers[senders, receivers]
        for number, link in enumerate(links):
            of_link = of_message == number
            if of_link.any():
                seconds[of_link] = link.seconds_of_all(nbytes[of_link], both)
        return seconds
