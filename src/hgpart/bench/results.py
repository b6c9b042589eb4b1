"""Laps of processes -> Measured: a row for each way, and files of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, harmonic_mean, median, quantiles

from hgpart.bench.row_files import NotRun, figure, rows_json, rows_of_file
from hgpart.bench.ways.way import SINGLE, Way
from hgpart.bench.ways.worker import Lap
from hgpart.files.json_files import JsonObject

FORMAT = "hgpart bench 1"
LARGEST = 2**53

# What two runs have to agree in for one to go on from the other.
SETTINGS = (
    *("fingerprint", "input_shape", "batch_size", "processes", "threads", "steps", "eps", "effort"),
    *("lr", "seed", "data", "work_digest", "machine"),
)

COLUMNS = (
    *("way", "rounds", "median_seconds", "lower_seconds", "upper_seconds", "samples_per_second"),
    *("speed_up", "busy_share", "waiting_share", "sent_bytes", "largest_peak_bytes"),
    *("all_peak_bytes", "first_loss", "last_loss", "ended", "why"),
)


@dataclass(frozen=True)
class Measured:
    """What training one way took.

    Attributes
    ----------
    way : str
    rounds : int
        That it has had its turn in.
    seconds : tuple of float
        Of each step. It lasts until the last process has ended it; where processes do not wait for
        each other, it is the harmonic mean of what theirs lasted, as their rates add up.
    losses : tuple of float
        Of the steps of the first round; the first two of them are not timed.
    busy : tuple of float
        Of each process the CPU seconds of its threads, as a share of all that they had: 0 to 1.
    sent_bytes : float or None
        That departed from all processes in a step: of hgpart's ways those of what is sent, of
        parameter servers gradients and weights, of others all that was written to sockets. None
        where that is not known.
    peak_bytes : tuple of int
        The most memory that each process had in a step, libraries included. (Where a system can't
        begin to count anew, as Linux can: since its beginning.)
    ended : str or None
        What went wrong in a later round, so that it has had no further turn.
    """

    way: str
    rounds: int
    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    busy: tuple[float, ...]
    sent_bytes: float | None
    peak_bytes: tuple[int, ...]
    ended: str | None = None

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Seconds of a step: lower quartile, median, upper quartile."""
        if len(self.seconds) == 1:
            return (self.seconds[0],) * 3
        lower, _, upper = quantiles(self.seconds, n=4, method="inclusive")
        return lower, median(self.seconds), upper

    @property
    def busy_share(self) -> float:
        """Of all processes."""
        return fmean(self.busy)

    def and_then(self, other: Measured) -> Measured:
        """With a further round."""
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
        )


Row = Measured | NotRun


@dataclass(frozen=True)
class Bench:
    """Ways of training one model, on the clock.

    Attributes
    ----------
    model : str
    input_shape : tuple of int
    fingerprint : str
        Of the model's ChannelGraph.
    batch_size : int
        Samples of a step, of all processes together.
    processes : int
        That share a step.
    threads : int
        Of each.
    steps : int
        That are timed in a round.
    eps, effort, seed, work_source, work_digest
        Of the partitions.
    lr : float
    data : str
        As `load_data` takes it.
    machine : str
        What it was measured on, and by.
    rows : tuple of Measured or NotRun
        Of the ways that were asked for, those that are there.
    besides : tuple of Measured or NotRun
        Rows of a file that was gone on from, which were not asked for now.
    """

    model: str
    input_shape: tuple[int, ...]
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
    machine: str = ""
    rows: tuple[Row, ...] = ()
    besides: tuple[Row, ...] = ()

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The rows that have figures."""
        return tuple(row for row in self.rows if isinstance(row, Measured))

    def speed_up(self, row: Measured) -> float | None:
        """Over one process, where that was measured, now or in the file that was gone on from."""
        for one in (*self.rows, *self.besides):
            if isinstance(one, Measured) and one.way == SINGLE:
                return one.quartiles[1] / row.quartiles[1]
        return None


def measured(way: Way, warm_up: Sequence[Lap], timed: Sequence[Lap], threads: int) -> Measured:
    """What a way's processes did in a round: first steps whose time does not count, then others.

    The time of the first of the others does not count either, as one process may begin it before
    another one; nor of a stream that of as many as fill it, which begin with the first one, and of
    as many as are left when no further one begins.
    """
    at_work = [lap for lap in timed if lap.ends]
    partly = way.scheduling.most_in_flight - 1
    ends = [[*lap.ends[partly : len(lap.ends) - partly]] for lap in at_work]
    if not way.is_free:
        ends = [[max(each) for each in zip(*ends, strict=True)]]
    steps = [[after - before for before, after in pairwise(own)] for own in ends]
    spent = max(lap.ends[-1] for lap in at_work) - min(lap.begin for lap in at_work)
    sent = [lap.sent_bytes for lap in timed]
    return Measured(
        way=way.text,
        rounds=1,
        seconds=tuple(map(harmonic_mean, zip(*steps, strict=True))),
        losses=(*summed_losses(warm_up), *summed_losses(timed)),
        busy=tuple(min(1.0, lap.cpu_seconds / (threads * spent)) for lap in timed),
        sent_bytes=None if None in sent else sum(each or 0 for each in sent) / len(at_work[0].ends),
        peak_bytes=tuple(lap.peak_bytes for lap in timed),
    )


def summed_losses(laps: Sequence[Lap]) -> tuple[float, ...]:
    """The losses of which each process has a share."""
    return tuple(map(sum, zip(*(lap.losses for lap in laps if lap.losses), strict=True)))


# ------------------------------------------------------------------ files


def as_record(row: Row, bench: Bench) -> dict[str, object]:
    """A row with the figures that follow from it."""
    if isinstance(row, NotRun):
        return asdict(row)
    lower, middle, upper = row.quartiles
    return {
        **asdict(row),
        "median_seconds": middle,
        "lower_seconds": lower,
        "upper_seconds": upper,
        "samples_per_second": bench.batch_size / middle,
        "speed_up": bench.speed_up(row),
        "busy_share": row.busy_share,
        "waiting_share": 1 - row.busy_share,
        "largest_peak_bytes": max(row.peak_bytes),
        "all_peak_bytes": sum(row.peak_bytes),
        "first_loss": row.losses[0],
        "last_loss": row.losses[-1],
    }


def bench_json(bench: Bench) -> str:
    """All figures as JSON, one line a way."""
    return rows_json(FORMAT, bench, lambda row: as_record(row, bench))


def bench_csv(bench: Bench) -> str:
    """A header and a line a way."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(as_record(row, bench) for row in bench.rows)
    return text.getvalue()


def rows_done(path: Path | str, bench: Bench) -> dict[str, Row]:
    """The rows of a file that `bench` (as yet without rows) can go on from, by way.

    Raises
    ------
    FormatError
        If the file is malformed.
    PlanError
        If it is of another model, or of other settings.
    """
    return rows_of_file(path, "a file of hgpart bench --json", FORMAT, bench, SETTINGS, _row)


def _row(record: JsonObject) -> Measured:
    def amounts(name: str, least: int, high: float = LARGEST) -> tuple[float, ...]:
        found = record.items(name)
        if len(found) < least or not all(type(x) in (int, float) and 0 <= x <= high for x in found):
            raise record.wrong(name, f"{least} numbers or more, from 0 to {high}")
        return tuple(map(float, found))

    known = record.fields.get("sent_bytes") is not None
    sent = record.number("sent_bytes") if known else None
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
    )
