"""Outlines of parts + a rule -> Schedule: which part does what when, micro-batch by micro-batch.

`outline` says what a part does with a batch; `schedule` is the result; `needs` says what each
action needs; `costs` estimates how long actions take, `simulation` when they begin and end by these
costs, `peak` how much micro-batches take at a time; `rules` order the actions. `lowering` adds the
weights that several parts have to that order. `mail` lists a part's messages, `message_bytes` the
memory that they take. `checking` validates a schedule, `drawing` prints it, `schedule_files` saves
and loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from hgpart.errors import ArgumentError, not_one_of
from hgpart.schedules.costs import CostModel
from hgpart.schedules.dynamic.simulated import in_turns
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
    """Raise an ArgumentError if a rule takes no batches in flight, or not this number."""
    if in_flight is None:
        return
    if rule not in STREAMS:
        raise ArgumentError(
            f"{in_flight!r} batches in flight by {rule}: accepted with {', '.join(STREAMS)}"
        )
    if not isinstance(in_flight, Integral) or not 1 <= in_flight <= MOST_IN_FLIGHT:
        raise ArgumentError(f"{in_flight!r} batches in flight: accepted is 1 to {MOST_IN_FLIGHT}")


def check_recompute(*, recompute: bool, stash: bool) -> None:
    """Raise an ArgumentError if maps would be recomputed with newer weights."""
    if recompute and not stash:
        raise ArgumentError(
            "recompute without stash, with newer weights than the forward pass had: accepted is "
            "recompute with stash"
        )


def check_micro_batches(micro_batches: int) -> None:
    """Raise an ArgumentError if this is not a number of micro-batches."""
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
    turns: Sequence[Sequence[Outline]] = (),
) -> Schedule:
    """Order the actions of a step, or of a stream of batches.

    Parameters
    ----------
    outlines : sequence of Outline
        One outline per part.
    rule : str
        A rule of a step (`hgpart.schedules.rules.RULES`) or of a stream (`STREAMS`).
    micro_batches : int
        Number of micro-batches; for a stream, of batches.
    backward : bool
        Whether a step has backward passes; a stream always has them.
    in_flight : int, optional
        Batches of a stream that a part may have begun and not ended. Default: 2.
    turns : sequence of sequence of Outline
        For the rule ``turns``, outlines of the parts in each turn. Default: all batches are alike.

    Raises
    ------
    ArgumentError
        If there is no such rule, the number of micro-batches is not valid, a stream is asked for
        without backward passes, or a step with batches in flight.
    """
    check_rule(rule)
    check_in_flight(rule, in_flight)
    check_micro_batches(micro_batches)
    if rule in STREAMS:
        if not backward:
            raise ArgumentError(
                f"schedule {rule!r} without backward passes: accepted is backward=True"
            )
        limit = IN_FLIGHT if in_flight is None else in_flight
        if turns:
            return in_turns(turns, micro_batches, costs, limit)
        stream = Needs(tuple(outlines), micro_batches, costs, limit=limit)
        order = tuple(STREAMS[rule](stream))
        return Schedule(rule, micro_batches, tuple(outlines), order, limit)
    needs = Needs(tuple(outlines), micro_batches, costs, backward)
    return Schedule(rule, micro_batches, tuple(outlines), tuple(RULES[rule](needs)))
