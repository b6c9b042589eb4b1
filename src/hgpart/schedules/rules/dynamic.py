"""Dynamic (thesis, chapter 4): an idle part takes whatever of its batches is ready.

Each part of a run finds its order itself (`hgpart.schedules.dynamic`). The rule's order is the one
that there would be if actions and messages took what they cost.
"""

from __future__ import annotations

from typing import Any

from hgpart.schedules.needs import FORWARD, Needs
from hgpart.schedules.rules.list_scheduling import list_schedule
from hgpart.schedules.schedule import Action


def dynamic(needs: Needs) -> list[Action]:
    """Updates and backward first, earlier batches first."""
    assert needs.limit is not None

    def priority(action: Action) -> Any:
        return action.direction is FORWARD, action.micro_batch, action.chunk

    return list_schedule(needs, priority, [needs.limit] * len(needs.outlines))
