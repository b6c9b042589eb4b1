"""Ways + Job -> Races: seconds and steps of each to an accuracy, epoch by epoch (thesis 5.3)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean

from hgpart.bench.plans import Subject
from hgpart.bench.results import LARGEST, NotRun, caution_of, figure, rows_by_way, summed_losses
from hgpart.bench.session import Session
from hgpart.bench.turns import attempted
from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import APART, SINGLE, Layout, TrainingWay
from hgpart.files.columns import Column, fields_of
from hgpart.files.fields import csv_text
from hgpart.files.json_files import JsonObject
from hgpart.files.row_files import rows_json
from hgpart.run.learner import Learner
from hgpart.run.training.data import Data
from hgpart.run.training.scores import accuracy
from hgpart.schedules.rules import LONGEST
from hgpart.tracing.input_shape import InputShape
from hgpart.work.watching import Watch

FORMAT = "hgpart race 1"


@dataclass(frozen=True)
class Point:
    """Where a way is at the end of an epoch.

    Attributes
    ----------
    steps : int
        Steps from the beginning.
    seconds : float
        Duration of these steps, with what the first one takes to begin, without the tests.
    loss : float
        Mean loss of the epoch.
    accuracy : float
        Share of the test samples that are given their class.
    """

    steps: int
    seconds: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Race:
    """What became of a way.

    Attributes
    ----------
    points : tuple of Point
        A point for each epoch, until the accuracy was reached or there were to be no more.
    disturbed : str
        What disturbed the training, as `hgpart.work.watching` says it; empty where nothing did.
    """

    way: str
    points: tuple[Point, ...]
    disturbed: str = ""

    @property
    def best(self) -> float:
        """The largest accuracy."""
        return max(point.accuracy for point in self.points)


@dataclass(frozen=True)
class Races:
    """Ways of training one model, to an accuracy.

    Attributes
    ----------
    model, input_shape, fingerprint, batch_size, processes, threads, eps, effort, lr, seed
        The same as in `hgpart.bench.results.Bench`.
    work_source, work_digest, data, machine
        The same as in `hgpart.bench.results.Bench`.
    until : float
        The accuracy.
    epochs : int
        The largest number of epochs.
    left_out : int
        Number of ways for which there was no time.
    besides : tuple of Race or NotRun
        Rows of a resumed file that were not asked for now.
    """

    model: str
    input_shape: InputShape
    fingerprint: str
    batch_size: int
    processes: int
    threads: int
    eps: float
    effort: float
    lr: float
    seed: int
    work_source: str
    work_digest: str
    data: str
    until: float
    epochs: int
    machine: str = ""
    left_out: int = 0
    rows: tuple[Race | NotRun, ...] = ()
    besides: tuple[Race | NotRun, ...] = ()

    @property
    def run(self) -> tuple[Race, ...]:
        """The rows of ways that were run."""
        return tuple(row for row in self.rows if isinstance(row, Race))

    @property
    def caution(self) -> str:
        """Why figures can't be trusted; empty where nothing is known against them."""
        return caution_of(self.run)

    def finish(self, race: Race) -> Point | None:
        """Where a way had the accuracy first, if it had."""
        return next((point for point in race.points if point.accuracy >= self.until), None)

    def samples_per_second(self, race: Race) -> float:
        """Samples of all epochs over their seconds."""
        return race.points[-1].steps * self.batch_size / race.points[-1].seconds

    def speed_up(self, race: Race) -> float | None:
        """Speed over one process, of this or of a resumed file, where both had the accuracy."""
        own = self.finish(race)
        for base in (*self.rows, *self.besides):
            if isinstance(base, Race) and base.way == SINGLE:
                finish = self.finish(base)
                return None if finish is None or own is None else finish.seconds / own.seconds
        return None


def race(
    ways: Sequence[TrainingWay],
    subject: Subject,
    job: Job,
    data: Data,
    until: float,
    epochs: int,
    before: Mapping[str, Race | NotRun],
    tell: Callable[[str, float], None],
    on_row: Callable[[Race | NotRun], None],
    say: Callable[[str], None] = lambda line: None,
    time_limit: float = inf,
) -> int:
    """Train each way until its model gives so many of the test samples their class.

    All begin with the same weights and see the same batches in the same order. After each epoch the
    weights of all of a way's processes are put together in this one, which tests them.

    Parameters
    ----------
    ways, subject, job
        The same as in `hgpart.bench.turns.take_turns`.
    data : Data
        Data of the job, with a test set.
    epochs : int
        The largest number of epochs.
    before : mapping of str to Race or NotRun
        Rows that are there already; what failed is tried again.
    tell : callable
        Told after each epoch how accurate the way is, and at most which share of all is done.
    on_row : callable
        Called with each row.
    say : callable
        Told in a line what came of each way.
    time_limit : float
        Seconds after which no further way begins.

    Returns
    -------
    int
        The number of ways that were left out, as the time was up.
    """
    layouts: dict[str, Layout] = {}
    left_out, start = 0, time.monotonic()
    for number, way in enumerate(ways):
        row = before.get(way.text)
        if way.name == APART:
            row = NotRun(way.text, "it trains several models, not one", failed=False)
            on_row(row)
        if row is not None and not (isinstance(row, NotRun) and row.failed):
            continue
        if time.monotonic() - start >= time_limit:
            left_out += 1
            continue

        def on_epoch(epoch: int, accuracy: float, way: str = way.text, at: int = number) -> None:
            said = f"{way}: {100 * accuracy:.1f} % after {epoch} epochs"
            tell(said, (at + epoch / epochs) / len(ways))

        def run(layout: Layout, way: TrainingWay = way) -> Race:
            with Session(way, job, layout) as session:
                watch = Watch(repeats=False)
                epochs_of = partial(_points, session, job, data, until, epochs, on_epoch)
                points = watch.measure(lambda: tuple(epochs_of()))
                return Race(way.text, points, watch.disturbed)

        row = attempted(way, subject, job, layouts, run)
        on_row(row)
        say(_came_of(row))
    return left_out


def _came_of(row: Race | NotRun) -> str:
    """What came of a way, in a line."""
    if isinstance(row, NotRun):
        return f"{row.way} {row.what}: {row.why}"
    return f"{row.way}: {100 * row.best:.1f} %, {row.points[-1].seconds:,.1f} s of training"


def _points(
    session: Session,
    job: Job,
    data: Data,
    until: float,
    epochs: int,
    on_epoch: Callable[[int, float], None],
) -> Iterator[Point]:
    tested = Learner(job.new_model())
    steps = len(data.train) // job.batch_size
    seconds = 0.0
    for epoch in range(1, epochs + 1):
        losses: list[float] = []
        for first in range(0, steps, LONGEST):  # streams have an end
            laps = session.learn(min(LONGEST, steps - first))
            at_work = [lap for lap in laps if lap.ends]
            seconds += max(lap.ends[-1] for lap in at_work) - min(lap.begin for lap in at_work)
            losses += summed_losses(laps)
        tested.model.load_state_dict(session.state())
        share_right = accuracy(tested, data, job.batch_size)
        assert share_right is not None
        on_epoch(epoch, share_right)
        yield Point(session.done, seconds, fmean(losses), share_right)
        if share_right >= until:
            return


def race_columns(races: Races) -> tuple[Column[Race], ...]:
    """The figures of each way."""

    def at_goal(name: str) -> Callable[[Race], float | None]:
        return lambda race: getattr(races.finish(race), name, None)

    best, rate = (
        "The largest share of the test samples given their class.",
        races.samples_per_second,
    )
    return (
        Column("way", "way"),
        Column("reached", value=lambda race: races.finish(race) is not None),
        Column("seconds", "training", "To the accuracy, without tests.", "s", at_goal("seconds")),
        Column("steps", "steps", "To the accuracy.", value=at_goal("steps")),
        Column("speed_up", "speed-up", "Over one process.", value=races.speed_up, decimals=2),
        Column("", "epochs", "Epochs of training.", value=lambda race: len(race.points)),
        Column("", "best", best, "%", lambda race: race.best, decimals=1),
        Column("", "samples/s", "In all epochs.", value=rate),
        Column("", "in all", "All epochs.", "s", lambda race: race.points[-1].seconds, detail=True),
    )


# ------------------------------------------------------------------ files


def races_json(races: Races) -> str:
    """All figures as JSON, one line a way."""

    def as_row(row: Race | NotRun) -> dict[str, object]:
        if isinstance(row, NotRun):
            return asdict(row)
        points = [[*asdict(point).values()] for point in row.points]
        figures = fields_of(race_columns(races), row)
        return {**figures, "disturbed": row.disturbed, "points": points}

    return rows_json(FORMAT, races, as_row)


def races_csv(races: Races) -> str:
    """A header and a line for each epoch of each way."""
    names = ("way", "epoch", *(field.name for field in fields(Point)), "why")
    lines: list[dict[str, object]] = []
    for row in races.rows:
        if isinstance(row, NotRun):
            lines.append(asdict(row))
        else:
            lines += [
                {"way": row.way, "epoch": epoch, **asdict(point)}
                for epoch, point in enumerate(row.points, start=1)
            ]
    return csv_text(names, lines)


def races_done(path: Path | str | None, races: Races) -> dict[str, Race | NotRun]:
    """The rows of a file that `races` (as yet without rows) resumes, by way.

    Raises
    ------
    FormatError
        If the file is malformed.
    PlanError
        If it is of another model, or of other settings.
    """
    return rows_by_way(path, "a file of hgpart bench --until --json", FORMAT, races, _row)


def _row(record: JsonObject) -> Race:
    points = record.items("points")
    if not points or not all(
        isinstance(point, list) and len(point) == len(fields(Point)) and _is_point(*point)
        for point in points
    ):
        raise record.wrong(
            "points", "lists of steps, seconds, loss (null where it was no number) and accuracy"
        )
    epochs = (
        Point(steps, float(seconds), math.nan if loss is None else float(loss), float(accuracy))
        for steps, seconds, loss, accuracy in points
    )
    disturbed = record.string("disturbed") if "disturbed" in record.fields else ""
    return Race(record.string("way"), tuple(epochs), disturbed)


def _is_point(steps: object, seconds: object, loss: object, accuracy: object) -> bool:
    is_whole = type(steps) is int and 0 < steps <= LARGEST
    figures = [figure(value) for value in (seconds, accuracy)]
    is_known = all(number is not None and math.isfinite(number) for number in figures)
    return is_whole and is_known and figure(loss) is not None
