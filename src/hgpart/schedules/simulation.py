"""Order of actions + CostModel -> when each action begins and ends, and how long parts idle."""

from __future__ import annotations

from collections.abc import Sequence

from hgpart.schedules.costs import CostModel
from hgpart.schedules.outline import Outline
from hgpart.schedules.schedule import Action, Direction, Schedule


def times_of(schedule: Schedule, costs: CostModel) -> list[tuple[float, float]]:
    """Begin and end of each action of a rule's schedule in seconds, each as early as possible."""
    return times(schedule.outlines, schedule.order, costs, schedule.turns)


def times(
    outlines: Sequence[Outline],
    order: Sequence[Action],
    costs: CostModel,
    turns: Sequence[Sequence[Outline]] = (),
) -> list[tuple[float, float]]:
    """The same of an order; `turns` are the outlines of batches that take turns."""
    free = [0.0] * len(outlines)
    arrival: dict[tuple[int, bool, int, int], float] = {}
    spans = []
    for action in order:
        part, direction, micro_batch, number, _ = action
        if direction is Direction.UPDATE:
            spans.append((free[part], free[part]))
            continue
        backward = direction is not Direction.FORWARD
        outline = (turns[micro_batch % len(turns)] if turns else outlines)[part]
        chunk = (outline.backward if backward else outline.forward)[number]
        begin = free[part]
        if direction is not Direction.WEIGHTS:
            for transfer in chunk.awaits:
                begin = max(begin, arrival[part, backward, micro_batch, transfer])
        free[part] = end = begin + costs.action(action, chunk)
        spans.append((begin, end))
        if direction is not Direction.WEIGHTS:
            for receiver, transfers in chunk.messages.items():
                arrives = end + costs.travel(action, chunk, receiver)
                for transfer in transfers:
                    arrival[receiver, backward, micro_batch, transfer] = arrives
    return spans


def bubble(schedule: Schedule, costs: CostModel) -> float:
    """The fraction of all parts' time, from begin to end of a step, in which they do nothing."""
    spans = times_of(schedule, costs)
    total = max((end for _, end in spans), default=0.0)
    return 1 - sum(end - begin for begin, end in spans) / (total * schedule.k) if total else 0.0
