"""What is simulated: jobs of parts, journeys of messages, and what slows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hgpart.machines.machine import Slowdown

NO_SLOWDOWN = Slowdown()


class Job(NamedTuple):
    """What a part computes between waiting and sending.

    Attributes
    ----------
    seconds : float
        That it takes on a device whose node does nothing else.
    awaits, sends : tuple of int
        Numbers of the journeys that have to have ended, and of those that begin when it is done.
    memory_bound : float
        Of its seconds, the share in which it does little more than read and write.
    """

    seconds: float
    awaits: tuple[int, ...] = ()
    sends: tuple[int, ...] = ()
    memory_bound: float = 0.0


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
    handling : float
        Seconds of computing that it takes of its sender and of its receiver, if they compute while
        it travels: these go on as much slower.
    """

    sender: int
    receiver: int
    seconds: float
    both_ways: float
    handling: float = 0.0


@dataclass(frozen=True)
class Sharing:
    """How much slower things go while others do.

    Attributes
    ----------
    nodes : tuple of int
        The node of each part, numbered from 0.
    slowdown, memory_bound : Slowdown
        Of computing, and of what does little more than read and write, while other parts of the
        node compute.
    queues : bool
        Whether a part sends one message at a time and takes in one at a time, as by one cable, and
        the others wait.
    """

    nodes: tuple[int, ...]
    slowdown: Slowdown = NO_SLOWDOWN
    memory_bound: Slowdown = NO_SLOWDOWN
    queues: bool = False

    def factor(self, computing: int, memory_bound: float) -> float:
        """How many times as long a job takes.

        Parameters
        ----------
        computing : int
            Parts of its node that compute, itself among them.
        memory_bound : float
            Of its seconds, the share that is.

        >>> Sharing((0, 0), Slowdown((1.0, 1.5))).factor(2, memory_bound=0.0)
        1.5
        """
        found = self.slowdown.of(computing)
        return found + memory_bound * (self.memory_bound.of(computing) - found)


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
        By number; a message that waits for others of its sender begins behind them.
    """

    jobs: Sequence[Sequence[Span]]
    journeys: Sequence[Span]

    @property
    def end(self) -> float:
        """When all of it is done."""
        ends = [span.end for of_part in (*self.jobs, self.journeys) for span in of_part]
        return max(ends, default=0.0)
