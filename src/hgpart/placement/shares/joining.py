"""Units of work of all shares -> which of them are done at once, and in which order.

Shares for which a part has the same to do in the same layers can be one batch there: it goes
through their weights once, and its products are larger. But then the first share waits for the
last. So runs of consecutive units are joined where that does not put off the end of the list
schedule of all parts; where all shares together would, each half of them is looked at, in the order
in which they come. Backward passes go through it in reverse, and take as many times as long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

from hgpart.placement.shares.interleaving import Unit, end_of, interleaved

MOST = 200_000  # units in all schedules that are looked at: some seconds
ROUNDING = 1e-9

Group = tuple[int, ...]
Run = list[Group]


def joined(units: Sequence[Unit]) -> list[Group]:
    """The numbers of all units, together what is done at once, in an order as `interleaved`.

    >>> same = [Unit(0, 1.0, {}, once=0.5, alike="conv") for share in range(2)]
    >>> joined([*same, Unit(1, 9.0, {1: 0.1})])
    [(1,), (0,), (2,)]
    >>> joined([*same, Unit(0, 9.0, {1: 0.1})])
    [(0, 1), (2,)]
    """
    whole, groups = together(units, [])
    order = interleaved(whole)
    place = {number: at for at, unit in enumerate(order) for number in groups[unit]}
    least, found, waiting = end_of(whole, order), list[Group](), _runs(units, place)
    for _ in range(MOST // max(1, len(units))):
        if not waiting:
            break
        run = waiting.pop()
        tried, _ = together(units, [*found, *run])
        end = end_of(tried, interleaved(tried))
        if end <= least * (1 + ROUNDING):
            least = min(end, least)
            found += run
        else:
            half = len(run[0]) // 2
            halves = ([group[:half] for group in run], [group[half:] for group in run])
            waiting += [one for one in halves if len(one[0]) > 1]
    whole, groups = together(units, found)
    return [tuple(sorted(groups[number])) for number in interleaved(whole)]


def _runs(units: Sequence[Unit], place: Mapping[int, int]) -> list[Run]:
    """What can be joined: one behind the other on one part, of the same shares.

    Each group is in the order in which its first units come.
    """
    classes: dict[object, list[int]] = {}
    for number in sorted(range(len(units)), key=place.__getitem__):
        if units[number].alike is not None:
            classes.setdefault((units[number].part, units[number].alike), []).append(number)
    runs: list[Run] = []
    place_in: dict[int, tuple[Run, int]] = {}  # by unit that is in a run, which of the shares
    # In an order in which what comes before a group, on its part, is looked at before it.
    for group in sorted(filter(_several, classes.values()), key=min):
        before = [_before(units, number) for number in group]
        known = [place_in[one] for one in before if one in place_in]
        run = known[0][0] if known else []
        goes_on = len(known) == len(group) == len(run[0] if run else ())
        goes_on = goes_on and {id(one) for one, _ in known} == {id(run)}
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


def _before(units: Sequence[Unit], number: int) -> int:
    """What a part does just before a unit for the same share; -1 if there is nothing."""
    unit = units[number]
    return max((one for one in unit.needs if units[one].part == unit.part), default=-1)


def together(units: Sequence[Unit], some: Collection[Group]) -> tuple[list[Unit], list[Group]]:
    """Units of which some are one, and which these are."""
    joined = {number for group in some for number in group}
    groups = [*some, *((number,) for number in range(len(units)) if number not in joined)]
    group_of = {number: group for group in groups for number in group}
    needs: dict[Group, dict[Group, float]] = {}
    for group in groups:
        own = needs[group] = {}
        for number in group:
            for other, travel in units[number].needs.items():
                behind = group_of[other]
                own[behind] = max(travel, own.get(behind, 0.0))
    order = [*TopologicalSorter(needs).static_order()]
    numbers = {group: at for at, group in enumerate(order)}
    found = [
        replace(
            units[group[0]],
            seconds=sum(units[number].seconds for number in group),
            needs={numbers[other]: travel for other, travel in needs[group].items()},
        )
        for group in order
    ]
    return found, order
