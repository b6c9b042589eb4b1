"""Jobs, journeys, Sharing -> Spans: when each of them begins and ends, by a simulation of events.

Between events each job and each journey goes on at one rate, which is 1 where nothing slows it. So
each has a clock that shows how much of it is done, and an event for when it will be; what slows it
sets its clock to another rate, and puts another event in the place of that one.

Where parts queue, messages leave one after another, and one after another they land: what comes
from several parts at once takes as long as if it had come from one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from heapq import heappop, heappush

from hgpart.errors import ArgumentError
from hgpart.prediction.jobs import Job, Journey, Sharing, Span, Spans

LANDING = -1  # the version of a message that has left
LEAST = 0.05  # of its rate at which a part computes, however many messages it handles


def simulate(jobs: Sequence[Sequence[Job]], journeys: Sequence[Journey], sharing: Sharing) -> Spans:
    """Find when parts do their jobs, each as soon as it can, and when messages travel.

    Parameters
    ----------
    jobs : sequence of sequence of Job
        Of each part, in the order in which it does them.
    journeys : sequence of Journey
        By the numbers that jobs name; each is sent by one job, of its sender.
    sharing : Sharing

    Raises
    ------
    ArgumentError
        If some part waits for ever.

    >>> from hgpart.machines.machine import Slowdown
    >>> there = Journey(0, 1, seconds=1.0, both_ways=1.0)
    >>> jobs = [[Job(2.0, sends=(0,)), Job(2.0)], [Job(2.0, awaits=(0,))]]
    >>> simulate(jobs, [there], Sharing((0, 0), Slowdown((1.0, 2.0)))).jobs[1]
    [Span(begin=3.0, end=6.0)]
    """
    simulation = _Simulation(jobs, journeys, sharing)
    simulation.run()
    for part, of_part in enumerate(simulation.jobs):
        if len(of_part) < len(jobs[part]):
            missing = sorted(simulation.parts[part].missing)
            raise ArgumentError(
                f"part {part} waits for ever for messages {missing}: accepted are those that some "
                "job sends before"
            )
    return Spans(simulation.jobs, simulation.travelled)


class _Clock:
    """A clock that goes at a rate, and shows how much is done."""

    __slots__ = ("_at", "_rate", "_shown")

    def __init__(self, now: float) -> None:
        self._at, self._shown, self._rate = now, 0.0, 1.0

    def reading(self, now: float) -> float:
        """What it shows."""
        return self._shown + (now - self._at) * self._rate

    def when(self, reading: float) -> float:
        """When it will show so much."""
        return self._at + (reading - self._shown) / self._rate

    def go(self, rate: float, now: float) -> None:
        """Go on at a rate; where it is the same, nothing is rounded."""
        if rate != self._rate:
            self._shown, self._at, self._rate = self.reading(now), now, rate


class _Part:
    """What a part does.

    Attributes
    ----------
    job : Job or None
        That it does now.
    begun : float
        When it began it.
    clock : _Clock
        Of it.
    due : float or None
        When it will be done, as events say.
    version : int
        Of that event: others are out of date.
    missing : set of int
        Journeys that it waits for.
    """

    __slots__ = ("begun", "clock", "due", "job", "missing", "version")

    def __init__(self) -> None:
        self.job: Job | None = None
        self.clock, self.begun = _Clock(0.0), 0.0
        self.due: float | None = None
        self.version = 0
        self.missing: set[int] = set()


class _Simulation:
    """See `simulate`."""

    def __init__(
        self, jobs: Sequence[Sequence[Job]], journeys: Sequence[Journey], sharing: Sharing
    ) -> None:
        self.jobs: list[list[Span]] = [[] for _ in jobs]
        self.travelled: list[Span] = [Span(0.0, 0.0)] * len(journeys)
        self.parts = [_Part() for _ in jobs]
        self._to_do, self._journeys, self._sharing = jobs, journeys, sharing
        self._of_node: list[list[int]] = [[] for _ in range(max(sharing.nodes, default=-1) + 1)]
        for part, node in enumerate(sharing.nodes):
            self._of_node[node].append(part)
        self._computing = [0] * len(self._of_node)  # parts of each node
        self._arrived = [False] * len(journeys)
        # Time, number, part or -1, journey, version.
        self._events: list[tuple[float, int, int, int, int]] = []
        self._count = 0
        self._under_way: dict[tuple[int, int], list[int]] = {}  # by sender and receiver
        # Where parts queue: by sender, those that it has posted and that have not left; by
        # receiver, when it will have taken in all that has left.
        self._leaving: list[deque[int]] = [deque() for _ in jobs]
        self._taken_in = [0.0] * len(jobs)
        self._clocks: dict[int, _Clock] = {}  # of journeys under way
        # By part, of journeys under way: the share of its computing that each takes.
        self._handled: list[dict[int, float]] = [{} for _ in jobs]
        self._versions = [0] * len(journeys)

    def run(self) -> None:
        """Go on until nothing happens any more."""
        for part in range(len(self.jobs)):
            self._next(part, 0.0)
        while self._events:
            now, _, part, journey, version = heappop(self._events)
            if part < 0:
                if version == LANDING:
                    self._arrive(journey, now)
                elif version == self._versions[journey]:
                    self._leave(journey, now)
            elif version == self.parts[part].version:
                self._end(part, now)

    # ---------------------------------------------------------------- computing

    def _next(self, at: int, now: float) -> None:
        """Let a part go on with its next job, or wait for what that awaits."""
        done = len(self.jobs[at])
        if done < len(self._to_do[at]):
            awaits = self._to_do[at][done].awaits
            self.parts[at].missing = {one for one in awaits if not self._arrived[one]}
            if not self.parts[at].missing:
                self._begin(at, now)

    def _begin(self, at: int, now: float) -> None:
        part = self.parts[at]
        part.job, part.begun = self._to_do[at][len(self.jobs[at])], now
        part.clock, part.due = _Clock(now), None
        self._count_computing(at, 1, now)
        self._settle(at, now)

    def _settle(self, at: int, now: float) -> None:
        """Let a part compute at the rate of now, and say when it will be done."""
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
        for journey in sends:
            self._post(journey, now)
        self._next(at, now)

    def _count_computing(self, at: int, more: int, now: float) -> None:
        """Tell the other parts of a node that one computes, or that it does not any more."""
        node = self._sharing.nodes[at]
        self._computing[node] += more
        if self._slows:
            for other in self._of_node[node]:
                if other != at:
                    self._settle(other, now)

    @cached_property
    def _slows(self) -> bool:
        """Whether parts that compute slow others down."""
        both = self._sharing.slowdown, self._sharing.memory_bound
        return any(max(one.together) > 1 for one in both)

    def _push(self, when: float, part: int, journey: int, version: int) -> None:
        self._count += 1
        heappush(self._events, (when, self._count, part, journey, version))

    # ---------------------------------------------------------------- travelling

    def _post(self, journey: int, now: float) -> None:
        """Let a message depart, or wait for those before it."""
        leaving = self._leaving[self._journeys[journey].sender]
        leaving.append(journey)
        if not self._sharing.queues or len(leaving) == 1:
            self._depart(journey, now)

    def _depart(self, journey: int, now: float) -> None:
        sender, receiver, *_ = self._journeys[journey]
        together = self._under_way.setdefault((sender, receiver), [])
        against = self._under_way.get((receiver, sender), [])
        together.append(journey)
        self._clocks[journey] = _Clock(now)
        self.travelled[journey] = Span(now, now)
        self._go(journey, bool(against), now)
        if len(together) == 1:
            for other in against:
                self._go(other, True, now)

    def _go(self, journey: int, against: bool, now: float) -> None:
        """Let a message go on at the rate of a link with or without others against it."""
        sender, receiver, seconds, both_ways, handling = self._journeys[journey]
        if seconds == both_ways and self._versions[journey]:
            return
        clock = self._clocks[journey]
        rate = seconds / both_ways if against and seconds else 1.0
        clock.go(rate, now)
        if handling and seconds:
            for part in (sender, receiver):
                self._handled[part][journey] = rate * handling / seconds
                self._settle(part, now)
        self._versions[journey] += 1
        self._push(max(now, clock.when(seconds)), -1, journey, self._versions[journey])

    def _leave(self, journey: int, now: float) -> None:
        """Let a message be off the link, and the next one on it."""
        sender, receiver, *_ = self._journeys[journey]
        together = self._under_way[sender, receiver]
        together.remove(journey)
        del self._clocks[journey]
        for part in (sender, receiver):
            if self._handled[part].pop(journey, None) is not None:
                self._settle(part, now)
        if not together:
            for other in self._under_way.get((receiver, sender), []):
                self._go(other, False, now)
        self._leaving[sender].remove(journey)
        landing = now
        if self._sharing.queues:
            if self._leaving[sender]:
                self._depart(self._leaving[sender][0], now)
            taken = now - self.travelled[journey].begin
            landing = max(now, self._taken_in[receiver] + taken)
            self._taken_in[receiver] = landing
        if landing > now:
            self._versions[journey] = LANDING
            self._push(landing, -1, journey, LANDING)
        else:
            self._arrive(journey, now)

    def _arrive(self, journey: int, now: float) -> None:
        self.travelled[journey] = Span(self.travelled[journey].begin, now)
        self._arrived[journey] = True
        receiver = self._journeys[journey].receiver
        missing = self.parts[receiver].missing
        if journey in missing:
            missing.remove(journey)
            if not missing:
                self._begin(receiver, now)
