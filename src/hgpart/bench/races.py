"""Ways + Job -> Races: seconds and steps of each to an accuracy, epoch by epoch (thesis 5.3)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean

from hgpart.bench.plans import Subject
from hgpart.bench.results import LARGEST, summed_losses
from hgpart.bench.row_files import NotRun, figure, rows_json, rows_of_file
from hgpart.bench.session import Session
from hgpart.bench.turns import attempted
from hgpart.bench.ways.job import Job
from hgpart.bench.ways.layout import Layout
from hgpart.bench.ways.way import APART, SINGLE, Way
from hgpart.files.json_files import JsonObject
from hgpart.run.learner import Learner
from hgpart.run.training.data import Data
from hgpart.run.training.loop import accuracy
from hgpart.schedules.rules import LONGEST

FORMAT = "hgpart race 1"
SETTINGS = (
    *("fingerprint", "input_shape", "batch_size", "processes", "threads", "eps", "effort", "lr"),
    *("seed", "data", "until", "epochs", "work_digest", "machine"),
)
COLUMNS = ("way", "epoch", "steps", "seconds", "loss", "accuracy", "why")


@dataclass(frozen=True)
class Point:
    """Where a way is at the end of an epoch.

    Attributes
    ----------
    steps : int
        From the beginning.
    seconds : float
        Of them, with what the first one takes to begin; what tests take is not among them.
    loss : float
        Mean of the epoch's.
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
    way : str
    points : tuple of Point
        One for each epoch, until the accuracy was reached or there were to be no more.
    """

    way: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Races:
    """Ways of training one model, to an accuracy.

    Attributes
    ----------
    model, input_shape, fingerprint, batch_size, processes, threads, eps, effort, lr, seed
        As in `hgpart.bench.results.Bench`.
    work_source, work_digest
        As there.
    data : str
    until : float
        The accuracy.
    epochs : int
        At most.
    machine : str
        As in `hgpart.bench.results.Bench`.
    rows : tuple of Race or NotRun
    besides : tuple of Race or NotRun
        Rows of a file that was gone on from, which were not asked for now.
    """

    model: str
    input_shape: tuple[int, ...]
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
    rows: tuple[Race | NotRun, ...] = ()
    besides: tuple[Race | NotRun, ...] = ()

    @property
    def run(self) -> tuple[Race, ...]:
        """The rows of ways that were run."""
        return tuple(row for row in self.rows if isinstance(row, Race))

    def finish(self, race: Race) -> Point | None:
        """Where a way had the accuracy first, if it had."""
        return next((point for point in race.points if point.accuracy >= self.until), None)

    def speed_up(self, race: Race) -> float | None:
        """Over one process, where both had the accuracy; it may be of the file gone on from."""
        own = self.finish(race)
        for one in (*self.rows, *self.besides):
            if isinstance(one, Race) and one.way == SINGLE:
                found = self.finish(one)
                return None if found is None or own is None else found.seconds / own.seconds
        return None


def race(
    ways: Iterable[Way],
    subject: Subject,
    job: Job,
    data: Data,
    until: float,
    epochs: int,
    before: Mapping[str, Race | NotRun],
    on_epoch: Callable[[Way, int, float], None],
    on_row: Callable[[Race | NotRun], None],
) -> None:
    """Train each way until its model gives so many of the test samples their class.

    All begin with the same weights and see the same batches in the same order. After each epoch the
    weights of all of a way's processes are put together in this one, which tests them.

    Parameters
    ----------
    ways, subject, job
        As in `hgpart.bench.turns.take_turns`.
    data : Data
        That of the job, which has a test set.
    until : float
    epochs : int
        At most.
    before : mapping of str to Race or NotRun
        What is there already; what failed is tried again.
    on_epoch : callable
        Told the way, the number of its epochs so far, and its accuracy.
    on_row : callable
        Told each row.
    """
    layouts: dict[str, Layout] = {}
    for way in ways:
        row = before.get(way.text)
        if way.name == APART:
            row = NotRun(way.text, "it trains several models, not one", failed=False)
            on_row(row)
        if row is not None and not (isinstance(row, NotRun) and row.failed):
            continue

        def run(layout: Layout, way: Way = way) -> Race:
            with Session(way, job, layout) as session:
                return Race(
                    way.text, tuple(_points(way, session, job, data, until, epochs, on_epoch))
                )

        on_row(attempted(way, subject, job, layouts, run))


def _points(
    way: Way,
    session: Session,
    job: Job,
    data: Data,
    until: float,
    epochs: int,
    on_epoch: Callable[[Way, int, float], None],
) -> Iterable[Point]:
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
        found = accuracy(tested, data, job.batch_size)
        assert found is not None
        on_epoch(way, epoch, found)
        yield Point(session.done, seconds, fmean(losses), found)
        if found >= until:
            return


# ------------------------------------------------------------------ files


def races_json(races: Races) -> str:
    """All figures as JSON, one line a way."""
    return rows_json(FORMAT, races, lambda row: _as_record(row, races))


def _as_record(row: Race | NotRun, races: Races) -> dict[str, object]:
    if isinstance(row, NotRun):
        return asdict(row)
    finish = races.finish(row)
    points = [[*asdict(point).values()] for point in row.points]
    return {
        "way": row.way,
        "reached": finish is not None,
        "seconds": None if finish is None else finish.seconds,
        "steps": None if finish is None else finish.steps,
        "speed_up": races.speed_up(row),
        "points": points,  # steps, seconds, loss, accuracy
    }


def races_csv(races: Races) -> str:
    """A header and a line for each epoch of each way."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in races.rows:
        if isinstance(row, NotRun):
            writer.writerow(asdict(row))
        else:
            writer.writerows(
                {"way": row.way, "epoch": epoch, **asdict(point)}
                for epoch, point in enumerate(row.points, start=1)
            )
    return text.getvalue()


def races_done(path: Path | str, races: Races) -> dict[str, Race | NotRun]:
    """The rows of a file that `races` (as yet without rows) can go on from, by way.

    Raises
    ------
    FormatError
        If the file is malformed.
    PlanError
        If it is of another model, or of other settings.
    """
    what = "a file of hgpart bench --until --json"
    return rows_of_file(path, what, FORMAT, races, SETTINGS, _row)


def _row(record: JsonObject) -> Race:
    points = record.items("points")
    if not points or not all(
        isinstance(point, list) and len(point) == len(fields(Point)) and _is_point(*point)
        for point in points
    ):
        raise record.wrong(
            "points", "lists of steps, seconds, loss (null where it was no number) and accuracy"
        )
    found = (
        Point(steps, float(seconds), math.nan if loss is None else float(loss), float(accuracy))
        for steps, seconds, loss, accuracy in points
    )
    return Race(record.string("way"), tuple(found))


def _is_point(steps: object, seconds: object, loss: object, accuracy: object) -> bool:
    is_whole = type(steps) is int and 0 < steps <= LARGEST
    known = [figure(one) for one in (seconds, accuracy)]
    is_known = all(one is not None and math.isfinite(one) for one in known)
    return is_whole and is_known and figure(loss) is not None
