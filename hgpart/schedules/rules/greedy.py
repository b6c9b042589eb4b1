"""List scheduling by estimated cost: what a part could do while it would wait, it does."""

from __future__ import annotations

from typing import Any

from hgpart.schedules.needs import FORWARD, Needs
from hgpart.schedules.rules.list_scheduling import list_schedule
from hgpart.schedules.schedule import Action


def greedy(needs: Needs) -> list[Action]:
    """Backward first, earlier micro-batches first; keep as many as it takes to fill the gaps."""

    def priority(one: Action) -> Any:
        return one.direction is FORWARD, one.micro_batch, one.chunk

    return list_schedule(needs, priority, needs.in_flight)
