"""Order of actions + CostModel -> when each of them begins and ends, and who has nothing to do."""

from __future__ import annotations

from collections.abc import Sequence

from hgpart.schedules.costs import CostModel
from hgpart.schedules.outline import Outline
from hgpart.schedules.schedule import Action, Direction, Schedule


def times(
    outlines: Sequence[Outline], order: Sequence[Action], costs: CostModel
) -> list[tuple[float, float]]:
    """Seconds at which each action of a rule's order begins, as soon as it can, and ends."""
    free = [0.0] * len(outlines)
    arrival: dict[tuple[int, bool, int, int], float] = {}
    found = []
    for action in order:
        part, direction, micro_batch, at, _ = action
        if direction is Direction.UPDATE:
            found.append((free[part], free[part]))
            continue
        backward = direction is not Direction.FORWARD
        chunk = (outlines[part].backward if backward else outlines[part].forward)[at]
        begin = free[part]
        if direction is not Direction.WEIGHTS:
            for transfer in chunk.awaits:
                begin = max(begin, arrival[part, backward, micro_batch, transfer])
        free[part] = end = begin + costs.action(action, chunk)
        found.append((begin, end))
        if direction is not Direction.WEIGHTS:
            for receiver, transfers in chunk.messages.items():
                there = end + costs.travel(action, chunk, receiver)
                for transfer in transfers:
                    arrival[receiver, backward, micro_batch, transfer] = there
    return found


def bubble(schedule: Schedule, costs: CostModel) -> float:
    """Share of all parts' time, from a step's begin to its end, in which they do nothing."""
    when = times(schedule.outlines, schedule.order, costs)
    end = max((until for _, until in when), default=0.0)
    return 1 - sum(until - begin for begin, until in when) / (end * schedule.k) if end else 0.0
