"""Laps of processes -> Bench: what a step or a pass takes each way, or why not, and its files."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any, TypeVar

import numpy as np

from hgpart.bench.ways.way import SINGLE, TrainingWay
from hgpart.bench.ways.worker import Lap
from hgpart.files.columns import BYTES, Column, fields_of
from hgpart.files.fields import csv_text
from hgpart.files.json_files import JsonObject
from hgpart.files.row_files import resumed_rows, rows_json
from hgpart.tracing.input_shape import InputShape
from hgpart.work.watching import caution

FORMAT = "hgpart bench 1"
LARGEST = 2**53
# What two runs need not agree in for one to resume the other.
MAY_DIFFER = ("model", "work_source", "left_out", "rows", "besides")

Ran = TypeVar("Ran", bound=Any)


@dataclass(frozen=True)
class Measured:
    """What training, or running forward, took one way.

    Attributes
    ----------
    rounds : int
        Number of rounds in which the way had its turn.
    seconds : tuple of float
        Duration of each step. A step lasts until the last process has ended it; where processes do
        not wait for each other, it is the harmonic mean of theirs, as their rates add up. A pass
        lasts from when the first process begins it until the last one has ended it.
    losses : tuple of float
        Losses of the steps of the first round; the first two steps are not timed. In inference, the
        means of all results, by which ways can be compared.
    busy : tuple of float
        CPU seconds of each process's threads, as a share of all that they had: 0 to 1.
    sent_bytes : float or None
        Bytes that left all processes in a step: for hgpart's ways the tensors sent, for parameter
        servers gradients and weights, for others all that was written to sockets. None where
        that is not known.
    peak_bytes : tuple of int
        The most memory that each process had in a step, libraries included. (On systems that can't
        reset this count, as Linux can, since the process began.)
    ended : str or None
        The error that ended the way in a later round, so that it had no further turn.
    disturbed : str
        What disturbed a turn, as `hgpart.work.watching` says it; empty where nothing did.
    unit : str
        The unit that is timed: a "step" of training, or a "pass" forward.
    repeated : float
        Work that is computed more than once, as a share of the model's.
    note : str
        A note on how the way divides the model.
    """

    way: str
    rounds: int
    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    busy: tuple[float, ...]
    sent_bytes: float | None
    peak_bytes: tuple[int, ...]
    ended: str | None = None
    disturbed: str = ""
    unit: str = "step"
    repeated: float = 0.0
    note: str = ""

    @property
    def passes(self) -> int:
        """Number of timed steps or passes."""
        return len(self.seconds)

    def percentile(self, percent: float) -> float:
        """Seconds within which so many of a hundred steps or passes end, between two linearly.

        >>> Measured("single", 1, (1.0, 3.0, 2.0), (), (), None, ()).percentile(90)
        2.8
        """
        return float(np.percentile(self.seconds, percent))

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Seconds of a step or pass: lower quartile, median, upper quartile."""
        return self.percentile(25), self.percentile(50), self.percentile(75)

    @property
    def busy_share(self) -> float:
        """The mean of all processes."""
        return fmean(self.busy)

    @property
    def waiting_share(self) -> float:
        """The rest of the time."""
        return 1 - self.busy_share

    @property
    def largest_peak_bytes(self) -> int:
        """The peak of the process that has most."""
        return max(self.peak_bytes)

    @property
    def all_peak_bytes(self) -> int:
        """The peaks of all processes together."""
        return sum(self.peak_bytes)

    def and_then(self, other: Measured) -> Measured:
        """These rounds and a further one."""
        rounds = self.rounds + other.rounds

        def mean(first: float, second: float) -> float:
            return (first * self.rounds + second * other.rounds) / rounds

        is_known = self.sent_bytes is not None and other.sent_bytes is not None
        return replace(
            self,
            rounds=rounds,
            seconds=self.seconds + other.seconds,
            busy=tuple(map(mean, self.busy, other.busy)),
            sent_bytes=mean(self.sent_bytes or 0, other.sent_bytes or 0) if is_known else None,
            peak_bytes=tuple(map(max, self.peak_bytes, other.peak_bytes)),
            disturbed=self.disturbed or other.disturbed,
        )


@dataclass(frozen=True)
class NotRun:
    """A way that could not be run, and why.

    Attributes
    ----------
    failed : bool
        Whether something went wrong, so that another attempt may succeed.
    """

    way: str
    why: str
    failed: bool

    @property
    def what(self) -> str:
        """What became of the way, in a word or two."""
        return "failed" if self.failed else "can't be used"


Row = Measured | NotRun


@dataclass(frozen=True)
class Bench:
    """Ways of training one model, or of running it, on the clock.

    Attributes
    ----------
    input_shape : InputShape
    fingerprint : str
        Fingerprint of the model's ChannelGraph.
    batch_size : int
        Samples of a step, of all processes together.
    processes : int
        Number of processes that share a step.
    threads : int
        Threads of each process.
    steps : int
        Timed steps in a round.
    eps, effort, seed, work_source, work_digest
        Settings that the partitions were made with.
    data : str
        Data set, as `load_data` takes it.
    inference : bool
        Whether steps are passes forward, in evaluation.
    machine : str
        The machine and the versions that were measured.
    left_out : int
        Number of turns for which there was no time.
    rows : tuple of Measured or NotRun
        Rows of the ways that were asked for, as far as they are there.
    besides : tuple of Measured or NotRun
        Rows of a resumed file that were not asked for now.
    """

    model: str
    input_shape: InputShape
    fingerprint: str
    batch_size: int
    processes: int
    threads: int
    steps: int
    eps: float
    effort: float
    lr: float
    seed: int
    work_source: str
    work_digest: str
    data: str = "synthetic"
    inference: bool = False
    machine: str = ""
    left_out: int = 0
    rows: tuple[Row, ...] = ()
    besides: tuple[Row, ...] = ()

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The rows that have figures."""
        return tuple(row for row in self.rows if isinstance(row, Measured))

    @property
    def caution(self) -> str:
        """Why figures can't be trusted; empty where nothing is known against them."""
        return caution_of(self.measured)

    def speed_up(self, row: Measured) -> float | None:
        """Speed over one process, where that was measured, now or in a resumed file."""
        for base in (*self.rows, *self.besides):
            if isinstance(base, Measured) and base.way == SINGLE:
                return base.quartiles[1] / row.quartiles[1]
        return None


def measured(
    way: TrainingWay, warm_up: Sequence[Lap], timed: Sequence[Lap], threads: int
) -> Measured:
    """What a way's processes did in a round of warm-up steps and timed steps.

    The first of the timed steps does not count, as one process may begin it before another. Nor do
    the steps that fill a stream at its begin, and those that are left in it at its end.
    """
    at_work = [lap for lap in timed if lap.ends]
    partly = way.scheduling.most_in_flight - 1
    ends = [[*lap.ends[partly : len(lap.ends) - partly]] for lap in at_work]
    if not way.is_free:
        ends = [[max(ended) for ended in zip(*ends, strict=True)]]
    steps = [[after - before for before, after in pairwise(own)] for own in ends]
    begins = [min(begun) for begun in zip(*(lap.begins for lap in timed), strict=True)]
    if begins:
        steps = [[end - begin for begin, end in zip(begins[1:], ends[0][1:], strict=True)]]
    spent = max(lap.ends[-1] for lap in at_work) - min(lap.begin for lap in at_work)
    sent = [lap.sent_bytes for lap in timed]
    return Measured(
        way=way.text,
        rounds=1,
        seconds=tuple(map(harmonic_mean, zip(*steps, strict=True))),
        losses=(*summed_losses(warm_up), *summed_losses(timed)),
        busy=tuple(min(1.0, lap.cpu_seconds / (threads * spent)) for lap in timed),
        sent_bytes=None
        if None in sent
        else sum(lap.sent_bytes or 0 for lap in timed) / len(at_work[0].ends),
        peak_bytes=tuple(lap.peak_bytes for lap in timed),
        unit="pass" if begins else "step",
    )


def caution_of(rows: Sequence[Any]) -> str:
    """Name the rows that were disturbed, and what disturbed the first of them."""
    disturbed = [row for row in rows if row.disturbed]
    if not disturbed:
        return ""
    ways = f"The figures of {', '.join(row.way for row in disturbed)}"
    return caution("These figures" if len(disturbed) == len(rows) else ways, disturbed[0].disturbed)


def summed_losses(laps: Sequence[Lap]) -> tuple[float, ...]:
    """The loss of each step, of which each process has a share."""
    return tuple(map(sum, zip(*(lap.losses for lap in laps if lap.losses), strict=True)))


def bench_columns(bench: Bench) -> tuple[Column[Measured], ...]:
    """The figures of each way."""

    def at(percent: float) -> Callable[[Measured], float]:
        return lambda row: row.percentile(percent)

    def by(percent: int, detail: bool = False) -> Column[Measured]:
        within = f"Of a hundred passes, {percent} take no more."
        named = f"p{percent}_seconds", f"p{percent}", within, "ms"
        return Column(*named, at(percent), decimals=1, detail=detail)

    rate, what = (lambda row: bench.batch_size / row.quartiles[1]), "step"
    lower, upper = "A quarter of the steps take no more.", "A quarter of the steps take no less."
    times = (
        Column("median_seconds", "a step", "Median of all timed steps.", "s", at(50)),
        Column("lower_seconds", "lower", lower, "s", at(25), detail=True),
        Column("upper_seconds", "upper", upper, "s", at(75), detail=True),
    )
    last = (
        Column[Measured]("first_loss", value=lambda row: row.losses[0]),
        Column[Measured]("last_loss", value=lambda row: row.losses[-1]),
    )
    if bench.inference:
        what = "pass"
        times = by(50), by(90), by(99)
        again = "Work that is computed more than once, as a share of the model's."
        passes = Column[Measured]("passes", "passes", "Number of timed passes.", detail=True)
        repeated = Column[Measured]("repeated", "again", again, "%", decimals=1, detail=True)
        last = passes, repeated
    sent, peak = f"Bytes that all processes send in a {what}.", "libraries included."
    busy = "CPU time of all processes, as a share of what their threads had."
    return (
        Column("way", "way"),
        Column("rounds"),
        *times,
        Column("samples_per_second", "samples/s", "By the median.", value=rate),
        Column("speed_up", "speed-up", "Over one process.", value=bench.speed_up, decimals=2),
        Column("busy_share", "busy", busy, "%", decimals=0),
        Column("waiting_share", "waiting", "The rest of it.", "%", decimals=0, detail=True),
        Column("sent_bytes", "sent", sent, BYTES),
        Column("largest_peak_bytes", "peak", f"Memory of the process with most, {peak}", BYTES),
        Column("all_peak_bytes", "peak of all", f"All processes, {peak}", BYTES, detail=True),
        *last,
    )


# ------------------------------------------------------------------ files


def bench_json(bench: Bench) -> str:
    """All figures as JSON, one line a way."""
    return rows_json(FORMAT, bench, lambda row: _fields(row, bench))


def bench_csv(bench: Bench) -> str:
    """A header and a line a way."""
    names = [column.key for column in bench_columns(bench)]
    return csv_text((*names, "ended", "why"), (_fields(row, bench) for row in bench.rows))


def _fields(row: Row, bench: Bench) -> dict[str, object]:
    figures = {} if isinstance(row, NotRun) else fields_of(bench_columns(bench), row)
    return {**asdict(row), **figures}


def rows_done(path: Path | str | None, bench: Bench) -> dict[str, Row]:
    """The rows of a file that `bench` (as yet without rows) resumes, by way.

    Raises
    ------
    FormatError
        If the file is malformed.
    PlanError
        If it is of another model, or of other settings.
    """
    return rows_by_way(path, "a file of hgpart bench --json", FORMAT, bench, _row)


def _row(record: JsonObject) -> Measured:
    def amounts(name: str, least: int, high: float = LARGEST) -> tuple[float, ...]:
        items = record.items(name)
        if len(items) < least or not all(type(x) in (int, float) and 0 <= x <= high for x in items):
            raise record.wrong(name, f"{least} numbers or more, from 0 to {high}")
        return tuple(map(float, items))

    sent = None if record.fields.get("sent_bytes") is None else record.number("sent_bytes")
    losses = [figure(loss) for loss in record.items("losses")]
    if not losses or None in losses:
        raise record.wrong("losses", "one number or more, null where there was none")
    ended = record.fields.get("ended")
    if not isinstance(ended, str | None):
        raise record.wrong("ended", "a text, or null")
    return Measured(
        way=record.string("way"),
        rounds=record.whole("rounds", 1, 10**6),
        seconds=amounts("seconds", 1),
        losses=tuple(loss for loss in losses if loss is not None),
        busy=amounts("busy", 1, 1),
        sent_bytes=sent,
        peak_bytes=tuple(map(int, amounts("peak_bytes", len(record.items("busy"))))),
        ended=ended,
        disturbed=record.string("disturbed") if "disturbed" in record.fields else "",
        unit=record.string("unit") if "unit" in record.fields else "step",
        repeated=float(record.fields.get("repeated", 0.0)),
        note=record.string("note") if "note" in record.fields else "",
    )


def rows_by_way(
    path: Path | str | None,
    what: str,
    format: str,
    wanted: Any,
    ran: Callable[[JsonObject], Ran],
) -> dict[str, Ran | NotRun]:
    """The rows of a file to resume, by way, as `resumed_rows` reads them.

    Parameters
    ----------
    wanted : dataclass
        A record with the settings that the file must have: all of its fields but `MAY_DIFFER`.
    ran : callable
        Makes a row of an object that is no `NotRun`.

    Raises
    ------
    FormatError
        If the file is malformed.
    PlanError
        If it is of another model, or of other settings.
    """

    def row_of(record: JsonObject) -> Ran | NotRun:
        if "why" in record.fields:
            return NotRun(record.string("way"), record.string("why"), record.flag("failed"))
        return ran(record)

    names = [setting.name for setting in fields(wanted) if setting.name not in MAY_DIFFER]
    settings = sorted(names, key="fingerprint".__ne__)  # it says most
    rows = resumed_rows(path, what, format, wanted, settings, row_of)
    return {row.way: row for row in rows}


def figure(value: object) -> float | None:
    """A number of a file, NaN where that has null; None for anything else.

    >>> figure(2), figure(None), figure("2"), figure(10**400)
    (2.0, nan, None, None)
    """
    if value is None:
        return math.nan
    if type(value) is int:
        return float(value) if abs(value) <= sys.float_info.max else None
    return value if isinstance(value, float) else None
