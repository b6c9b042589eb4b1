"""Asynchronous (PipeDream, arXiv 1806.03377; thesis, chapter 4): batch after batch, no flush.

A part updates its weights as soon as it has all gradients of a batch, and goes on with other
batches, whose forward passes have begun without that update. Where other parts have copies of its
weights, it waits until their gradients are expected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hgpart.schedules.needs import FORWARD, UPDATE, Needs
from hgpart.schedules.rules.list_scheduling import list_schedule
from hgpart.schedules.schedule import Action
from hgpart.schedules.simulation import times

TICKS = 2**40  # of a simulation: whole numbers, so that times that are equal compare as equal
ALIKE = 1 + 1e-6  # ratio up to which times count as equal


def asynchronous(needs: Needs) -> list[Action]:
    """Let each batch do what a batch in the middle of others does (modulo scheduling).

    A batch follows the one before by a fixed period. So the order of a few batches is the begin of
    the order of more. More batches in flight can make a worse order, so several numbers of batches
    in flight are tried; the order that ends first wins, and of equal ones the one with the most
    batches.
    """
    assert needs.limit is not None
    counts = {*range(1, min(needs.limit, max(needs.in_flight)) + 1), needs.limit}
    candidates = [_repeated(needs, count) for count in sorted(counts, reverse=True)]
    more_batches = replace(needs, micro_batches=4 * needs.limit + 8)
    ends = [_end(more_batches, candidate) for candidate in candidates]
    fastest = ALIKE * min(ends)
    best = next(order for order, end in zip(candidates, ends, strict=True) if end <= fastest)
    return best.order(needs)


@dataclass(frozen=True, eq=False)
class _Repeated:
    """When a batch begins its actions; the next batch begins them a period later."""

    begin: Callable[[Action], int]
    period: int

    def order(self, needs: Needs) -> list[Action]:
        """The order of all batches."""

        def key(action: Action) -> tuple[int, int, int]:
            begin = self.begin(action) + action.micro_batch * self.period
            return begin, action.micro_batch, needs.rank(action)

        return sorted(needs.actions(), key=key)


def _end(needs: Needs, repeated: _Repeated) -> float:
    return max(end for _, end in times(needs.outlines, repeated.order(needs), needs.costs))


def _repeated(needs: Needs, count: int) -> _Repeated:
    """Repeat a batch from a list schedule of some batches, `count` at a time in a part.

    Backward comes first there. The period is such that no part exceeds its batches in flight.
    """
    assert needs.limit is not None
    middle = 2 * count + 2  # the batches after it follow the same pattern

    def priority(action: Action) -> Any:
        return (
            action.direction is not UPDATE,
            action.direction is FORWARD,
            action.micro_batch,
            action.chunk,
        )

    more_batches = replace(needs, micro_batches=2 * middle)
    simulated = list_schedule(more_batches, priority, [count] * len(needs.outlines))
    when = times(needs.outlines, simulated, needs.costs)
    tick = max(end for _, end in when) / TICKS or 1.0
    begins = {action: int(begin / tick) for action, (begin, _) in zip(simulated, when, strict=True)}

    def begin(action: Action, batch: int = middle) -> int:
        if action.direction is UPDATE:
            before = needs.before(action)
            needed = (last for last in before if last.direction is not UPDATE)
            return max(ready(action.part, last._replace(micro_batch=batch)) for last in needed)
        return begins[action._replace(micro_batch=batch)]

    def ready(owner: int, last: Action) -> int:
        if last.part == owner:  # at the same time, and after it by its rank
            return begins[last]
        nbytes, costs = dict(needs.outlines[last.part].owners)[owner], needs.costs
        chunk = needs.chunks(last.part, last.direction)[last.chunk]
        seconds = costs.action(last, chunk) + costs.exchange(last.part, owner, nbytes)
        return begins[last] + int(seconds / tick)

    period = 0
    for part, outline in enumerate(needs.outlines):
        first, last = (Action(part, FORWARD, 0, at) for at in (0, len(outline.forward) - 1))
        between = -((begin(first, middle - count) - begin(first)) // count)
        owners = (part, *dict(outline.owners))
        stay = max(begin(Action(owner, UPDATE, 0, 0)) for owner in owners) - begin(first)
        waits = begin(last) - begin(first) if outline.serial else 0
        period = max(period, between, -(-stay // needs.limit), waits)
    return _Repeated(begin, period)
