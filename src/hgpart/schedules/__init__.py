"""Outlines of parts + a rule -> Schedule: which part does what when, micro-batch by micro-batch.

`outline` says what a part does with a batch, `schedule` is what comes out, `needs` is what actions
need of each other, `costs` what they are estimated to take, `simulation` when they begin and end by
that, `peak` what micro-batches take at the same time; `rules` order them. `lowering` puts the
weights that several parts have into that order. `mail` says which messages a part has, and
`message_bytes` what they take. `checking` says whether a schedule is valid, `drawing` prints it,
`schedule_files` keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from hgpart.errors import ArgumentError, not_one_of
from hgpart.schedules.costs import CostModel
from hgpart.schedules.needs import Needs
from hgpart.schedules.outline import Outline
from hgpart.schedules.rules import IN_FLIGHT, MOST_IN_FLIGHT, RULES, STREAMS
from hgpart.schedules.schedule import Schedule

__all__ = [
    "check_in_flight",
    "check_micro_batches",
    "check_recompute",
    "check_rule",
    "make_schedule",
]


def check_rule(rule: str) -> None:
    """Raise an ArgumentError if there is no such rule."""
    if not isinstance(rule, str) or rule not in (*RULES, *STREAMS):
        raise not_one_of("schedule", rule, (*RULES, *STREAMS))


def check_in_flight(rule: str, in_flight: int | None) -> None:
    """Raise an ArgumentError for batches in flight where a rule has none, or no such number."""
    if in_flight is None:
        return
    if rule not in STREAMS:
        raise ArgumentError(
            f"{in_flight!r} batches in flight by {rule}: accepted with {', '.join(STREAMS)}"
        )
    if not isinstance(in_flight, Integral) or not 1 <= in_flight <= MOST_IN_FLIGHT:
        raise ArgumentError(f"{in_flight!r} batches in flight: accepted is 1 to {MOST_IN_FLIGHT}")


def check_recompute(*, recompute: bool, stash: bool) -> None:
    """Raise an ArgumentError for maps that would be computed again with newer weights."""
    if recompute and not stash:
        raise ArgumentError(
            "recompute without stash, with newer weights than the forward pass had: accepted is "
            "recompute with stash"
        )


def check_micro_batches(micro_batches: int) -> None:
    """Raise an ArgumentError if it is no number of micro-batches."""
    whole = isinstance(micro_batches, Integral) and not isinstance(micro_batches, bool)
    if not whole or micro_batches < 1:
        raise ArgumentError(f"{micro_batches!r} micro-batches: accepted is 1 or more")


def make_schedule(
    outlines: Sequence[Outline],
    rule: str,
    micro_batches: int,
    costs: CostModel,
    *,
    backward: bool = True,
    in_flight: int | None = None,
) -> Schedule:
    """Order what parts do in a step, or with a stream of batches.

    Parameters
    ----------
    outlines : sequence of Outline
        Of each part.
    rule : str
        One of `hgpart.schedules.rules.RULES`, or of a stream, `STREAMS`.
    micro_batches : int
        Of a stream, its batches.
    costs : CostModel
    backward : bool
        Whether a step has backward passes, as a stream has.
    in_flight : int, optional
        Batches of a stream that each part may have begun at a time; 2 when left out.

    Raises
    ------
    ArgumentError
        If there is no such rule, the number of micro-batches is none, or a rule of streams is to do
        without backward passes, or another has batches in flight.
    """
    check_rule(rule)
    check_in_flight(rule, in_flight)
    check_micro_batches(micro_batches)
    if rule in STREAMS:
        if not backward:
            raise ArgumentError(f"schedule {rule!r} without backward passes: accepted is with them")
        limit = IN_FLIGHT if in_flight is None else in_flight
        stream = Needs(tuple(outlines), micro_batches, costs, limit=limit)
        order = tuple(STREAMS[rule](stream))
        return Schedule(rule, micro_batches, tuple(outlines), order, limit)
    needs = Needs(tuple(outlines), micro_batches, costs, backward)
    return Schedule(rule, micro_batches, tuple(outlines), tuple(RULES[rule](needs)))
