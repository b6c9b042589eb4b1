"""List scheduling by estimated cost: a part that would wait does something else meanwhile."""

from __future__ import annotations

from typing import Any

from hgpart.schedules.needs import FORWARD, Needs
from hgpart.schedules.rules.list_scheduling import list_schedule
from hgpart.schedules.rules.zero_bubble import zero_bubble
from hgpart.schedules.schedule import Action
from hgpart.schedules.simulation import times


def greedy(needs: Needs) -> list[Action]:
    """Backward first, earlier micro-batches first; keep as many as needed to fill the gaps.

    Backward is whole, or in halves as in `zero_bubble`: whichever ends earlier by the costs.
    """

    def priority(action: Action) -> Any:
        return action.direction is FORWARD, action.micro_batch, action.chunk

    def end(order: list[Action]) -> float:
        return max((until for _, until in times(needs.outlines, order, needs.costs)), default=0.0)

    whole = list_schedule(needs, priority, needs.in_flight)
    return min(whole, zero_bubble(needs), key=end) if needs.backward else whole
