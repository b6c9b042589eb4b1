"""Zero bubble (Qi et al., arXiv 2401.10241): backward in halves; the weights' half fills gaps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hgpart.schedules.needs import Needs
from hgpart.schedules.rules.list_scheduling import list_schedule
from hgpart.schedules.schedule import Action, Direction

ORDER = (Direction.MAPS, Direction.FORWARD, Direction.WEIGHTS)


def zero_bubble(needs: Needs) -> list[Action]:
    """First what others wait for: gradients of maps, then maps; gradients of weights last."""

    def priority(action: Action) -> Any:
        return ORDER.index(action.direction), action.micro_batch, action.chunk

    halved = replace(needs, halves=needs.backward)
    return list_schedule(halved, priority, needs.in_flight)
