"""What a part did when: the actions of a step, with the waits and sends in each of them.

Times are those of `time.perf_counter_ns`, which all processes of a machine share (on Linux it
counts from the machine's start), so that events of several processes need no correction. On a GPU
they are the host's times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from hgpart.schedules.schedule import Action, Direction


class Doing(str, Enum):
    """What a part does in a span of time."""

    RUN = "run"  # a whole action, with its waits and sends in it
    WAIT = "wait"  # for a message; after the last action of a step, for the last ones to depart
    SEND = "send"  # until a message is under way


Span = tuple[Doing, int, int]  # begin and end


class Event(NamedTuple):
    """A span of time within an action.

    Attributes
    ----------
    action : Action
        Part, direction, micro-batch and chunk.
    begin, end : int
        Nanoseconds.
    """

    action: Action
    doing: Doing
    begin: int
    end: int


Timeline = tuple[tuple[Event, ...], ...]  # of each step; a part's events by their begin


def staleness(events: Iterable[Event]) -> tuple[int, ...]:
    """The number of a part's updates that its weights lacked when it began each batch of a stream.

    >>> kinds = [Direction.FORWARD, Direction.FORWARD, Direction.UPDATE, Direction.FORWARD]
    >>> batches = [0, 1, 0, 2]
    >>> actions = [Action(0, *done, 0) for done in zip(kinds, batches)]
    >>> staleness(Event(action, Doing.RUN, 0, 1) for action in actions)
    (0, 1, 1)
    """
    updates, lacking = 0, []
    for action in (event.action for event in events if event.doing is Doing.RUN):
        if action.direction is Direction.UPDATE:
            updates += 1
        elif action.direction is Direction.FORWARD and action.is_begin:
            lacking.append(action.micro_batch - updates)
    return tuple(lacking)


def planned_events(
    order: Sequence[Action], spans: Sequence[tuple[float, float]]
) -> tuple[Event, ...]:
    """Events of a plan, like those of a measured step; its spans are in seconds.

    >>> planned_events([Action(0, Direction.FORWARD, 0, 0)], [(0.5, 1.0)])[0][1:]
    (<Doing.RUN: 'run'>, 500000000, 1000000000)
    """
    return tuple(
        Event(action, Doing.RUN, round(begin * 1e9), round(end * 1e9))
        for action, (begin, end) in zip(order, spans, strict=True)
    )
