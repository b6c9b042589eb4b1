"""One micro-batch after the other, each forward and backward."""

from __future__ import annotations

from hgpart.schedules.needs import FORWARD, Needs
from hgpart.schedules.schedule import Action


def sequential(needs: Needs) -> list[Action]:
    """Keep the maps of one micro-batch only; a part that waits does nothing else meanwhile."""
    return sorted(
        needs.actions(),
        key=lambda action: (
            action.micro_batch,
            action.direction is not FORWARD,
            needs.rank(action),
        ),
    )
