"""The subjects of a simulation: jobs of parts, messages, and what slows them down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hgpart.machines.machine import Slowdown

NO_SLOWDOWN = Slowdown()


class TimedJob(NamedTuple):
    """What a part computes between waiting and sending.

    Attributes
    ----------
    seconds : float
        Seconds that it takes while nothing else runs on the node.
    awaits, sends : tuple of int
        Numbers of the messages that it waits for, and of those that it sends when it is done.
    memory_bound : float
        Fraction of its seconds in which it does little more than read and write.
    """

    seconds: float
    awaits: tuple[int, ...] = ()
    sends: tuple[int, ...] = ()
    memory_bound: float = 0.0


class TimedMessage(NamedTuple):
    """A message and the seconds that it takes.

    Attributes
    ----------
    sender, receiver : int
        Numbers of the parts.
    seconds : float
        Seconds over a link without other messages.
    both_ways : float
        Seconds while messages are sent the other way as well.
    handling : float
        Seconds of computing that it costs its sender and its receiver, if they compute while it is
        on its way: these slow down accordingly.
    """

    sender: int
    receiver: int
    seconds: float
    both_ways: float
    handling: float = 0.0


@dataclass(frozen=True)
class Sharing:
    """How much jobs and messages slow each other down.

    Attributes
    ----------
    nodes : tuple of int
        The node of each part, numbered from 0.
    slowdown, memory_bound : Slowdown
        Slow-down of computing, and of memory-bound computing, while other parts of the node
        compute.
    queues : bool
        Whether a part sends one message at a time and receives one at a time, as over a cable,
        while the others wait.
    """

    nodes: tuple[int, ...]
    slowdown: Slowdown = NO_SLOWDOWN
    memory_bound: Slowdown = NO_SLOWDOWN
    queues: bool = False

    def factor(self, computing: int, memory_bound: float) -> float:
        """The factor by which a job slows down.

        Parameters
        ----------
        computing : int
            Number of parts of its node that compute, including its own.
        memory_bound : float
            Fraction of its seconds that is memory-bound.

        >>> Sharing((0, 0), Slowdown((1.0, 1.5))).factor(2, memory_bound=0.0)
        1.5
        """
        plain = self.slowdown.of(computing)
        return plain + memory_bound * (self.memory_bound.of(computing) - plain)


class Span(NamedTuple):
    """Seconds at which something begins and ends, from the beginning of the simulation."""

    begin: float
    end: float


@dataclass(frozen=True, eq=False)
class Spans:
    """When each job and each message begins and ends.

    Attributes
    ----------
    jobs : sequence of sequence of Span
        Jobs of each part.
    messages : sequence of Span
        Messages by number; one that queues at its sender begins when it leaves.
    """

    jobs: Sequence[Sequence[Span]]
    messages: Sequence[Span]

    @property
    def end(self) -> float:
        """When everything is done."""
        ends = [span.end for part_spans in (*self.jobs, self.messages) for span in part_spans]
        return max(ends, default=0.0)
