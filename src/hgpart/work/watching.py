"""A measurement -> Conditions: whether other programs, or too little of the CPU, disturbed it.

A measurement beside other programs takes too long, and nothing in its figure says so. So a
`Watch` compares the CPU time of the cores with that of this process and all that it has started,
repeats what was disturbed, and keeps what can be said for sure.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import fsum
from operator import attrgetter
from pathlib import Path
from statistics import quantiles
from typing import TypeVar

from hgpart.cores import affinity

PROC = Path("/proc")  # Linux's accounts, see proc(5)
SHORT = 0.5  # seconds: of less the accounts, which count hundredths of seconds, say nothing
MUCH = 0.08  # share of the cores' time: of two, an idle computer's daemons take 0.01 to 0.03
UNEVEN, WILD = 0.1, 0.5  # spreads of repetitions: doubtful if others ran, and in any case
NOTE = ", disturbed: "
STARVED = 0.9  # share of its time in which a thread that never waits has a core, on an idle one
Result = TypeVar("Result")


@dataclass(frozen=True)
class Spent:
    """CPU seconds up to now, or between two moments.

    Attributes
    ----------
    node : str
        The computer.
    cores : mapping of int to (float, float)
        For each core that this process may use, the seconds that programs ran on it, and that none
        did.
    own : float
        CPU seconds of this process and of all that it has started.
    alone : float
        CPU seconds of this process.
    seconds : float
        Seconds by the clock.
    load : float or None
        Where the system has no accounts of its cores, the number of other programs that compute.
    """

    node: str
    cores: Mapping[int, tuple[float, float]]
    own: float
    alone: float
    seconds: float
    load: float | None = None

    def since(self, before: Spent) -> Spent:
        """What was spent since an earlier moment."""
        if self.load is not None:
            return self._by_load(self.load, before)
        cores = {
            core: (busy - before.cores[core][0], idle - before.cores[core][1])
            for core, (busy, idle) in self.cores.items()
            if core in before.cores
        }
        return Spent(
            self.node,
            cores,
            max(0.0, self.own - before.own),
            self.alone - before.alone,
            self.seconds - before.seconds,
        )

    def _by_load(self, load: float, before: Spent) -> Spent:
        """The same where others took what they would by the load of now."""
        seconds, cores = self.seconds - before.seconds, len(affinity())
        others = min(float(cores), load)
        taken = {0: (seconds * others, seconds * (cores - others))}
        return Spent(self.node, taken, 0.0, self.alone - before.alone, seconds)


@dataclass(frozen=True)
class Conditions:
    """The computer while something was measured.

    Attributes
    ----------
    seconds : float
        Duration of the measurement.
    others : float
        Share of the cores' time that other programs took.
    idle : float
        Share of the cores' time that nobody took.
    computing : float
        CPU time over time by the clock, of a process that computes without waiting; else 1.
    spread : float
        The middle half of equal repetitions, relative to their median; 0 where that is not known.
    """

    seconds: float
    others: float = 0.0
    idle: float = 1.0
    computing: float = 1.0
    spread: float = 0.0

    @property
    def text(self) -> str:
        """What disturbed the measurement; empty unless something did for sure.

        Where others leave many cores idle, as in a large computer, they need not disturb.

        >>> Conditions(2.0, others=0.5, idle=0.01).text
        "other programs took 50 % of the cores' time"
        >>> Conditions(2.0, others=0.3, idle=0.68).text, Conditions(2.0, 0.02, 0.0).text
        ('', '')
        """
        if self.seconds < SHORT:
            return ""
        if self.others >= MUCH and (self.others > self.idle or self.spread > UNEVEN):
            return f"other programs took {100 * self.others:.0f} % of the cores' time"
        if self.computing < STARVED:
            share = f"{100 * self.computing:.0f} %"
            return f"a thread that never waits had a core for {share} of the time"
        if self.spread > WILD:
            return f"the middle half of equal repetitions differ by {100 * self.spread:.0f} %"
        return ""


def with_note(source: str, disturbed: str) -> str:
    """Say where figures come from, and what disturbed them if anything did; see `noted`.

    >>> with_note("profile", ""), with_note("profile", "others ran")
    ('profile', 'profile, disturbed: others ran')
    """
    return f"{source}{NOTE}{disturbed}" if disturbed else source


def noted(source: str) -> str:
    """What `with_note` said to have disturbed figures.

    >>> noted(with_note("profile", "others ran")), noted("profile")
    ('others ran', '')
    """
    return source.partition(NOTE)[2]


def caution(what: str, disturbed: str) -> str:
    """Say that figures can't be trusted, and why; empty where nothing disturbed them.

    >>> caution("These figures", "other programs took 50 % of the cores' time")[:56]
    "These figures can't be trusted: other programs took 50 %"
    """
    if not disturbed:
        return ""
    return (
        f"{what} can't be trusted: {disturbed} while they were measured; repeat on an idle machine"
    )


class Watch:
    """Watches measurements, and repeats what was disturbed, until a repetition is disturbed too.

    So a passing disturbance costs one repetition of what it disturbed, and a lasting one a single
    repetition in all.

    Parameters
    ----------
    gather : callable
        Returns what all processes spent that measure together; each calls it with its own.
    read : callable
        Returns what was spent up to now.
    repeats : bool
        Whether anything is repeated.

    Attributes
    ----------
    seen : list of Conditions
        Those of each measurement that counts.

    >>> moments = iter([0.0, 1.0, 2.0, 4.0])  # others take all of it, and of the repetition half
    >>> def read() -> Spent:
    ...     now = next(moments)
    ...     return Spent("here", {0: (now, 0.0)}, max(0.0, now / 2 - 1), now, now)
    >>> watch, results = Watch(read=read), iter([8, 5])
    >>> watch.measure(lambda: next(results)), watch.disturbed
    (5, "other programs took 50 % of the cores' time")
    """

    def __init__(
        self,
        gather: Callable[[Spent], Sequence[Spent]] = lambda own: [own],
        read: Callable[[], Spent] | None = None,
        *,
        repeats: bool = True,
    ) -> None:
        self._gather, self._read, self._repeats = gather, read or spent_so_far, repeats
        self.seen: list[Conditions] = []

    def measure(
        self,
        run: Callable[[], Result],
        *,
        computes: bool = False,
        spread: Callable[[Result], float] = lambda result: 0.0,
    ) -> Result:
        """Measure something, again if it was disturbed; returns the less disturbed result.

        Parameters
        ----------
        computes : bool
            Whether this process computes all the time, without waiting for others.
        spread : callable
            Spread of the repetitions in a result. Processes that measure together leave both out:
            they repeat the same.
        """
        result, conditions = self._watched(run, computes, spread)
        if conditions.text and self._repeats:
            second, later = self._watched(run, computes, spread)
            self._repeats = not later.text
            if not later.text or later.others < conditions.others:
                result, conditions = second, later
        self.seen.append(conditions)
        return result

    @property
    def disturbed(self) -> str:
        """What disturbed the measurements most, or all of them together; empty if nothing did."""
        seconds = fsum(measured.seconds for measured in self.seen)
        shares = (
            fsum(measured.seconds * getattr(measured, name) for measured in self.seen)
            / max(seconds, 1e-9)
            for name in ("others", "idle", "computing")
        )
        judged = Conditions(seconds, *shares), *self.seen
        worst = max(judged, key=lambda conditions: (bool(conditions.text), conditions.others))
        return worst.text

    def _watched(
        self, run: Callable[[], Result], computes: bool, spread: Callable[[Result], float]
    ) -> tuple[Result, Conditions]:
        before = self._read()
        result = run()
        own = self._read().since(before)
        gathered = self._gather(own)
        others, idle = _shares(gathered)
        seconds = max(process.seconds for process in gathered)  # all processes judge alike
        computing = own.alone / max(own.seconds, 1e-9) if computes else 1.0
        return result, Conditions(seconds, others, idle, computing, spread(result))


def spread_of(seconds: Sequence[float]) -> float:
    """The middle half of repetitions relative to their median; 0 of fewer than four.

    >>> spread_of([1.0, 1.0, 1.0, 9.0]), spread_of([1.0, 2.0, 2.0, 3.0]), spread_of([1.0, 2.0])
    (2.0, 0.25, 0.0)
    """
    if len(seconds) < 4:
        return 0.0
    low, middle, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / max(middle, 1e-12)


def _shares(spent: Sequence[Spent]) -> tuple[float, float]:
    """What others took, and what was left, of the cores' time on the node that has most others."""
    shares = []
    node_of = attrgetter("node")
    for _, group in groupby(sorted(spent, key=node_of), node_of):
        processes = [*group]
        cores = {core: times for process in processes for core, times in process.cores.items()}
        busy, idle = (fsum(times[which] for times in cores.values()) for which in (0, 1))
        others = max(0.0, busy - fsum(process.own for process in processes))
        whole = max(busy + idle, 1e-9)
        shares.append((others / whole, idle / whole))
    return max(shares)


# ------------------------------------------------------------------ the system's accounts


def spent_so_far() -> Spent:
    """What was spent up to now: since the computer started."""
    now, alone = time.monotonic(), time.process_time()
    node, tick = platform.node(), os.sysconf("SC_CLK_TCK")
    try:
        text = (PROC / "stat").read_text()
    except OSError:  # Linux alone has it
        load = max(0.0, os.getloadavg()[0] - 1)  # this program is one of those that it counts
        return Spent(node, {}, 0.0, alone, now, load)
    usable = affinity()
    cores = {
        core: (busy / tick, idle / tick)
        for core, (busy, idle) in _cores(text).items()
        if core in usable
    }
    return Spent(node, cores, _own_ticks(os.getpid()) / tick, alone, now)


def _cores(text: str) -> dict[int, tuple[int, int]]:
    r"""Busy and idle ticks of each core. Interrupts count for nobody: they may be of own messages.

    >>> _cores("cpu  9 9\ncpu0 1 2 3 40 5 6 7 8 0 0\nintr 1")
    {0: (14, 45)}
    """
    ticks = {}
    for line in text.splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, waiting, _, _, stolen = map(int, numbers[:8])
            ticks[int(name[3:])] = user + nice + system + stolen, idle + waiting
    return ticks


def _own_ticks(root: int) -> int:
    """CPU ticks of a process, of those that it has started, and so on, also of those that ended."""
    parents, ticks = dict[int, int](), dict[int, int]()
    for file in PROC.glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        own = int(file.parent.name)
        parents[own], ticks[own] = int(fields[1]), sum(map(int, fields[11:15]))
    return sum(count for own, count in ticks.items() if _descends(own, root, parents))


def _descends(own: int, root: int, parents: Mapping[int, int]) -> bool:
    while own != root and own in parents:
        own = parents[own]
    return own == root
