"""What a micro-batch takes from action to action -> the most that a part's sequence takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add

from hgpart.schedules.schedule import Action


def peak(
    sequence: Sequence[Action],
    held: Mapping[Action, Sequence[int]],
    besides: Sequence[Sequence[int]] = (),
) -> int:
    """The most that all micro-batches under way take together.

    Parameters
    ----------
    sequence : sequence of Action
        Of a part.
    held : mapping of Action to sequence of int
        What its micro-batch takes at moments of an action, the last of them being its end. Nothing
        is left at the end of the last.
    besides : sequence of sequence of int
        Of each action, what is of no micro-batch, at the same moments.

    >>> from hgpart.schedules.schedule import Direction
    >>> first, second = (Action(0, Direction.FORWARD, at, 0) for at in range(2))
    >>> peak([first, second], {first: [5, 3], second: [1, 9]})
    5
    """
    now: dict[int, int] = {}
    most = total = 0
    for at, action in enumerate(sequence):
        total -= now.get(action.micro_batch, 0)
        moments = held[action]
        if besides:
            moments = [*map(add, moments, besides[at])]
        if at + 1 == len(sequence):
            moments = moments[:-1]
        most = max([most, *(total + moment for moment in moments)])
        now[action.micro_batch] = held[action][-1]
        total += now[action.micro_batch]
    return most
