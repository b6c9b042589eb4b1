"""Dynamic (thesis, chapter 4): an idle part takes whatever of its batches is ready.

What that is depends on what arrives when, so that runs differ: each part finds its order itself
(`DynamicOrder`). The rule's order is the one that there would be if actions and messages took what
they cost; predictions are made of it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol, TypeVar

from hgpart.schedules.costs import CostModel
from hgpart.schedules.needs import FORWARD, Needs
from hgpart.schedules.outline import Outline
from hgpart.schedules.rules.list_scheduling import list_schedule
from hgpart.schedules.rules.sequential import sequential
from hgpart.schedules.schedule import TURNS, Action, Direction, Piece, Schedule

GLUED = (Direction.COLLECT, Direction.UPDATE, Direction.SPREAD, Direction.GATHER)  # in this order
Found = TypeVar("Found")


def dynamic(needs: Needs) -> list[Action]:
    """Updates and backward first, earlier batches first."""
    assert needs.limit is not None

    def priority(action: Action) -> Any:
        return action.direction is FORWARD, action.micro_batch, action.chunk

    return list_schedule(needs, priority, [needs.limit] * len(needs.outlines))


def in_turns(
    turns: Sequence[Sequence[Outline]], batches: int, costs: CostModel, in_flight: int
) -> Schedule:
    """A stream in which batches take turns, in the order that costs make."""
    of_turns = [sequential(Needs(outlines, 1, costs)) for outlines in turns]
    actions: list[Action] = []
    for batch in range(batches):
        own = of_turns[batch % len(turns)]
        actions += [action._replace(micro_batch=batch) for action in own]
        actions += [Action(part, Direction.UPDATE, batch, 0) for part in range(len(turns[0]))]
    outlines = tuple(map(tuple, turns))
    alone = Schedule(TURNS, batches, outlines[0], tuple(actions), in_flight, turns=outlines)
    return replace(alone, order=tuple(as_ready(alone, costs)))


def as_ready(schedule: Schedule, costs: CostModel) -> Iterator[Action]:
    """The actions of a schedule in the order in which parts that take what is ready begin them."""
    inboxes = [_Inbox() for _ in schedule.outlines]
    orders = [DynamicOrder(schedule, part, inbox) for part, inbox in enumerate(inboxes)]
    free_at = [0.0] * schedule.k
    numbers = count()
    events: list[tuple[float, int, int, Sequence[Piece]]] = []  # what arrives at a part when
    for part in range(schedule.k):
        heappush(events, (0.0, next(numbers), part, ()))
    while events:
        now, _, part, pieces = heappop(events)
        inboxes[part].pieces.update(pieces)
        if now < free_at[part]:
            continue  # it looks again when it is free
        for action in orders[part].take() or ():
            yield action
            chunk = schedule.chunk(action)
            free_at[part] = now = now + costs.action(action, chunk)
            for receiver, sent in schedule.sends(action).items():
                arrives = now + costs.travel(action, chunk, receiver)
                heappush(events, (arrives, next(numbers), receiver, sent))
            heappush(events, (now, next(numbers), part, ()))


class _Inbox:
    """What has arrived at a part, in a simulation."""

    def __init__(self) -> None:
        self.pieces: set[Piece] = set()

    def has(self, piece: Piece) -> bool:
        """Whether a piece has arrived."""
        return piece in self.pieces

    def wait_for(self, find: Callable[[], Found | None]) -> Found:
        """Nobody waits in a simulation."""
        raise NotImplementedError


class Arrivals(Protocol):
    """What tells a part what has arrived."""

    def has(self, piece: Piece) -> bool:
        """Whether a piece has arrived."""

    def wait_for(self, find: Callable[[], Found | None]) -> Found:
        """What `find` finds, now or as soon as something else has arrived."""


@dataclass
class _Stage:
    """Actions that are done one right after the other."""

    actions: list[Action] = field(default_factory=list)
    awaits: list[Piece] = field(default_factory=list)


class DynamicOrder:
    """Iterates over a part's actions; of those that are ready, the one that frees most comes first.

    In each batch a part goes through its chunks in order, then updates its weights; it does each of
    these for one batch after the other (of the same turn), so that statistics and weights change in
    the order of the batches. New values of other parts' weights are taken as soon as they arrive,
    for batches that begin afterwards: two parts may compute a batch with values of different age.
    No part has more batches in flight than the schedule says, and no copy lacks more updates than
    that.

    This can't come to a stop: the first batch that is not done everywhere waits for no other.

    Parameters
    ----------
    schedule : Schedule
        The schedule, lowered, of a stream.
    arrivals : Arrivals
        What arrives at the part.
    """

    def __init__(self, schedule: Schedule, part: int, arrivals: Arrivals) -> None:
        assert schedule.in_flight is not None
        self._arrivals, self._limit = arrivals, schedule.in_flight
        outlines = [schedule.outlines_of(at)[part] for at in range(schedule.micro_batches)]
        self._forward = [len(outline.forward) for outline in outlines]
        # Stages of the batch before it in its turn that must be done before a batch begins.
        self._serial = [len(outline.forward) if outline.serial else 1 for outline in outlines]
        self._turns = max(1, len(schedule.turns))
        self._batches = [
            [_Stage() for _ in range(len(outline.forward) + len(outline.backward) + 1)]
            for outline in outlines
        ]
        self._weights: dict[int, deque[_Stage]] = {}  # new values, by owner
        self._sort(schedule, part)
        self._done = [0] * schedule.micro_batches  # stages of each batch
        self._taken: dict[int, int] = defaultdict(int)  # new values, by owner
        self._first = 0  # of the batches that are not done

    def _sort(self, schedule: Schedule, part: int) -> None:
        """Sort the part's actions into the stages of batches, and the values of each owner."""
        values: dict[int, dict[int, _Stage]] = defaultdict(lambda: defaultdict(_Stage))
        for action in schedule.sequences[part]:
            _, direction, number, at, _ = action
            if direction is Direction.FORWARD:
                stage = self._batches[number][at]
            elif direction is Direction.BACKWARD:
                stage = self._batches[number][self._forward[number] + at]
            elif direction is Direction.REDUCE:  # as soon as backward has ended
                stage = self._batches[number][-2]
            elif direction is Direction.GATHER and schedule.travels[at].owner != part:
                stage = values[schedule.travels[at].owner][number]
            elif direction in (Direction.SPREAD, Direction.GATHER):  # what this update has made
                stage = self._batches[number - 1][-1]
            else:
                stage = self._batches[number][-1]
            stage.actions.append(action)
            stage.awaits.extend(schedule.awaits(action))
        for stages in self._batches:
            stages[-1].actions.sort(key=lambda action: GLUED.index(action.direction))
        for owner, by_update in values.items():
            self._weights[owner] = deque(by_update[update] for update in sorted(by_update))

    def __iter__(self) -> Iterator[Action]:
        """Wait for the first action that is ready, again and again."""
        while self._first < len(self._batches) or any(self._weights.values()):
            yield from self._arrivals.wait_for(self.take)

    def take(self) -> Sequence[Action] | None:
        """Actions that are ready, which are done next; None if there are none."""
        for owner, values in self._weights.items():
            if values and self._has_all(values[0]):
                self._taken[owner] += 1
                return values.popleft().actions
        under_way = range(self._first, min(self._first + self._limit, len(self._batches)))
        ready = [batch for batch in under_way if self._is_ready(batch)]
        if not ready:
            return None
        batch = min(ready, key=lambda batch: (self._done[batch] < self._forward[batch], batch))
        stage = self._batches[batch][self._done[batch]]
        self._done[batch] += 1
        self._first += self._done[batch] == len(self._batches[batch])
        return stage.actions

    def _is_ready(self, batch: int) -> bool:
        at, stages = self._done[batch], self._batches[batch]
        if at == len(stages):
            return False
        before = batch - self._turns
        if before >= 0 and self._done[before] < max(at + 1, self._serial[batch] * (at == 0)):
            return False
        if at + 1 == len(stages) and batch > self._first:  # one update after the other
            return False
        if at == 0 and batch and not self._done[batch - 1]:
            return False
        if at == 0:
            least = batch - self._limit + 1  # updates that copies must have
            if any(self._taken[owner] < least for owner in self._weights):
                return False
        return self._has_all(stages[at])

    def _has_all(self, stage: _Stage) -> bool:
        return all(map(self._arrivals.has, stage.awaits))
