"""Units of work of all shares -> which of them are done at once, and in which order.

If a part has the same work in the same layers for several shares, these can be one batch there: it
goes through the weights once, and products are larger. But then the first share waits for the last.
So runs of consecutive units are joined where this does not delay the end of the list schedule of
all parts; if joining all shares would, each half of them is tried, in the order in which they come.
Backward passes go through it in reverse; all of them take longer by the same factor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

from hgpart.placement.shares.interleaving import WorkUnit, end_of, interleaved

MOST = 200_000  # units in all schedules that are tried: some seconds
ROUNDING = 1e-9

Group = tuple[int, ...]
Run = list[Group]


def joined(units: Sequence[WorkUnit]) -> list[Group]:
    """The numbers of all units, grouped by what is done at once, in an order as of `interleaved`.

    >>> same = [WorkUnit(0, 1.0, {}, once=0.5, alike="conv") for share in range(2)]
    >>> joined([*same, WorkUnit(1, 9.0, {1: 0.1})])
    [(1,), (0,), (2,)]
    >>> joined([*same, WorkUnit(0, 9.0, {1: 0.1})])
    [(0, 1), (2,)]
    """
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
