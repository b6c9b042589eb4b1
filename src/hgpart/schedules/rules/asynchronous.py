"""Asynchronous (PipeDream, arXiv 1806.03377; thesis, chapter 4): batch after batch, no flush.

A part updates its weights as soon as a batch's gradients on it are complete, and goes on with other
batches, whose forward passes have begun without that update. Where other parts have copies of its
weights, it is as soon as their gradients should have come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hgpart.schedules.needs import FORWARD, UPDATE, Needs
from hgpart.schedules.rules.list_scheduling import list_schedule
from hgpart.schedules.schedule import Action
from hgpart.schedules.simulation import times

TICKS = 2**40  # of a simulation: exact numbers, so that what comes at the same time is seen to
ALIKE = 1 + 1e-6  # times that differ by no more


def asynchronous(needs: Needs) -> list[Action]:
    """What each batch does when is what one of them does in the midst of others, a period later.

    So the order of any number of batches is the begin of the order of more (modulo scheduling).
    More batches at a time can make a worse order: of those by as many as there may be in flight, or
    fewer, the one counts that ends first, and of several the one with the most.
    """
    assert needs.limit is not None
    counts = {*range(1, min(needs.limit, max(needs.in_flight)) + 1), needs.limit}
    found = [_repeated(needs, count) for count in sorted(counts, reverse=True)]
    several = replace(needs, micro_batches=4 * needs.limit + 8)
    ends = [_end(several, one) for one in found]
    best = next(one for one, end in zip(found, ends, strict=True) if end <= ALIKE * min(ends))
    return best.order(needs)


@dataclass(frozen=True, eq=False)
class _Repeated:
    """When a batch begins its actions; the next one does so a period later."""

    begin: Callable[[Action], int]
    period: int

    def order(self, needs: Needs) -> list[Action]:
        """Of all batches."""

        def key(one: Action) -> tuple[int, int, int]:
            begin = self.begin(one) + one.micro_batch * self.period
            return begin, one.micro_batch, needs.rank(one)

        return sorted(needs.actions(), key=key)


def _end(needs: Needs, repeated: _Repeated) -> float:
    return max(end for _, end in times(needs.outlines, repeated.order(needs), needs.costs))


def _repeated(needs: Needs, count: int) -> _Repeated:
    """From a list scheduling by cost of some batches, `count` at a time in a part, backward first.

    The period is such that no part has more batches in flight than it may.
    """
    assert needs.limit is not None
    middle = 2 * count + 2  # batches behind it do as much

    def priority(one: Action) -> Any:
        return one.direction is not UPDATE, one.direction is FORWARD, one.micro_batch, one.chunk

    several = replace(needs, micro_batches=2 * middle)
    simulated = list_schedule(several, priority, [count] * len(needs.outlines))
    when = times(needs.outlines, simulated, needs.costs)
    tick = max(end for _, end in when) / TICKS or 1.0
    begins = {one: int(begin / tick) for one, (begin, _) in zip(simulated, when, strict=True)}

    def begin(one: Action, batch: int = middle) -> int:
        if one.direction is UPDATE:
            needed = (each for each in needs.before(one) if each.direction is not UPDATE)
            return max(there(one.part, each._replace(micro_batch=batch)) for each in needed)
        return begins[one._replace(micro_batch=batch)]

    def there(owner: int, last: Action) -> int:
        if last.part == owner:  # at once behind it, by its rank
            return begins[last]
        nbytes, costs = dict(needs.outlines[last.part].owners)[owner], needs.costs
        chunk = needs.chunks(last.part, last.direction)[last.chunk]
        taken = costs.action(last, chunk) + costs.exchange(last.part, owner, nbytes)
        return begins[last] + int(taken / tick)

    period = 0
    for part, outline in enumerate(needs.outlines):
        first, last = (Action(part, FORWARD, 0, at) for at in (0, len(outline.forward) - 1))
        between = -((begin(first, middle - count) - begin(first)) // count)
        owners = (part, *dict(outline.owners))
        stay = max(begin(Action(one, UPDATE, 0, 0)) for one in owners) - begin(first)
        waits = begin(last) - begin(first) if outline.serial else 0
        period = max(period, between, -(-stay // needs.limit), waits)
    return _Repeated(begin, period)
