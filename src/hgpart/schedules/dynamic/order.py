"""Schedule of a stream + what has arrived -> a part's actions, each as soon as it is ready.

A part that would wait does something for another batch meanwhile (thesis, chapter 4). Which it is
depends on what arrives when, so that runs differ.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hgpart.schedules.schedule import Action, Direction, Piece, Schedule

GLUED = (Direction.COLLECT, Direction.UPDATE, Direction.SPREAD, Direction.GATHER)  # in this order
Ready = Callable[[], Sequence[Action] | None]  # the actions to do next, if any are ready


@dataclass
class _Stage:
    """Actions that are done one right after the other."""

    actions: list[Action] = field(default_factory=list)
    awaits: list[Piece] = field(default_factory=list)


class DynamicOrder:
    """Deals out a part's actions; of those that are ready, the one that frees most comes first.

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
    has : callable
        Whether a piece has arrived at the part.
    """

    def __init__(self, schedule: Schedule, part: int, has: Callable[[Piece], bool]) -> None:
        assert schedule.in_flight is not None
        self._has, self._limit = has, schedule.in_flight
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

    def actions(self, wait_for: Callable[[Ready], Sequence[Action]]) -> Iterator[Action]:
        """All actions of the part; `wait_for` waits until a function finds some that are ready."""
        while self._first < len(self._batches) or any(self._weights.values()):
            yield from wait_for(self.take)

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
        """Whether the next stage of a batch, which is not done, can be done."""
        at, stages, before = self._done[batch], self._batches[batch], batch - self._turns
        if at == len(stages):
            return False
        if before >= 0 and self._done[before] <= at:  # one batch after the other of its turn
            return False
        if at == 0 and not self._may_begin(batch):
            return False
        if at + 1 == len(stages) and batch > self._first:  # one update after the other
            return False
        return self._has_all(stages[at])

    def _may_begin(self, batch: int) -> bool:
        """Whether a batch may begin, by the batches before it and the age of copies."""
        before, least_updates = batch - self._turns, batch - self._limit + 1
        in_order = batch == 0 or self._done[batch - 1] > 0
        after_state = before < 0 or self._done[before] >= self._serial[batch]
        return (
            in_order
            and after_state
            and all(self._taken[owner] >= least_updates for owner in self._weights)
        )

    def _has_all(self, stage: _Stage) -> bool:
        return all(map(self._has, stage.awaits))
