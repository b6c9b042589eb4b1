"""1F1B (PipeDream-Flush; Narayanan et al., arXiv 2006.09503): a forward, a backward, in turn."""

from __future__ import annotations

from hgpart.schedules.needs import FORWARD, Needs
from hgpart.schedules.schedule import Action


def one_f_one_b(needs: Needs) -> list[Action]:
    """Keep the maps of as many micro-batches as there are stages from the part on.

    Turn t is the backward pass of micro-batch t and before it the forward pass of the one that is
    as far ahead as the stages. What a stage takes of the one before comes in the same turn or an
    earlier one. Parts that depend on each other in a circle are one stage: on a partition inside
    layers that is `sequential`.
    """

    def turn(one: Action) -> tuple[int, bool, int, int]:
        backward = one.direction is not FORWARD
        ahead = 0 if backward else needs.depths[one.part] - 1
        return one.micro_batch - ahead, backward, one.micro_batch, needs.rank(one)

    return sorted(needs.actions(), key=turn)
