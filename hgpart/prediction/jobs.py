"""What is simulated: jobs of parts, journeys of messages, and who slows whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hgpart.errors import ArgumentError


class Job(NamedTuple):
    """What a part computes between waiting and sending.

    Attributes
    ----------
    seconds : float
        That it takes on a device whose node does nothing else.
    awaits, sends : tuple of int
        Numbers of the journeys that have to have ended, and of those that begin when it is done.
    """

    seconds: float
    awaits: tuple[int, ...] = ()
    sends: tuple[int, ...] = ()


class Journey(NamedTuple):
    """A message on its way.

    Attributes
    ----------
    sender, receiver : int
        Parts.
    seconds : float
        That it takes over a link on which nothing else travels.
    both_ways : float
        The same while messages travel the other way, too.
    """

    sender: int
    receiver: int
    seconds: float
    both_ways: float


@dataclass(frozen=True)
class Sharing:
    """How much slower things go while others do.

    Attributes
    ----------
    nodes : tuple of int
        The node of each part, numbered from 0.
    together : tuple of float
        By how many parts of a node compute at a time, from one on: how many times as long each of
        them takes; of more than there are numbers, the last one.
    while_sending : float
        The same while messages leave the node or come to it, be it within it.
    queues : bool
        Whether a link carries one message at a time each way, and the others wait.

    Raises
    ------
    ArgumentError
        If a number is not that of a node, or a factor is less than 1.
    """

    nodes: tuple[int, ...]
    together: tuple[float, ...] = (1.0,)
    while_sending: float = 1.0
    queues: bool = False

    def __post_init__(self) -> None:
        """Check."""
        if min(self.nodes, default=0) < 0:
            raise ArgumentError(f"nodes {self.nodes}: accepted are numbers from 0 on")
        for factor in (*self.together, self.while_sending):
            if not 1 <= factor < math.inf:
                raise ArgumentError(f"{factor!r} times as long: accepted is 1 or more")
        if not self.together:
            raise ArgumentError("no factor of parts that compute together: accepted is one or more")

    @staticmethod
    def none(k: int) -> Sharing:
        """Of k parts that share nothing."""
        return Sharing(tuple(range(k)))

    def slowdown(self, computing: int, sending: int) -> float:
        """How many times as long computing takes where some compute and some messages travel.

        >>> Sharing((0, 0), together=(1.0, 1.5), while_sending=2.0).slowdown(2, sending=1)
        3.0
        """
        together = self.together[min(max(computing, 1), len(self.together)) - 1]
        return together * (self.while_sending if sending else 1.0)


class Span(NamedTuple):
    """Seconds at which something begins and ends, from the begin of all."""

    begin: float
    end: float


@dataclass(frozen=True, eq=False)
class Spans:
    """When everything begins and ends.

    Attributes
    ----------
    jobs : sequence of sequence of Span
        Of each part.
    journeys : sequence of Span
        By number; a message that waits for others on its link begins behind them.
    """

    jobs: Sequence[Sequence[Span]]
    journeys: Sequence[Span]

    @property
    def end(self) -> float:
        """When all of it is done."""
        ends = [span.end for of_part in (*self.jobs, self.journeys) for span in of_part]
        return max(ends, default=0.0)
