"""GPipe (Huang et al., arXiv 1811.06965): all forward, then all backward."""

from __future__ import annotations

from hgpart.schedules.needs import FORWARD, Needs
from hgpart.schedules.schedule import Action


def gpipe(needs: Needs) -> list[Action]:
    """Keep the maps of all micro-batches; a part goes through them one after the other."""
    return sorted(
        needs.actions(),
        key=lambda action: (
            action.direction is not FORWARD,
            action.micro_batch,
            needs.rank(action),
        ),
    )
