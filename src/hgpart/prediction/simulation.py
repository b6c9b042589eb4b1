"""Jobs, messages, Sharing -> Spans: when each of them begins and ends, by simulated events.

Between events each job and each message goes on at a constant rate, which is 1 where nothing slows
it down. So each has a clock that shows how much of it is done, and an event for its end. A change
of rate sets the clock to the new rate and replaces the event.

Where parts queue, messages leave one after another, and arrive one after another: messages from
several parts at once take as long as if they came from one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush

from hgpart.errors import ArgumentError
from hgpart.prediction.jobs import Sharing, Span, Spans, TimedJob, TimedMessage

LANDING = -1  # the version of a message that has left
LEAST = 0.05  # least rate at which a part computes, however many messages it handles


def simulate(
    jobs: Sequence[Sequence[TimedJob]], messages: Sequence[TimedMessage], sharing: Sharing
) -> Spans:
    """Find when parts do their jobs, each as soon as it can, and when messages are sent.

    Parameters
    ----------
    jobs : sequence of sequence of TimedJob
        Jobs of each part, in the order in which it does them.
    messages : sequence of TimedMessage
        Messages by the numbers in jobs; each is sent by one job of its sender.

    Raises
    ------
    ArgumentError
        If a part waits for ever.

    >>> from hgpart.machines.machine import Slowdown
    >>> there = TimedMessage(0, 1, seconds=1.0, both_ways=1.0)
    >>> jobs = [[TimedJob(2.0, sends=(0,)), TimedJob(2.0)], [TimedJob(2.0, awaits=(0,))]]
    >>> simulate(jobs, [there], Sharing((0, 0), Slowdown((1.0, 2.0)))).jobs[1]
    [Span(begin=3.0, end=6.0)]
    """
    simulation = _Simulation(jobs, messages, sharing)
    simulation.run()
    for part, done in enumerate(simulation.jobs):
        if len(done) < len(jobs[part]):
            missing = sorted(simulation.parts[part].missing)
            raise ArgumentError(
                f"part {part} waits for ever for messages {missing}: accepted are messages that "
                "some job sends before"
            )
    return Spans(simulation.jobs, simulation.travelled)


class _Clock:
    """A clock that goes at a rate, and shows how much is done."""

    __slots__ = ("_at", "_rate", "_shown")

    def __init__(self, now: float) -> None:
        self._at, self._shown, self._rate = now, 0.0, 1.0

    def reading(self, now: float) -> float:
        """The amount that it shows."""
        return self._shown + (now - self._at) * self._rate

    def when(self, reading: float) -> float:
        """The time at which it will show an amount."""
        return self._at + (reading - self._shown) / self._rate

    def go(self, rate: float, now: float) -> None:
        """Go on at a rate; if it is the same, nothing is rounded."""
        if rate != self._rate:
            self._shown, self._at, self._rate = self.reading(now), now, rate


@dataclass(slots=True)
class _Part:
    """The state of a part.

    Attributes
    ----------
    job : TimedJob or None
        The job that it does now.
    begun : float
        When it began the job.
    clock : _Clock
        The clock of the job.
    due : float or None
        When the job will be done, by the latest event.
    version : int
        Version of that event; events with other versions are out of date.
    missing : set of int
        Messages that it waits for.
    """

    clock: _Clock
    begun: float = 0.0
    job: TimedJob | None = None
    due: float | None = None
    version: int = 0
    missing: set[int] = field(default_factory=set)


class _Simulation:
    """The state of a simulation; see `simulate`."""

    def __init__(
        self, jobs: Sequence[Sequence[TimedJob]], messages: Sequence[TimedMessage], sharing: Sharing
    ) -> None:
        self.jobs: list[list[Span]] = [[] for _ in jobs]
        self.travelled: list[Span] = [Span(0.0, 0.0)] * len(messages)
        self.parts = [_Part(_Clock(0.0)) for _ in jobs]
        self._to_do, self._messages, self._sharing = jobs, messages, sharing
        self._of_node: list[list[int]] = [[] for _ in range(max(sharing.nodes, default=-1) + 1)]
        for part, node in enumerate(sharing.nodes):
            self._of_node[node].append(part)
        self._computing = [0] * len(self._of_node)  # number of computing parts in each node
        self._arrived = [False] * len(messages)
        # Time, number, part or -1, message, version.
        self._events: list[tuple[float, int, int, int, int]] = []
        self._count = 0
        self._under_way: dict[tuple[int, int], list[int]] = {}  # by sender and receiver
        # Where parts queue: for each sender, its messages that have not left; for each receiver,
        # when all that have left will have arrived.
        self._leaving: list[deque[int]] = [deque() for _ in jobs]
        self._taken_in = [0.0] * len(jobs)
        self._clocks: dict[int, _Clock] = {}  # of messages under way
        # For each part, the fraction of its computing that each message under way takes.
        self._handled: list[dict[int, float]] = [{} for _ in jobs]
        self._versions = [0] * len(messages)

    def run(self) -> None:
        """Go on until nothing happens any more."""
        for part in range(len(self.jobs)):
            self._next(part, 0.0)
        while self._events:
            now, _, part, message, version = heappop(self._events)
            if part < 0:
                if version == LANDING:
                    self._arrive(message, now)
                elif version == self._versions[message]:
                    self._leave(message, now)
            elif version == self.parts[part].version:
                self._end(part, now)

    # ---------------------------------------------------------------- computing

    def _next(self, at: int, now: float) -> None:
        """Let a part begin its next job, or wait for the messages that this needs."""
        done = len(self.jobs[at])
        if done < len(self._to_do[at]):
            awaits = self._to_do[at][done].awaits
            self.parts[at].missing = {number for number in awaits if not self._arrived[number]}
            if not self.parts[at].missing:
                self._begin(at, now)

    def _begin(self, at: int, now: float) -> None:
        part = self.parts[at]
        part.job, part.begun = self._to_do[at][len(self.jobs[at])], now
        part.clock, part.due = _Clock(now), None
        self._count_computing(at, 1, now)
        self._settle(at, now)

    def _settle(self, at: int, now: float) -> None:
        """Let a part compute at its present rate, and push an event for when it will be done."""
        part = self.parts[at]
        if part.job is None:
            return
        computing = self._computing[self._sharing.nodes[at]]
        factor = self._sharing.factor(computing, part.job.memory_bound)
        handled = sum(self._handled[at].values())
        part.clock.go(max(LEAST, 1 - handled) / factor, now)
        due = max(now, part.clock.when(part.job.seconds))
        if due != part.due:
            part.due = due
            part.version += 1
            self._push(due, at, 0, part.version)

    def _end(self, at: int, now: float) -> None:
        """End the job that is due."""
        part = self.parts[at]
        assert part.job is not None
        sends, part.job = part.job.sends, None
        self.jobs[at].append(Span(part.begun, now))
        self._count_computing(at, -1, now)
        for message in sends:
            self._post(message, now)
        self._next(at, now)

    def _count_computing(self, at: int, more: int, now: float) -> None:
        """Tell the other parts of a node that a part began or stopped computing."""
        node = self._sharing.nodes[at]
        self._computing[node] += more
        if self._slows:
            for other_part in self._of_node[node]:
                if other_part != at:
                    self._settle(other_part, now)

    @cached_property
    def _slows(self) -> bool:
        """Whether parts that compute slow others down."""
        both = self._sharing.slowdown, self._sharing.memory_bound
        return any(max(slowdown.together) > 1 for slowdown in both)

    def _push(self, when: float, part: int, message: int, version: int) -> None:
        self._count += 1
        heappush(self._events, (when, self._count, part, message, version))

    # ---------------------------------------------------------------- travelling

    def _post(self, message: int, now: float) -> None:
        """Let a message leave, or wait for those before it."""
        leaving = self._leaving[self._messages[message].sender]
        leaving.append(message)
        if not self._sharing.queues or len(leaving) == 1:
            self._depart(message, now)

    def _depart(self, message: int, now: float) -> None:
        sender, receiver, *_ = self._messages[message]
        this_way = self._under_way.setdefault((sender, receiver), [])
        other_way = self._under_way.get((receiver, sender), [])
        this_way.append(message)
        self._clocks[message] = _Clock(now)
        self.travelled[message] = Span(now, now)
        self._go(message, bool(other_way), now)
        if len(this_way) == 1:
            for facing in other_way:
                self._go(facing, True, now)

    def _go(self, message: int, against: bool, now: float) -> None:
        """Let a message go on at the rate of a link with or without messages the other way."""
        sender, receiver, seconds, both_ways, handling = self._messages[message]
        if seconds == both_ways and self._versions[message]:
            return
        clock = self._clocks[message]
        rate = seconds / both_ways if against and seconds else 1.0
        clock.go(rate, now)
        if handling and seconds:
            for part in (sender, receiver):
                self._handled[part][message] = rate * handling / seconds
                self._settle(part, now)
        self._versions[message] += 1
        self._push(max(now, clock.when(seconds)), -1, message, self._versions[message])

    def _leave(self, message: int, now: float) -> None:
        """Take a message off the link, and let the next one leave."""
        sender, receiver, *_ = self._messages[message]
        this_way = self._under_way[sender, receiver]
        this_way.remove(message)
        del self._clocks[message]
        for part in (sender, receiver):
            if self._handled[part].pop(message, None) is not None:
                self._settle(part, now)
        if not this_way:
            for facing in self._under_way.get((receiver, sender), []):
                self._go(facing, False, now)
        self._leaving[sender].remove(message)
        landing = now
        if self._sharing.queues:
            if self._leaving[sender]:
                self._depart(self._leaving[sender][0], now)
            taken = now - self.travelled[message].begin
            landing = max(now, self._taken_in[receiver] + taken)
            self._taken_in[receiver] = landing
        if landing > now:
            self._versions[message] = LANDING
            self._push(landing, -1, message, LANDING)
        else:
            self._arrive(message, now)

    def _arrive(self, message: int, now: float) -> None:
        self.travelled[message] = Span(self.travelled[message].begin, now)
        self._arrived[message] = True
        receiver = self._messages[message].receiver
        missing = self.parts[receiver].missing
        if message in missing:
            missing.remove(message)
            if not missing:
                self._begin(receiver, now)
