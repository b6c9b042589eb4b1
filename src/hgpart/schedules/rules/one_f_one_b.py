"""1F1B (PipeDream-Flush; Narayanan et al., arXiv 2006.09503): forward and backward in turn."""

from __future__ import annotations

from hgpart.schedules.needs import FORWARD, Needs
from hgpart.schedules.schedule import Action


def one_f_one_b(needs: Needs) -> list[Action]:
    """Keep the maps of as many micro-batches as there are stages from the part to the end.

    Turn t is the backward pass of micro-batch t, and before it the forward pass of the micro-batch
    that is ahead by the number of stages. What a stage gets from the one before is sent in the same
    turn or an earlier one. Parts that depend on each other in a circle are one stage: for a
    partition inside layers this rule is `sequential`.
    """

    def turn(action: Action) -> tuple[int, bool, int, int]:
        backward = action.direction is not FORWARD
        ahead = 0 if backward else needs.depths[action.part] - 1
        return action.micro_batch - ahead, backward, action.micro_batch, needs.rank(action)

    return sorted(needs.actions(), key=turn)
