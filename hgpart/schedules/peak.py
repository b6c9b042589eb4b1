"""What a micro-batch takes from action to action -> the most that a part's sequence takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hgpart.schedules.schedule import Action


def peak(sequence: Sequence[Action], held: Mapping[Action, Sequence[int]]) -> int:
    """The most that all micro-batches under way take together.

    Parameters
    ----------
    sequence : sequence of Action
        Of a part.
    held : mapping of Action to sequence of int
        What its micro-batch takes at moments of an action, the last of them being its end. Nothing
        is left at the end of the last.

    >>> from hgpart.schedules.schedule import Direction
    >>> first, second = (Action(0, Direction.FORWARD, at, 0) for at in range(2))
    >>> peak([first, second], {first: [5, 3], second: [1, 9]})
    5
    """
    now: dict[int, int] = {}
    most = 0
    for action in sequence:
        others = sum(size for one, size in now.items() if one != action.micro_batch)
        moments = held[action][:-1] if action is sequence[-1] else held[action]
        most = max([most, *(others + moment for moment in moments)])
        now[action.micro_batch] = held[action][-1]
    return most
