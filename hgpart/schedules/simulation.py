"""Order of actions + CostModel -> when each of them begins and ends, and who has nothing to do."""

from __future__ import annotations

from collections.abc import Sequence

from hgpart.schedules.costs import CostModel
from hgpart.schedules.outline import Outline
from hgpart.schedules.schedule import Action, Piece, Schedule


def times(
    outlines: Sequence[Outline], order: Sequence[Action], costs: CostModel
) -> list[tuple[float, float]]:
    """Seconds at which each action of a rule's order begins, as soon as it can, and ends."""
    free = [0.0] * len(outlines)
    arrival: dict[tuple[int, Piece], float] = {}
    schedule = Schedule("", 1, tuple(outlines), tuple(order))
    found = []
    for action in order:
        part = action.part
        begin = max([free[part], *(arrival[part, piece] for piece in schedule.awaits(action))])
        chunk = schedule.chunk(action)
        free[part] = end = begin + costs.action(action, chunk)
        found.append((begin, end))
        for receiver, pieces in schedule.sends(action).items():
            there = end + costs.travel(action, chunk, receiver)
            arrival.update(((receiver, piece), there) for piece in pieces)
    return found


def bubble(schedule: Schedule, costs: CostModel) -> float:
    """Share of all parts' time, from a step's begin to its end, in which they do nothing."""
    when = times(schedule.outlines, schedule.order, costs)
    end = max((until for _, until in when), default=0.0)
    return 1 - sum(until - begin for begin, until in when) / (end * schedule.k) if end else 0.0
