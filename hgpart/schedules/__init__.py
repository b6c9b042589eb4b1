"""Outlines of parts + a rule -> Schedule: which part does what when, micro-batch by micro-batch.

`outline` says what a part does with a batch, `schedule` is what comes out, `needs` is what actions
need of each other, `costs` what they are estimated to take, `simulation` when they begin and end by
that; `rules` order them. `checking` says whether a schedule is valid, `drawing` prints it,
`schedule_files` keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from hgpart.errors import ArgumentError
from hgpart.schedules.costs import Costs
from hgpart.schedules.needs import Needs
from hgpart.schedules.outline import Outline
from hgpart.schedules.rules import RULES
from hgpart.schedules.schedule import Schedule

__all__ = ["check_micro_batches", "check_rule", "make_schedule"]


def check_rule(rule: str) -> None:
    """Raise an ArgumentError if there is no such rule."""
    if not isinstance(rule, str) or rule not in RULES:
        raise ArgumentError(f"schedule {rule!r}: accepted are {', '.join(RULES)}")


def check_micro_batches(micro_batches: int) -> None:
    """Raise an ArgumentError if it is no number of micro-batches."""
    if not isinstance(micro_batches, Integral) or micro_batches < 1:
        raise ArgumentError(f"{micro_batches!r} micro-batches: accepted is 1 or more")


def make_schedule(
    outlines: Sequence[Outline],
    rule: str,
    micro_batches: int,
    costs: Costs,
    *,
    backward: bool = True,
) -> Schedule:
    """Order what parts do in a step.

    Parameters
    ----------
    outlines : sequence of Outline
        Of each part.
    rule : str
        One of `hgpart.schedules.rules.RULES`.
    micro_batches : int
    costs : Costs
    backward : bool
        Whether a step has backward passes.

    Raises
    ------
    ArgumentError
        If there is no such rule, or the number of micro-batches is none.
    """
    check_rule(rule)
    check_micro_batches(micro_batches)
    needs = Needs(tuple(outlines), micro_batches, costs, backward)
    return Schedule(rule, micro_batches, tuple(outlines), tuple(RULES[rule](needs)))
