"""Units of work of all shares -> the order in which each part goes through its own.

A part's program is one sequence for all shares of the batch. Share after share, a part would wait
for others where it could go on; layer after layer, one share waits for another that is late. So the
order is that of a list schedule by estimated costs: of what has arrived, a part takes what most is
behind (HEFT: Topcuoglu et al., IEEE TPDS 13(3), 2002). Backward passes go through it in reverse.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """What a part does at once.

    Attributes
    ----------
    part : int
    seconds : float
        That grow with the samples.
    needs : mapping of int to float
        Numbers of the units, all smaller, that come before it, and how long what they make is on
        its way.
    once : float
        Seconds besides, however many samples there are: the same of all that are alike.
    alike : hashable, optional
        The same in units of other shares that can be done at once with it on their part, layer
        after layer.
    """

    part: int
    seconds: float
    needs: Mapping[int, float]
    once: float = 0.0
    alike: Hashable = None

    @property
    def time(self) -> float:
        """Seconds in all."""
        return self.seconds + self.once


def interleaved(units: Sequence[Unit]) -> list[int]:
    """The numbers of all units, in an order in which each is behind what it needs.

    >>> early, late = Unit(0, 1.0, {}), Unit(1, 3.0, {})
    >>> interleaved([early, late, Unit(0, 1.0, {1: 0.5}), Unit(0, 1.0, {0: 0.0})])
    [0, 1, 3, 2]
    """
    behind: list[dict[int, float]] = [{} for _ in units]
    for number, unit in enumerate(units):
        for other, travel in unit.needs.items():
            behind[other][number] = travel
    left = [0.0] * len(units)  # seconds from a unit's begin to the end of all that is behind it
    for number in reversed(range(len(units))):
        later = (travel + left[other] for other, travel in behind[number].items())
        left[number] = units[number].time + max(later, default=0.0)
    missing = [len(unit.needs) for unit in units]
    arrival = [0.0] * len(units)
    free = [0.0] * (1 + max((unit.part for unit in units), default=0))
    coming: list[list[tuple[float, int]]] = [[] for _ in free]  # by arrival
    ready: list[list[tuple[float, int]]] = [[] for _ in free]  # by what is behind
    for number, unit in enumerate(units):
        if not missing[number]:
            heapq.heappush(coming[unit.part], (0.0, number))
    order: list[int] = []
    while len(order) < len(units):
        # The part that can begin first; nothing that would begin earlier can come about later.
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
        for other, travel in behind[number].items():
            missing[other] -= 1
            arrival[other] = max(arrival[other], end + travel)
            if not missing[other]:
                heapq.heappush(coming[units[other].part], (arrival[other], other))
    return order


def end_of(units: Sequence[Unit], order: Sequence[int]) -> float:
    """When the last is done, where parts go through their units in an order.

    >>> end_of([Unit(0, 1.0, {}), Unit(1, 3.0, {0: 0.5}), Unit(0, 1.0, {})], [0, 2, 1])
    4.5
    """
    ends, free = [0.0] * len(units), dict[int, float]()
    for number in order:
        unit = units[number]
        arrived = (ends[other] + travel for other, travel in unit.needs.items())
        begin = max(free.get(unit.part, 0.0), max(arrived, default=0.0))
        ends[number] = free[unit.part] = begin + unit.time
    return max(ends, default=0.0)
