"""Units of work joined in plain Python: a slow checker of what is compiled.

See `hgpart.placement.shares.joining`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

from hgpart.placement.shares.joining import MOST, ROUNDING, WorkUnit

Group = tuple[int, ...]
Run = list[Group]


def interleaved(units: Sequence[WorkUnit]) -> list[int]:
    """The numbers of all units, in an order in which each comes after those that it needs."""
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
    """Seconds until the last unit is done, if parts do their units in this order."""
    ends, free = [0.0] * len(units), dict[int, float]()
    for number in order:
        unit = units[number]
        arrived = (ends[needed] + travel for needed, travel in unit.needs.items())
        begin = max(free.get(unit.part, 0.0), max(arrived, default=0.0))
        ends[number] = free[unit.part] = begin + unit.time
    return max(ends, default=0.0)


def joined(units: Sequence[WorkUnit]) -> list[Group]:
    """The numbers of all units, grouped by what is done at once, as `interleaved` orders them."""
    whole, groups = together(units, [])
    order = interleaved(whole)
    place = {number: at for at, unit in enumerate(order) for number in groups[unit]}
    least, groups_joined, waiting = end_of(whole, order), list[Group](), _runs(units, place)
    for _ in range(MOST // max(1, len(units))):
        if not waiting:
            break
        run = waiting.pop()
        tried, _ = together(units, [*groups_joined, *run])
        end = end_of(tried, interleaved(tried))
        if end <= least * (1 + ROUNDING):
            least = min(end, least)
            groups_joined += run
        else:
            half = len(run[0]) // 2
            halves = ([group[:half] for group in run], [group[half:] for group in run])
            waiting += [half_run for half_run in halves if len(half_run[0]) > 1]
    whole, groups = together(units, groups_joined)
    return [tuple(sorted(groups[number])) for number in interleaved(whole)]


def _runs(units: Sequence[WorkUnit], place: Mapping[int, int]) -> list[Run]:
    """Runs of units that can be joined: one after the other on one part, for the same shares.

    Each group is in the order in which its first units come.
    """
    classes: dict[object, list[int]] = {}
    for number in sorted(range(len(units)), key=place.__getitem__):
        if units[number].alike is not None:
            classes.setdefault((units[number].part, units[number].alike), []).append(number)
    runs: list[Run] = []
    place_in: dict[int, tuple[Run, int]] = {}  # by unit in a run, the number of its share
    # In an order in which groups come after those that precede them on their part.
    for group in sorted(filter(_several, classes.values()), key=min):
        before = [_before(units, number) for number in group]
        known = [place_in[previous] for previous in before if previous in place_in]
        run = known[0][0] if known else []
        goes_on = len(known) == len(group) == len(run[0] if run else ())
        goes_on = goes_on and {id(other_run) for other_run, _ in known} == {id(run)}
        if goes_on and sorted(before) == sorted(run[-1]):
            order = dict(zip((at for _, at in known), group, strict=True))
            run.append(tuple(order[at] for at in range(len(group))))
        else:
            run = [tuple(group)]
            runs.append(run)
        place_in.update({number: (run, at) for at, number in enumerate(run[-1])})
    return runs


def _several(group: Sequence[int]) -> bool:
    return len(group) > 1


def _before(units: Sequence[WorkUnit], number: int) -> int:
    """The unit that a part does just before this one for the same share; -1 if there is none."""
    unit = units[number]
    return max((needed for needed in unit.needs if units[needed].part == unit.part), default=-1)


def together(
    units: Sequence[WorkUnit], some: Collection[Group]
) -> tuple[list[WorkUnit], list[Group]]:
    """The units when some groups of them are one each, and the group of each of these units."""
    joined = {number for group in some for number in group}
    groups = [*some, *((number,) for number in range(len(units)) if number not in joined)]
    group_of = {number: group for group in groups for number in group}
    needs: dict[Group, dict[Group, float]] = {}
    for group in groups:
        own = needs[group] = {}
        for number in group:
            for needed, travel in units[number].needs.items():
                behind = group_of[needed]
                own[behind] = max(travel, own.get(behind, 0.0))
    order = [*TopologicalSorter(needs).static_order()]
    numbers = {group: at for at, group in enumerate(order)}
    merged = [
        replace(
            units[group[0]],
            seconds=sum(units[number].seconds for number in group),
            needs={numbers[needed]: travel for needed, travel in needs[group].items()},
        )
        for group in order
    ]
    return merged, order
