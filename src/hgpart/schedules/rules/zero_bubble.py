"""Zero bubble (Qi et al., arXiv 2401.10241): backward in two halves, the weights' fills gaps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hgpart.schedules.needs import Needs
from hgpart.schedules.rules.list_scheduling import list_schedule
from hgpart.schedules.schedule import Action, Direction

ORDER = (Direction.MAPS, Direction.FORWARD, Direction.WEIGHTS)


def zero_bubble(needs: Needs) -> list[Action]:
    """What others wait for first: gradients of maps, then maps; gradients of weights last."""

    def priority(one: Action) -> Any:
        return ORDER.index(one.direction), one.micro_batch, one.chunk

    halved = replace(needs, halves=needs.backward)
    return list_schedule(halved, priority, needs.in_flight)
