"""Schedule + what parts read of each other's weights -> the same order with all that travels.

Rules order computation only. Here the weights that several parts compute with are added as
actions: their owner sends them as soon as it has them; a part waits for its copies before the first
action that reads them, sends the gradients of its copies after the last action that adds to them,
and adds up the gradients of its own weights at the end, or before its update. Where such a place is
inside a chunk, the chunk is cut into pieces. Each action still stands after what it needs: so the
lowered order can't deadlock unless the rule's order does.

`torch.distributed.pipelining` does the same with its actions UNSHARD and REDUCE_GRAD.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, pairwise
from operator import attrgetter

from hgpart.schedules.outline import Computation, Uses
from hgpart.schedules.schedule import Action, Direction, Schedule, Travel

FORWARD, BACKWARD, WEIGHTS = Direction.FORWARD, Direction.BACKWARD, Direction.WEIGHTS
SPREAD, GATHER = Direction.SPREAD, Direction.GATHER
REDUCE, COLLECT = Direction.REDUCE, Direction.COLLECT


def lower(
    schedule: Schedule, travels: Sequence[Travel], back: Sequence[int], uses: Sequence[Uses]
) -> Schedule:
    """Add all weights that travel to the order of a schedule.

    Parameters
    ----------
    schedule : Schedule
        Schedule of a rule.
    travels : sequence of Travel
        Weights that travel; their place is their number.
    back : sequence of int
        Numbers of the travels, in the order in which gradients are added up.
    uses : sequence of Uses
        The copies that each part reads.

    Returns
    -------
    Schedule
        The same object if nothing travels or there are no backward passes: copies then equal
        their originals when a pass begins.
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
    """The order of a step, in which all weights travel once there and once back."""

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
        self._arrived: list[set[int]] = [set() for _ in uses]
        # Computations that add to gradients.
        self._left: list[Counter[int]] = [Counter() for _ in uses]
        for action in schedule.order:
            if action.direction in (BACKWARD, WEIGHTS):
                for computation in self._computations(action):
                    self._left[action.part].update(computation.weights)
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
            if number not in self._arrived[travel.holder]:  # nothing reads it
                yield Action(travel.holder, GATHER, 0, number)
        for number in self._back:
            owner, holder = self._travels[number]
            if owner != holder and number not in self._left[holder]:  # nothing adds to it
                yield Action(holder, REDUCE, 0, number)
        for number in self._back:
            yield Action(self._travels[number].owner, COLLECT, 0, number)

    def _computations(self, action: Action) -> Sequence[Computation]:
        uses = self._uses[action.part]
        if action.direction is FORWARD:
            return uses.forward[action.chunk]
        halved = (action.part, action.micro_batch) in self._halved
        return (uses.in_halves if halved else uses.backward)[action.chunk]

    def _forward(self, action: Action) -> Iterator[Action]:
        """Wait for copies before what reads them."""
        arrived, computations = self._arrived[action.part], self._computations(action)
        awaited = dict[int, list[int]]()  # by the place before which that is
        for computation in computations:
            new = [number for number in computation.weights if number not in arrived]
            arrived.update(new)
            if new:
                awaited.setdefault(computation.place, []).extend(new)
        for piece in self._pieces(action, computations, awaited):
            for number in awaited.get(piece.piece[0] if piece.piece else 0, ()):
                yield Action(action.part, GATHER, 0, number)
            yield piece

    def _backward(self, action: Action) -> Iterator[Action]:
        """Send gradients after the last computation that adds to them."""
        left, computations = self._left[action.part], self._computations(action)
        ready = dict[int, list[int]]()  # by the place after which that is
        for computation in computations:
            left.subtract(computation.weights)
            numbers = [
                number
                for number in computation.weights
                if not left[number] and self._travels[number].owner != action.part
            ]
            if numbers:
                ready[computation.end] = numbers
        for piece in self._pieces(action, computations, ready):
            yield piece
            for number in ready.get(piece.piece[1] if piece.piece else _end(computations), ()):
                yield Action(action.part, REDUCE, 0, number)

    def _pieces(
        self, action: Action, computations: Sequence[Computation], cuts: Collection[int]
    ) -> Iterator[Action]:
        """Cut an action into pieces that begin at these places."""
        inner = sorted(cut for cut in cuts if 0 < cut < _end(computations))
        if not inner:
            yield action
            return
        messages = {} if action.direction is WEIGHTS else self._schedule.chunk(action).messages
        departs = {
            receiver: max(
                computation.place
                for computation in computations
                if not {*computation.sends}.isdisjoint(numbers)
            )
            for receiver, numbers in messages.items()
        }
        for begin, end in pairwise([0, *inner, _end(computations)]):
            piece = action._replace(piece=(begin, end))
            if action.direction is not WEIGHTS:
                self.departing[piece] = tuple(
                    receiver for receiver, place in departs.items() if begin <= place < end
                )
            yield piece


def _end(computations: Sequence[Computation]) -> int:
    """The place after the last of them."""
    return computations[-1].end if computations else 0


def lower_turns(
    schedule: Schedule, travels: Sequence[Travel], of_turns: Sequence[Sequence[Travel]]
) -> Schedule:
    """Add all weights that travel to the order of a stream in which batches take turns.

    Each update is sent to all copies of its weights, as the next turns need them, and gradients
    come back from the copies that a batch was computed with.

    Parameters
    ----------
    travels : sequence of Travel
        Weights of which some part has copies; their place is their number.
    of_turns : sequence of sequence of Travel
        The same for each turn alone. Their numbers go on from those of `travels`, turn by turn.
    """
    numbers, first = list[range](), len(travels)
    for travels_of_turn in of_turns:
        numbers.append(range(first, first + len(travels_of_turn)))
        first += len(travels_of_turn)
    every = (*travels, *chain.from_iterable(of_turns))
    order: list[Action] = []
    by_batch = sorted(schedule.order, key=attrgetter("micro_batch"))
    for batch, actions in groupby(by_batch, key=attrgetter("micro_batch")):
        if batch:
            for number, (owner, holder) in enumerate(travels):
                order += [
                    Action(owner, SPREAD, batch, number),
                    Action(holder, GATHER, batch, number),
                ]
        computed, updates = list[Action](), list[Action]()
        for action in actions:
            (updates if action.direction is Direction.UPDATE else computed).append(action)
        order += computed
        for number in reversed(numbers[batch % len(of_turns)]):
            owner, holder = every[number]
            if owner != holder:
                order.append(Action(holder, REDUCE, batch, number))
            order.append(Action(owner, COLLECT, batch, number))
        order += updates
    return replace(schedule, order=tuple(order), travels=every)


def _stream(schedule: Schedule, travels: Sequence[Travel], back: Sequence[int]) -> Iterator[Action]:
    """The order of a stream, in which weights travel once for each batch, and gradients back.

    A batch begins with the same weights in all parts: those that their owner has when the first of
    these parts begins it. The parts have the weights of the first batch already, and those after
    the last batch are sent by nobody.
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
    copied = [[0] * schedule.k for _ in updates]  # by part and owner, updates that copies have

    def arriving(part: int, owner: int, wanted: int) -> Iterator[Action]:
        for update in range(copied[part][owner] + 1, wanted + 1):
            for number in between.get(Travel(owner, part), ()):
                yield Action(part, GATHER, update, number)
        copied[part][owner] = wanted

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
