"""Needs + priority -> order: each free part takes the best of the actions that are ready."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from hgpart.schedules.needs import FORWARD, Needs
from hgpart.schedules.schedule import Action


def list_schedule(
    needs: Needs, priority: Callable[[Action], Any], alive: Sequence[int]
) -> list[Action]:
    """Order actions as they begin in a simulation by their costs.

    No limit can bring it to a stop: each part begins micro-batches in order, so no part holds back
    the first that is not done everywhere.

    Parameters
    ----------
    priority : callable
        Sort key: among a part's ready actions the smallest runs first.
    alive : sequence of int
        Micro-batches that each part may have begun and not ended.
    """
    missing: dict[Action, int] = {}
    behind: dict[Action, list[Action]] = defaultdict(list)
    left: dict[tuple[int, int], int] = defaultdict(int)  # by part and micro-batch, actions to do
    for action in needs.actions():
        before = [*needs.before(action)]
        missing[action] = len(before)
        left[action.part, action.micro_batch] += 1
        for needed in before:
            behind[needed].append(action)
    k = len(needs.outlines)
    waiting: list[list[tuple[Any, Action]]] = [[] for _ in range(k)]
    begun, ended = [0] * k, [0] * k
    working = [False] * k
    events: list[tuple[float, int, Action, bool]] = []  # time, number, action, whether it ends
    numbers = count()
    order: list[Action] = []

    def begin(part: int, now: float) -> None:
        held: list[tuple[Any, Action]] = []
        while waiting[part] and not working[part]:
            item = heapq.heappop(waiting[part])
            action = item[1]
            first = action.direction is FORWARD and action.chunk == 0
            if first and begun[part] - ended[part] >= alive[part]:
                held.append(item)
                continue
            begun[part] += first
            working[part] = True
            order.append(action)
            chunk = needs.chunks(part, action.direction)[action.chunk]
            until = now + needs.costs.action(action, chunk)
            heapq.heappush(events, (until, next(numbers), action, True))
        for item in held:
            heapq.heappush(waiting[part], item)

    def end(action: Action, now: float) -> None:
        part = action.part
        working[part] = False
        left[part, action.micro_batch] -= 1
        ended[part] += not left[part, action.micro_batch]
        for following in behind[action]:
            missing[following] -= 1
            arrives = now
            if following.part != part:
                chunk = needs.chunks(part, action.direction)[action.chunk]
                arrives += needs.costs.travel(action, chunk, following.part)
            arrival[following] = max(arrival.get(following, 0.0), arrives)
            if not missing[following]:
                heapq.heappush(events, (arrival[following], next(numbers), following, False))

    arrival: dict[Action, float] = {}
    for action, count_missing in missing.items():
        if not count_missing:
            heapq.heappush(events, (0.0, next(numbers), action, False))
    while events:
        now = events[0][0]
        touched = dict[int, None]()
        while events and events[0][0] == now:
            _, _, action, ends = heapq.heappop(events)
            touched[action.part] = None
            if ends:
                end(action, now)
            else:
                heapq.heappush(waiting[action.part], (priority(action), action))
        for part in touched:
            begin(part, now)
    return order
