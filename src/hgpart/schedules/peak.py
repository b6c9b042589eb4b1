"""What a micro-batch holds from action to action -> the most that a part's sequence holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add

from hgpart.schedules.schedule import Action


def peak(
    sequence: Sequence[Action],
    held: Mapping[Action, Sequence[int]],
    besides: Sequence[Sequence[int]] = (),
) -> int:
    """The most that all micro-batches under way hold together.

    Parameters
    ----------
    sequence : sequence of Action
        Actions of one part.
    held : mapping of Action to sequence of int
        What the micro-batch of an action holds at several moments of it, the last being its end.
        After the last action nothing is held.
    besides : sequence of sequence of int
        What each action holds, at the same moments, that belongs to no micro-batch.

    >>> from hgpart.schedules.schedule import Direction
    >>> first, second = (Action(0, Direction.FORWARD, at, 0) for at in range(2))
    >>> peak([first, second], {first: [5, 3], second: [1, 9]})
    5
    """
    now: dict[int, int] = {}
    most = total = 0
    for place, action in enumerate(sequence):
        total -= now.get(action.micro_batch, 0)
        moments = held[action]
        if besides:
            moments = [*map(add, moments, besides[place])]
        if place + 1 == len(sequence):
            moments = moments[:-1]
        most = max([most, *(total + moment for moment in moments)])
        now[action.micro_batch] = held[action][-1]
        total += now[action.micro_batch]
    return most
