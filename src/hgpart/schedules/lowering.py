"""Schedule + what parts read of each other's weights -> the same order, with all that travels.

Rules order what is computed. Here weights that several parts compute with become actions of that
order: their owners send them as soon as they have them; a part waits for copies of them in front of
the first action that reads them, lets the gradients of copies depart behind the last one that adds
to them, and adds up those of its own at the end, or in front of its update. Where that is in the
midst of a chunk, the chunk is cut into pieces. Each action still stands behind what it needs: so it
can't deadlock unless the rule's order does.

As `torch.distributed.pipelining` does with its UNSHARD and REDUCE_GRAD.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from hgpart.schedules.outline import Line, Uses
from hgpart.schedules.schedule import Action, Direction, Schedule, Travel

FORWARD, BACKWARD, WEIGHTS = Direction.FORWARD, Direction.BACKWARD, Direction.WEIGHTS
SPREAD, GATHER = Direction.SPREAD, Direction.GATHER
REDUCE, COLLECT = Direction.REDUCE, Direction.COLLECT


def lower(
    schedule: Schedule, travels: Sequence[Travel], back: Sequence[int], uses: Sequence[Uses]
) -> Schedule:
    """Put all that travels of weights into the order of a schedule.

    Parameters
    ----------
    schedule : Schedule
        As a rule makes it.
    travels : sequence of Travel
        The place of each of them is its number.
    back : sequence of int
        These numbers, in the order in which gradients are added up.
    uses : sequence of Uses
        What each part reads copies of.

    Returns
    -------
    Schedule
        The same one, if nothing travels or there are no backward passes: copies are then like what
        they are of when a pass begins.
    """
    if not travels or not schedule.backward:
        return schedule
    if schedule.in_flight is not None:
        order = tuple(_stream(schedule, travels, back))
        return replace(schedule, order=order, travels=tuple(travels))
    lowering = _Step(schedule, travels, back, uses)
    order = tuple(lowering.order())
    return replace(schedule, order=order, travels=tuple(travels), departing=lowering.departing)


class _Step:
    """The order of a step, in which each of the weights travels once there and once back."""

    def __init__(
        self,
        schedule: Schedule,
        travels: Sequence[Travel],
        back: Sequence[int],
        uses: Sequence[Uses],
    ) -> None:
        self._schedule, self._travels, self._back, self._uses = schedule, travels, back, uses
        self._halved = {
            (action.part, action.micro_batch)
            for action in schedule.order
            if action.direction is WEIGHTS
        }
        self._come: list[set[int]] = [set() for _ in uses]
        self._left: list[Counter[int]] = [Counter() for _ in uses]  # lines that add to gradients
        for action in schedule.order:
            if action.direction in (BACKWARD, WEIGHTS):
                for line in self._lines(action):
                    self._left[action.part].update(line.weights)
        self.departing: dict[Action, tuple[int, ...]] = {}

    def order(self) -> Iterator[Action]:
        """All actions of all parts."""
        for number, travel in enumerate(self._travels):
            if travel.owner != travel.holder:
                yield Action(travel.owner, SPREAD, 0, number)
        for action in self._schedule.order:
            if action.direction is FORWARD:
                yield from self._forward(action)
            elif action.direction in (BACKWARD, WEIGHTS):
                yield from self._backward(action)
            else:
                yield action
        for number, travel in enumerate(self._travels):
            if number not in self._come[travel.holder]:  # nothing reads it
                yield Action(travel.holder, GATHER, 0, number)
        for number in self._back:
            owner, holder = self._travels[number]
            if owner != holder and number not in self._left[holder]:  # nothing adds to it
                yield Action(holder, REDUCE, 0, number)
        for number in self._back:
            yield Action(self._travels[number].owner, COLLECT, 0, number)

    def _lines(self, action: Action) -> Sequence[Line]:
        uses = self._uses[action.part]
        if action.direction is FORWARD:
            return uses.forward[action.chunk]
        halved = (action.part, action.micro_batch) in self._halved
        return (uses.in_halves if halved else uses.backward)[action.chunk]

    def _forward(self, action: Action) -> Iterator[Action]:
        """Wait for copies in front of what reads them; all at once if it is computed again."""
        come, lines = self._come[action.part], self._lines(action)
        again = action.chunk in self._schedule.outlines[action.part].again
        awaited = dict[int, list[int]]()  # by the place in front of which that is
        for line in lines:
            new = [number for number in line.weights if number not in come]
            come.update(new)
            if new:
                awaited.setdefault(0 if again else line.place, []).extend(new)
        for piece in self._pieces(action, lines, awaited):
            for number in awaited.get(piece.piece[0] if piece.piece else 0, ()):
                yield Action(action.part, GATHER, 0, number)
            yield piece

    def _backward(self, action: Action) -> Iterator[Action]:
        """Let gradients depart behind the last line that adds to them."""
        left, lines = self._left[action.part], self._lines(action)
        ready = dict[int, list[int]]()  # by the place behind which that is
        for line in lines:
            left.subtract(line.weights)
            numbers = [
                number
                for number in line.weights
                if not left[number] and self._travels[number].owner != action.part
            ]
            if numbers:
                ready[line.end] = numbers
        for piece in self._pieces(action, lines, ready):
            yield piece
            for number in ready.get(piece.piece[1] if piece.piece else _end(lines), ()):
                yield Action(action.part, REDUCE, 0, number)

    def _pieces(
        self, action: Action, lines: Sequence[Line], cuts: Collection[int]
    ) -> Iterator[Action]:
        """An action in pieces that begin at some places."""
        inner = sorted(cut for cut in cuts if 0 < cut < _end(lines))
        if not inner:
            yield action
            return
        messages = {} if action.direction is WEIGHTS else self._schedule.chunk(action).messages
        departs = {
            receiver: max(line.place for line in lines if not {*line.sends}.isdisjoint(numbers))
            for receiver, numbers in messages.items()
        }
        for begin, end in pairwise([0, *inner, _end(lines)]):
            piece = action._replace(piece=(begin, end))
            if action.direction is not WEIGHTS:
                self.departing[piece] = tuple(
                    receiver for receiver, place in departs.items() if begin <= place < end
                )
            yield piece


def _end(lines: Sequence[Line]) -> int:
    """A place behind all of them."""
    return lines[-1].end if lines else 0


def _stream(schedule: Schedule, travels: Sequence[Travel], back: Sequence[int]) -> Iterator[Action]:
    """The order of a stream, in which they travel once for each batch, and back.

    A batch begins with the same weights in all parts: those that their owner has when the first of
    them begins it. The weights that the first batch begins with are there, those behind the last
    one are sent by nobody.
    """
    between: dict[Travel, list[int]] = {}  # numbers, by owner and holder
    spread: list[list[int]] = [[] for _ in range(schedule.k)]  # by owner
    collected: list[list[int]] = [[] for _ in range(schedule.k)]
    reduced: list[list[int]] = [[] for _ in range(schedule.k)]  # by holder
    for number, travel in enumerate(travels):
        between.setdefault(travel, []).append(number)
        spread[travel.owner].append(number)
    for number in back:
        owner, holder = travels[number]
        collected[owner].append(number)
        if owner != holder:
            reduced[holder].append(number)
    updates = [0] * schedule.k
    there = [[0] * schedule.k for _ in updates]  # by part and owner, updates that copies have

    def arriving(part: int, owner: int, wanted: int) -> Iterator[Action]:
        for update in range(there[part][owner] + 1, wanted + 1):
            for number in between.get(Travel(owner, part), ()):
                yield Action(part, GATHER, update, number)
        there[part][owner] = wanted

    for action in schedule.order:
        part, direction, batch, chunk, _ = action
        if direction is FORWARD and chunk == 0:
            for owner in range(schedule.k):
                yield from arriving(part, owner, batch - schedule.staleness[owner][batch])
        if direction is Direction.UPDATE:
            yield from (Action(part, COLLECT, batch, number) for number in collected[part])
        yield action
        if direction is BACKWARD and chunk == len(schedule.outlines[part].backward) - 1:
            yield from (Action(part, REDUCE, batch, number) for number in reduced[part])
        if direction is Direction.UPDATE:
            updates[part] += 1
            if updates[part] < schedule.micro_batches:
                for number in spread[part]:
                    yield Action(part, SPREAD, updates[part], number)
    for part in range(schedule.k):
        for owner in range(schedule.k):
            yield from arriving(part, owner, schedule.micro_batches - 1)
