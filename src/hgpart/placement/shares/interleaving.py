"""Units of work of all shares -> the order in which each part does its own.

A part's program is one sequence for all shares of the batch. Share by share, a part would wait for
others when it could go on; layer by layer, one share would wait for another that is late. So the
order is that of a list schedule by estimated costs: of what has arrived, a part takes the unit with
the longest work after it (HEFT: Topcuoglu et al., IEEE TPDS 13(3), 2002). Backward passes go
through it in reverse.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkUnit:
    """Work that a part does at once.

    Attributes
    ----------
    seconds : float
        Seconds that grow with the samples.
    needs : mapping of int to float
        Numbers of the units before it, all smaller than its own, and the seconds that their results
        take to arrive.
    once : float
        Further seconds that do not depend on the samples; equal for all units that are alike.
    alike : hashable, optional
        Equal for units of other shares that the part can do at once with this one, layer by layer.
    """

    part: int
    seconds: float
    needs: Mapping[int, float]
    once: float = 0.0
    alike: Hashable = None

    @property
    def time(self) -> float:
        """Seconds in total."""
        return self.seconds + self.once


def interleaved(units: Sequence[WorkUnit]) -> list[int]:
    """The numbers of all units, in an order in which each comes after those that it needs.

    >>> early, late = WorkUnit(0, 1.0, {}), WorkUnit(1, 3.0, {})
    >>> interleaved([early, late, WorkUnit(0, 1.0, {1: 0.5}), WorkUnit(0, 1.0, {0: 0.0})])
    [0, 1, 3, 2]
    """
    behind: list[dict[int, float]] = [{} for _ in units]
    for number, unit in enumerate(units):
        for needed, travel in unit.needs.items():
            behind[needed][number] = travel
    left = [0.0] * len(units)  # seconds from a unit's begin to the end of all that follows it
    for number in reversed(range(len(units))):
        later = (travel + left[follower] for follower, travel in behind[number].items())
        left[number] = units[number].time + max(later, default=0.0)
    missing = [len(unit.needs) for unit in units]
    arrival = [0.0] * len(units)
    free = [0.0] * (1 + max((unit.part for unit in units), default=0))
    coming: list[list[tuple[float, int]]] = [[] for _ in free]  # by arrival
    ready: list[list[tuple[float, int]]] = [[] for _ in free]  # by the work that follows
    for number, unit in enumerate(units):
        if not missing[number]:
            heapq.heappush(coming[unit.part], (0.0, number))
    order: list[int] = []
    while len(order) < len(units):
        # The part that can begin first; nothing that becomes ready later can begin earlier.
        begin, part = min(
            (free[part] if ready[part] else max(free[part], coming[part][0][0]), part)
            for part in range(len(free))
            if ready[part] or coming[part]
        )
        while coming[part] and coming[part][0][0] <= begin:
            _, number = heapq.heappop(coming[part])
            heapq.heappush(ready[part], (-left[number], number))
        _, number = heapq.heappop(ready[part])
        order.append(number)
        free[part] = end = begin + units[number].time
        for follower, travel in behind[number].items():
            missing[follower] -= 1
            arrival[follower] = max(arrival[follower], end + travel)
            if not missing[follower]:
                heapq.heappush(coming[units[follower].part], (arrival[follower], follower))
    return order


def end_of(units: Sequence[WorkUnit], order: Sequence[int]) -> float:
    """Seconds until the last unit is done, if parts do their units in this order.

    >>> end_of([WorkUnit(0, 1.0, {}), WorkUnit(1, 3.0, {0: 0.5}), WorkUnit(0, 1.0, {})], [0, 2, 1])
    4.5
    """
    ends, free = [0.0] * len(units), dict[int, float]()
    for number in order:
        unit = units[number]
        arrived = (ends[needed] + travel for needed, travel in unit.needs.items())
        begin = max(free.get(unit.part, 0.0), max(arrived, default=0.0))
        ends[number] = free[unit.part] = begin + unit.time
    return max(ends, default=0.0)
