"""Jobs, journeys, Sharing -> Spans: when each of them begins and ends, by a simulation of events.

All jobs of a node go at one rate, and so does each journey, between events that change it. So what
runs in a node has one clock, whose reading goes on at that rate: a job ends at a reading that is
known when it begins, whatever slows it then, and an event costs as much as a heap's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from hgpart.errors import ArgumentError
from hgpart.prediction.jobs import Job, Journey, Sharing, Span, Spans


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

    >>> there = Journey(0, 1, seconds=1.0, both_ways=1.0)
    >>> jobs = [[Job(2.0, sends=(0,)), Job(2.0)], [Job(2.0, awaits=(0,))]]
    >>> simulate(jobs, [there], Sharing((0, 0), together=(1.0, 2.0))).jobs[1]
    [Span(begin=3.0, end=6.0)]
    """
    simulation = _Simulation(jobs, journeys, sharing)
    simulation.run()
    for part, of_part in enumerate(simulation.jobs):
        if len(of_part) < len(jobs[part]):
            raise ArgumentError(
                f"part {part} waits for ever for messages {sorted(simulation.missing[part])}: "
                "accepted are those that some job sends before"
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


class _Node:
    """What the parts of a node compute, by one clock.

    Attributes
    ----------
    running : list of (float, int)
        A heap: at what reading the job of a part ends.
    sending : int
        Messages that leave it or come to it.
    due : float or None
        When the next job ends, as events say.
    version : int
        Of that event: others are out of date.
    """

    __slots__ = ("clock", "due", "running", "sending", "version")

    def __init__(self) -> None:
        self.clock = _Clock(0.0)
        self.running: list[tuple[float, int]] = []
        self.sending, self.version = 0, 0
        self.due: float | None = None


class _Simulation:
    """See `simulate`."""

    def __init__(
        self, jobs: Sequence[Sequence[Job]], journeys: Sequence[Journey], sharing: Sharing
    ) -> None:
        self.jobs: list[list[Span]] = [[] for _ in jobs]
        self.travelled: list[Span] = [Span(0.0, 0.0)] * len(journeys)
        self.missing: list[set[int]] = [set() for _ in jobs]  # that a part waits for
        self._to_do, self._journeys, self._sharing = jobs, journeys, sharing
        self._nodes = [_Node() for _ in range(max(sharing.nodes, default=-1) + 1)]
        self._begun = [0.0] * len(jobs)
        self._arrived = [False] * len(journeys)
        # Time, number, node or -1, journey, version.
        self._events: list[tuple[float, int, int, int, int]] = []
        self._count = 0
        # By sender and receiver: those under way, and those behind them.
        self._under_way: dict[tuple[int, int], list[int]] = {}
        self._waiting: dict[tuple[int, int], deque[int]] = {}
        self._clocks: dict[int, _Clock] = {}  # of journeys under way
        self._versions = [0] * len(journeys)

    def run(self) -> None:
        """Go on until nothing happens any more."""
        for part in range(len(self.jobs)):
            self._next(part, 0.0)
        while self._events:
            now, _, node, journey, version = heappop(self._events)
            if node < 0:
                if version == self._versions[journey]:
                    self._arrive(journey, now)
            elif version == self._nodes[node].version:
                self._end_jobs(node, now)

    # ---------------------------------------------------------------- computing

    def _next(self, part: int, now: float) -> None:
        """Let a part go on with its next job, or wait for what that awaits."""
        done = len(self.jobs[part])
        if done < len(self._to_do[part]):
            awaits = self._to_do[part][done].awaits
            self.missing[part] = {one for one in awaits if not self._arrived[one]}
            if not self.missing[part]:
                self._begin(part, now)

    def _begin(self, part: int, now: float) -> None:
        at = self._sharing.nodes[part]
        node = self._nodes[at]
        seconds = self._to_do[part][len(self.jobs[part])].seconds
        self._begun[part] = now
        heappush(node.running, (node.clock.reading(now) + seconds, part))
        self._settle(at, now)

    def _settle(self, at: int, now: float) -> None:
        """Let a node go at the rate of what it does now, and say when its next job ends."""
        node = self._nodes[at]
        if not node.running:
            node.version += 1
            node.due = None
            return
        node.clock.go(1 / self._sharing.slowdown(len(node.running), node.sending), now)
        due = max(now, node.clock.when(node.running[0][0]))
        if due != node.due:
            node.due = due
            node.version += 1
            self._push(due, at, 0, node.version)

    def _end_jobs(self, at: int, now: float) -> None:
        """End the job that is due."""
        node = self._nodes[at]
        node.due = None
        _, part = heappop(node.running)
        job = self._to_do[part][len(self.jobs[part])]
        self.jobs[part].append(Span(self._begun[part], now))
        for journey in job.sends:
            self._post(journey, now)
        self._next(part, now)
        self._settle(at, now)

    def _push(self, when: float, node: int, journey: int, version: int) -> None:
        self._count += 1
        heappush(self._events, (when, self._count, node, journey, version))

    # ---------------------------------------------------------------- travelling

    def _post(self, journey: int, now: float) -> None:
        """Let a message depart, or wait for those before it."""
        sender, receiver, *_ = self._journeys[journey]
        way = sender, receiver
        if self._sharing.queues and self._under_way.get(way):
            self._waiting.setdefault(way, deque()).append(journey)
        else:
            self._depart(journey, now)

    def _depart(self, journey: int, now: float) -> None:
        sender, receiver, *_ = self._journeys[journey]
        together = self._under_way.setdefault((sender, receiver), [])
        against = self._under_way.get((receiver, sender), [])
        together.append(journey)
        self._clocks[journey] = _Clock(now)
        self.travelled[journey] = Span(now, now)
        self._count_sending(sender, receiver, 1, now)
        self._go(journey, bool(against), now)
        if len(together) == 1:
            for other in against:
                self._go(other, True, now)

    def _go(self, journey: int, against: bool, now: float) -> None:
        """Let a message go on at the rate of a link with or without others against it."""
        _, _, seconds, both_ways = self._journeys[journey]
        if seconds == both_ways and self._versions[journey]:
            return
        clock = self._clocks[journey]
        clock.go(seconds / both_ways if against and seconds else 1.0, now)
        self._versions[journey] += 1
        self._push(max(now, clock.when(seconds)), -1, journey, self._versions[journey])

    def _arrive(self, journey: int, now: float) -> None:
        sender, receiver, *_ = self._journeys[journey]
        way = sender, receiver
        together = self._under_way[way]
        together.remove(journey)
        del self._clocks[journey]
        self.travelled[journey] = Span(self.travelled[journey].begin, now)
        self._count_sending(sender, receiver, -1, now)
        if not together:
            for other in self._under_way.get((receiver, sender), []):
                self._go(other, False, now)
        if self._waiting.get(way):
            self._depart(self._waiting[way].popleft(), now)
        self._arrived[journey] = True
        missing = self.missing[receiver]
        if journey in missing:
            missing.remove(journey)
            if not missing:
                self._begin(receiver, now)

    def _count_sending(self, sender: int, receiver: int, more: int, now: float) -> None:
        """Tell the nodes of both that a message travels, or that it does not any more."""
        if self._sharing.while_sending == 1:
            return
        for at in {self._sharing.nodes[sender], self._sharing.nodes[receiver]}:
            self._nodes[at].sending += more
            self._settle(at, now)
