"""The subjects of a simulation: jobs of parts, messages, and what slows them down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from hgpart.arrays import Float64, Int32, Int64
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


@dataclass(frozen=True, eq=False)
class TimedStep:
    """The jobs and messages of a step as arrays, for `hgpart._native.simulate`.

    Attributes
    ----------
    part_pointers : int64 array, shape (k + 1,)
        The first job of each part, and the number of jobs: a part's jobs follow each other in the
        order in which it does them.
    seconds, memory_bound : float64 arrays, shape (jobs,)
        See `TimedJob`.
    await_pointers, send_pointers : int64 arrays, shape (jobs + 1,)
        Job j awaits ``awaits[await_pointers[j]:await_pointers[j + 1]]``, and sends accordingly.
    awaits, sends : int32 arrays
        Numbers of messages.
    senders, receivers : int32 arrays, shape (messages,)
    travel, both_ways, handling : float64 arrays, shape (messages,)
        See `TimedMessage`; `travel` is its `seconds`.
    """

    part_pointers: Int64
    seconds: Float64
    memory_bound: Float64
    await_pointers: Int64
    awaits: Int32
    send_pointers: Int64
    sends: Int32
    senders: Int32
    receivers: Int32
    travel: Float64
    both_ways: Float64
    handling: Float64

    @classmethod
    def of(cls, jobs: Sequence[Sequence[TimedJob]], messages: Sequence[TimedMessage]) -> TimedStep:
        """The arrays of jobs, part by part, and messages by number."""
        every = [*chain.from_iterable(jobs)]
        columns = [*zip(*messages, strict=True)] or [()] * len(TimedMessage._fields)
        senders, receivers = (np.array(column, dtype=np.int32) for column in columns[:2])
        travel, both_ways, handling = (np.array(own, dtype=np.float64) for own in columns[2:])
        return cls(
            _pointers(map(len, jobs)),
            np.array([job.seconds for job in every], dtype=np.float64),
            np.array([job.memory_bound for job in every], dtype=np.float64),
            _pointers(len(job.awaits) for job in every),
            _numbers(job.awaits for job in every),
            _pointers(len(job.sends) for job in every),
            _numbers(job.sends for job in every),
            senders,
            receivers,
            travel,
            both_ways,
            handling,
        )


def _pointers(lengths: Iterable[int]) -> Int64:
    return np.cumsum([0, *lengths], dtype=np.int64)


def _numbers(lists: Iterable[Sequence[int]]) -> Int32:
    return np.fromiter(chain.from_iterable(lists), dtype=np.int32)


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
    part_pointers : int64 array, shape (k + 1,)
        See `TimedStep`.
    job_times, message_times : float64 arrays, shapes (steps, jobs, 2) and (steps, messages, 2)
        Begin and end, in each step. A message that queues at its sender begins when it leaves.
    """

    part_pointers: Int64
    job_times: Float64
    message_times: Float64

    @cached_property
    def jobs(self) -> Sequence[Sequence[Span]]:
        """Spans of the first step's jobs, for each part."""
        spans = _spans(self.job_times[0])
        return [spans[begin:end] for begin, end in pairwise(self.part_pointers.tolist())]

    @cached_property
    def messages(self) -> Sequence[Span]:
        """Spans of the first step's messages, by number."""
        return _spans(self.message_times[0])

    @property
    def end(self) -> float:
        """When everything is done."""
        times = self.job_times[..., 1], self.message_times[..., 1]
        return float(max(ends.max(initial=0.0) for ends in times))

    @property
    def ends(self) -> Float64:
        """When the last job of each step is done."""
        ends: Float64 = self.job_times[..., 1].max(axis=1, initial=0.0)
        return ends

    @property
    def busy(self) -> Float64:
        """Seconds in which each part computes in the first step."""
        begin, end = self.job_times[0].T
        busy = np.zeros(len(self.part_pointers) - 1)
        np.add.at(busy, np.repeat(np.arange(len(busy)), np.diff(self.part_pointers)), end - begin)
        return busy


def _spans(times: Float64) -> list[Span]:
    return [*map(Span._make, times.tolist())]
