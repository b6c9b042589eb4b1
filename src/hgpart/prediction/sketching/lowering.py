"""SketchedCosts + orders -> TimedStep of parts that have copies of weights, as `lower` adds them.

See `hgpart.schedules.lowering`: an owner sends its weights as soon as it can, a part waits for
copies before the first step that reads them, and sends gradients behind the last that adds to them.
A chunk is cut where it waits or sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hgpart.arrays import Float64, Int64
from hgpart.execution.instructions import JOINED_BYTES
from hgpart.prediction.jobs import TimedStep
from hgpart.prediction.sketching.chunks import Chunks
from hgpart.prediction.sketching.costs import BACKWARD, FORWARD, SketchedCosts
from hgpart.prediction.sketching.step import DIRECTIONS, Jobs, messages_of, timed_by_jobs
from hgpart.prediction.sketching.weights import Weights
from hgpart.schedules.schedule import Direction


class Group(NamedTuple):
    """Steps with one autograd graph.

    Attributes
    ----------
    pieces : tuple of int
        Pieces, in the order of their chunk.
    numbers : int64 array
        Weights of which they read copies, ascending.
    own : frozenset of int
        Groups of parameters that the part owns, of which they read copies nevertheless, as these
        hold others', too.
    """

    pieces: tuple[int, ...]
    numbers: Int64
    own: frozenset[int]


def lowered(costs: SketchedCosts, orders: Sequence[Int64]) -> TimedStep:
    """The step in which each part does its actions in these orders, with all weights.

    Weights are the messages behind the others, by number, and then their gradients.

    Parameters
    ----------
    orders
        See `timed`.
    """
    lowering = _Lowering(costs, len(messages_of(costs.tables)[0]))
    jobs, pointers = Jobs(), [0]
    for part, order in enumerate(orders):
        lowering.add_jobs(jobs, part, order.tolist())
        pointers.append(jobs.count)
    weights = lowering.weights
    owners, holders, nbytes = weights.owner, weights.holder, weights.nbytes.astype(np.float64)
    both = np.concatenate([owners, holders]), np.concatenate([holders, owners])
    more = *both, np.concatenate([nbytes, nbytes])
    return timed_by_jobs(costs.tables, np.array(pointers), jobs, more)


@dataclass(eq=False)
class _Lowering:
    costs: SketchedCosts
    messages: int

    def __post_init__(self) -> None:
        drawn, weights = self.costs.drawn, self.costs.weights
        assert weights is not None
        self.weights: Weights = weights
        self.count = len(weights.nbytes)
        none = np.full((len(weights.group_names), drawn.k, drawn.k), -1, dtype=np.int64)
        none[weights.group, weights.owner, weights.holder] = np.arange(self.count)
        self.number = none  # by group, owner and holder
        packed = np.where(weights.packed, weights.nbytes, 0).astype(np.float64)
        # Seconds of packing and unpacking weights, of sending gradients, and of adding them up.
        self.packed = self.costs.handled(weights.owner, 0, packed)
        self.unpacked = self.costs.handled(weights.holder, 0, packed)
        self.sent = self.costs.handled(weights.holder, 1, packed)
        self.added = self.costs.handled(weights.owner, 1, weights.nbytes.astype(np.float64))
        self.late = self.costs.products()
        every, backward, k = np.arange(self.count), weights.backward, drawn.k
        self.spread = _by_part(every, weights.owner, k)
        self.held = _by_part(every, weights.holder, k)
        self.returned = _by_part(backward, weights.holder[backward], k)
        self.collected = _by_part(backward, weights.owner[backward], k)
        self.left = np.zeros(self.count, dtype=np.int64)
        self.arrived = np.zeros(self.count, dtype=np.bool_)
        self.reduced = np.zeros(self.count, dtype=np.bool_)
        self.tables: dict[tuple[Direction, int, bool], tuple[Float64, Float64]] = {}
        self.groups: dict[tuple[int, bool, bool], list[Group]] = {}
        self.owners: dict[int, Int64] = {}

    @cached_property
    def group_of(self) -> Int64:
        """The group of each piece, numbered by parts; see `Compute`."""
        drawn, facts = self.costs.drawn, self.costs.facts
        count = len(drawn.pieces)
        receives = np.bincount(drawn.read_in, minlength=count) > 0
        sends = np.bincount(drawn.sent_in, minlength=count) > 0
        group_of, group = np.zeros(count, dtype=np.int64), 0
        for begin, end in pairwise(drawn.part_pointers.tolist()):
            group, nbytes, is_open = group + 1, 0, False
            for at in range(begin, end):
                piece = drawn.pieces[at]
                alone = bool(facts.layers[piece.layer].matrices) and bool(piece.steps)
                size = self._own_bytes(at) if piece.steps else 0
                full = alone or nbytes + size > JOINED_BYTES
                if is_open and (receives[at] or (piece.steps and full)):
                    group, nbytes, is_open = group + 1, 0, False
                group_of[at] = group
                is_open, nbytes = is_open or bool(piece.steps), nbytes + size
                if is_open and (sends[at] or alone):
                    group, nbytes, is_open = group + 1, 0, False
        return group_of

    def _own_bytes(self, at: int) -> int:
        """Bytes of parameters of a step that its part owns and no other one."""
        piece, facts = self.costs.drawn.pieces[at], self.costs.facts
        layer = facts.layers[piece.layer].layer
        owners = self.owners_of(at)
        if len(owners) != 1 or owners[0] != piece.part:
            return 0
        nbytes = sum(own.elements * own.element_bytes for own in layer.own_parameters)
        return nbytes * piece.tasks // layer.tasks

    def owners_of(self, at: int) -> Int64:
        """Parts that own parameters of a piece."""
        piece = self.costs.drawn.pieces[at]
        if not self.weights.groups_of(piece):
            return np.zeros(0, dtype=np.int64)
        if piece.tasks < self.costs.facts.layers[piece.layer].layer.tasks:
            return self.weights.owners_in(piece)
        if piece.layer not in self.owners:
            self.owners[piece.layer] = self.weights.owners_in(piece)
        return self.owners[piece.layer]

    def numbers_of(self, pieces: Sequence[int]) -> Int64:
        """Weights of which pieces of a part read copies, ascending."""
        numbers = [np.zeros(0, dtype=np.int64)]
        for at in pieces:
            piece = self.costs.drawn.pieces[at]
            owners = self.owners_of(at)
            for group in self.weights.groups_of(piece):
                numbers.append(self.number[group, owners, piece.part])
        every = np.unique(np.concatenate(numbers))
        return every[every >= 0]

    def _own_copies(self, pieces: Sequence[int]) -> frozenset[int]:
        """See `Group.own`."""
        weights, copied = self.weights, set[int]()
        for at in pieces:
            piece, owners = self.costs.drawn.pieces[at], self.owners_of(at)
            if piece.part in owners and (len(owners) > 1 or not weights.has_all_owned(piece)):
                copied.update(weights.groups_of(piece))
        return frozenset(copied)

    def groups_of(self, direction: Direction, chunk: int) -> list[Group]:
        """The groups of a chunk."""
        back, halves = direction is not FORWARD, direction is Direction.WEIGHTS
        key = chunk, back, halves
        if key not in self.groups:
            chunks = self.costs.chunks[BACKWARD if back else FORWARD]
            members: dict[int, list[int]] = {}
            for at in chunks.pieces[chunk].tolist():
                members.setdefault(at if halves else int(self.group_of[at]), []).append(at)
            self.groups[key] = [
                Group(tuple(own), self.numbers_of(own), self._own_copies(own))
                for own in members.values()
            ]
        return self.groups[key]

    def add_jobs(self, jobs: Jobs, part: int, order: Sequence[Sequence[int]]) -> None:
        """Add the jobs of a part, in order."""
        actions = [(DIRECTIONS[of], batch, chunk) for of, batch, chunk in order]
        for direction, _, chunk in actions:
            if direction in (BACKWARD, Direction.WEIGHTS):
                for group in self.groups_of(direction, chunk):
                    self.left[group.numbers] += 1
        spread = self.spread[part]
        jobs.add_each(self.packed[spread], sends=self.messages + spread)
        there = set[int]()  # copies of what the part owns
        for direction, batch, chunk in actions:
            groups = self.groups_of(direction, chunk)
            # Places: group g begins at 2 g + 1, and what follows it is at 2 g + 2.
            cuts = dict[int, Int64]()
            for at, (_, numbers, own) in enumerate(groups):
                if direction is FORWARD:
                    new = numbers[~self.arrived[numbers]]
                    if len(new) or not own <= there:
                        cuts[2 * at + 1] = new
                        self.arrived[new] = True
                        there |= own
                elif direction is not Direction.MAPS:
                    self.left[numbers] -= 1
                    ready = numbers[self.left[numbers] == 0]
                    if len(ready):
                        cuts[2 * at + 2] = ready
                        self.reduced[ready] = True
            self._cut(jobs, direction, batch, chunk, groups, cuts)
        held, returned, collected = (
            numbers[part] for numbers in (self.held, self.returned, self.collected)
        )
        self._gather(jobs, held[~self.arrived[held]])  # nothing reads it
        self._reduce(jobs, returned[~self.reduced[returned]])
        if self.late[part]:
            jobs.add(float(self.late[part]))
        arriving = self.messages + self.count + collected
        jobs.add_each(self.added[collected], awaits=arriving)

    def _gather(self, jobs: Jobs, numbers: Int64) -> None:
        jobs.add_each(self.unpacked[numbers], awaits=self.messages + numbers)

    def _reduce(self, jobs: Jobs, numbers: Int64) -> None:
        jobs.add_each(self.sent[numbers], sends=self.messages + self.count + numbers)

    def _table(self, direction: Direction, batch: int) -> tuple[Float64, Float64]:
        """Seconds of pieces, with those that are memory-bound, and of packing in chunks."""
        size = self.costs.sizes[batch]
        key = direction, size, batch > 0
        if key not in self.tables:
            self.tables[key] = (
                self.costs.of_pieces(*key),
                self.costs.packing(direction, size),
            )
        return self.tables[key]

    def _cut(
        self,
        jobs: Jobs,
        direction: Direction,
        batch: int,
        chunk: int,
        groups: Sequence[Group],
        cuts: Mapping[int, Int64],
    ) -> None:
        """Add the jobs of a chunk that is cut at these places, and of the weights there."""
        chunks = self.costs.chunks[FORWARD if direction is FORWARD else BACKWARD]
        awaits, sends = np.zeros(0, dtype=np.int64), list[tuple[int, int]]()
        if direction is not Direction.WEIGHTS:
            first = self._first_message(direction, batch)
            awaits = chunks.awaits[chunk] + first
            sends = [*self._places(chunks, chunk, groups, first, direction)]
        end = 2 * len(groups)
        end += any(place >= end > 0 for _, place in sends)
        # Nothing comes before the first group unless the chunk begins with messages.
        begins = len(awaits) > 0 or any(place == 0 for _, place in sends)
        if direction is FORWARD and 1 in cuts and not begins:
            cuts = {0 if place == 1 else place: numbers for place, numbers in cuts.items()}
        bounds = [0, *sorted(place for place in cuts if 0 < place < end), end]
        of_pieces, packing = self._table(direction, batch)
        for begin, until in pairwise(bounds):
            is_last = until == end
            if direction is FORWARD and begin in cuts:
                self._gather(jobs, cuts[begin])
            some = range(begin // 2, until // 2)
            members = [at for group in groups[some.start : some.stop] for at in group.pieces]
            seconds, bound = of_pieces[members].sum(axis=0).tolist() if members else (0.0, 0.0)
            if not groups or some.start < len(groups) <= some.stop:  # with the last step
                seconds += float(packing[chunk])
            leaving = [
                number for number, place in sends if begin <= place and (place < until or is_last)
            ]
            jobs.add(
                seconds,
                bound / seconds if seconds else 0.0,
                awaits if begin == 0 else awaits[:0],
                np.array(leaving, dtype=np.int64),
            )
            if direction is not FORWARD and until in cuts:
                self._reduce(jobs, cuts[until])

    def _first_message(self, direction: Direction, batch: int) -> int:
        counts = [len(chunks.senders) for chunks in self.costs.chunks.values()]
        return batch * sum(counts) + (0 if direction is FORWARD else counts[0])

    def _places(
        self,
        chunks: Chunks,
        chunk: int,
        groups: Sequence[Group],
        first: int,
        direction: Direction,
    ) -> Iterator[tuple[int, int]]:
        """The messages of a chunk, and the places at which they depart."""
        place = {at: 2 * number + 2 for number, group in enumerate(groups) for at in group.pieces}
        for message in chunks.sends[chunk].tolist():
            last = int(chunks.last_piece[message])
            if last in place:
                yield message + first, place[last]
            else:  # a piece without a step
                before = [
                    own
                    for at, own in place.items()
                    if (at < last if direction is FORWARD else at > last)
                ]
                yield message + first, max(before, default=0)


def _by_part(numbers: Int64, parts: Int64, k: int) -> list[Int64]:
    """Numbers by their parts, each part's in order."""
    order = np.argsort(parts, kind="stable")
    return np.split(numbers[order], np.searchsorted(parts[order], np.arange(1, k)))
