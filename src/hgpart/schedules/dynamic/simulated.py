"""Schedule of a stream, costs -> the order in which parts that take what is ready would do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

from hgpart.schedules.costs import CostModel
from hgpart.schedules.dynamic.order import DynamicOrder
from hgpart.schedules.needs import Needs
from hgpart.schedules.outline import Outline
from hgpart.schedules.rules.sequential import sequential
from hgpart.schedules.schedule import TURNS, Action, Direction, Piece, Schedule


def in_turns(
    turns: Sequence[Sequence[Outline]], batches: int, costs: CostModel, in_flight: int
) -> Schedule:
    """A stream in which batches take turns, in the order that costs make."""
    of_turns = [sequential(Needs(outlines, 1, costs)) for outlines in turns]
    actions: list[Action] = []
    for batch in range(batches):
        own = of_turns[batch % len(turns)]
        actions += [action._replace(micro_batch=batch) for action in own]
        actions += [Action(part, Direction.UPDATE, batch, 0) for part in range(len(turns[0]))]
    outlines = tuple(map(tuple, turns))
    alone = Schedule(TURNS, batches, outlines[0], tuple(actions), in_flight, turns=outlines)
    return replace(alone, order=tuple(as_ready(alone, costs)))


def as_ready(schedule: Schedule, costs: CostModel) -> Iterator[Action]:
    """The actions of a schedule in the order in which parts that take what is ready begin them."""
    arrived: list[set[Piece]] = [set() for _ in schedule.outlines]
    orders = [
        DynamicOrder(schedule, part, arrived[part].__contains__) for part in range(schedule.k)
    ]
    free_at = [0.0] * schedule.k
    numbers = count()
    events: list[tuple[float, int, int, Sequence[Piece]]] = []  # what arrives at a part when
    for part in range(schedule.k):
        heappush(events, (0.0, next(numbers), part, ()))
    while events:
        now, _, part, pieces = heappop(events)
        arrived[part].update(pieces)
        if now < free_at[part]:
            continue  # it looks again when it is free
        for action in orders[part].take() or ():
            yield action
            chunk = schedule.chunk(action)
            free_at[part] = now = now + costs.action(action, chunk)
            for receiver, sent in schedule.sends(action).items():
                arrives = now + costs.travel(action, chunk, receiver)
                heappush(events, (arrives, next(numbers), receiver, sent))
            heappush(events, (now, next(numbers), part, ()))
