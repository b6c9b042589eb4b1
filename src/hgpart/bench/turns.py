"""Ways + Job -> rows: each way has its turn in each round, with the machine to itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import fsum, inf
from statistics import fmean
from typing import TypeVar

from hgpart.bench.plans import Subject, layout_of
from hgpart.bench.results import Measured, NotRun, Row, measured
from hgpart.bench.session import Session, WayError
from hgpart.bench.ways.job import Job
from hgpart.bench.ways.tiles import FusedTiles
from hgpart.bench.ways.way import SINGLE, Layout, TrainingWay
from hgpart.errors import HgpartError, first_line
from hgpart.work.watching import Watch, spread_of

WARM_UP = 1  # steps before the timed ones, of which the first does not count either
Ran = TypeVar("Ran")


def take_turns(
    ways: Sequence[TrainingWay],
    subject: Subject,
    job: Job,
    steps: int,
    rounds: int,
    before: Mapping[str, Row],
    tell: Callable[[str, float], None],
    on_row: Callable[[Row], None],
    say: Callable[[str], None] = lambda line: None,
    time_limit: float = inf,
) -> int:
    """Measure each way in each round, even if other ways fail.

    A turn is a way's processes from their start to their end: two steps whose time does not count
    (in the second, DDP still sorts its buckets), then the steps that are timed. Every second round
    goes backwards, so that a machine that becomes slower does so for all ways. Steps that other
    programs disturb are timed once more. A way that is not possible here, or whose processes fail,
    has no further turns; earlier turns count.

    Parameters
    ----------
    subject : Subject
        What is divided; the layout of a way is made at its first turn.
    steps : int
        Number of timed steps per turn.
    rounds : int
        Total number of rounds, including those in `before`.
    before : mapping of str to Row
        Earlier rows, by way: their rounds are not run again; what failed is tried again.
    tell : callable
        Told whose turn of which round it is, and which share of all the time has passed.
    on_row : callable
        Called with each row, again after each further round.
    say : callable
        Told in a line what came of each turn, and about how long the others will take.
    time_limit : float
        Seconds after which no further turn begins.

    Returns
    -------
    int
        The number of turns that were left out, as the time was up.
    """
    rows = {
        name: replace(row, ended=None) if isinstance(row, Measured) else row
        for name, row in before.items()
        if isinstance(row, Measured) or not row.failed
    }
    layouts: dict[str, Layout] = {}
    lasted: dict[str, float] = {}  # of each way, the seconds of its latest turn
    watch, start = Watch(), time.monotonic()
    turns = [(number, way) for number in range(rounds) for way in ways[:: -1 if number % 2 else 1]]

    def is_due(number: int, way: TrainingWay) -> bool:
        row = rows.get(way.text)
        return row is None or (
            isinstance(row, Measured) and row.rounds <= number and row.ended is None
        )

    left = 0.0
    for at, (number, way) in enumerate(turns):
        if not is_due(number, way):
            continue
        begin = time.monotonic()
        passed = begin - start
        if passed >= time_limit:
            return sum(is_due(*turn) for turn in turns[at:])
        done = passed / min(time_limit, passed + left) if left else 0.0
        tell(f"round {number + 1}: {way.text}", done)

        def run(layout: Layout, way: TrainingWay = way) -> Measured:
            return turn_of(way, job, layout, steps, watch)

        turn: Row = attempted(way, subject, job, layouts, run)
        if isinstance(turn, Measured):
            lasted[way.text] = time.monotonic() - begin
        if isinstance(row := rows.get(way.text), Measured):
            turn = replace(row, ended=turn.why) if isinstance(turn, NotRun) else row.and_then(turn)
        rows[way.text] = turn
        on_row(turn)
        due = [way.text for number, way in turns[at + 1 :] if is_due(number, way)]
        mean = fmean(lasted.values()) if lasted else 0.0
        left = fsum(lasted.get(text, mean) for text in due)
        say(_came_of(turn, rows, rounds) + _still(len(due), left))
    return 0


def _came_of(row: Row, rows: Mapping[str, Row], rounds: int) -> str:
    """What came of a way's turn, or of its turns so far."""
    if isinstance(row, NotRun):
        return f"{row.way} {row.what}: {row.why}"
    if row.ended is not None:
        return f"{row.way} failed: {row.ended}"
    seconds, single = row.quartiles[1], rows.get(SINGLE)
    gain = ""
    if isinstance(single, Measured) and single is not row:
        gain = f", {single.quartiles[1] / seconds:.2f} times as fast as {SINGLE}"
    return f"{row.way}: {seconds:.3g} s a {row.unit}{gain}, turn {row.rounds} of {rounds}"


def _still(turns: int, seconds: float) -> str:
    """How many turns are still to come, and about how long they take.

    >>> _still(8, 333.0), _still(1, 48.2), _still(0, 0.0)
    ('; 8 turns to come, about 6 min', '; 1 turn to come, about 48 s', '')
    """
    if not turns or not seconds:
        return ""
    units = ((90.0, 1, "s"), (90 * 60.0, 60, "min"))
    about = next(
        (f"{seconds / unit:.0f} {name}" for below, unit, name in units if seconds < below),
        f"{seconds / 3600:.1f} h",
    )
    return f"; {turns} turn{'s' * (turns > 1)} to come, about {about}"


def turn_of(way: TrainingWay, job: Job, layout: Layout, steps: int, watch: Watch) -> Measured:
    """Time some steps of a way, in processes that are started for them."""
    rows: list[Measured] = []
    with Session(way, job, layout) as session:
        warm_up = session.learn(WARM_UP)

        def time_steps() -> Measured:
            timed = session.learn(steps + 2 * way.scheduling.most_in_flight - 1)
            rows.append(measured(way, warm_up, timed, job.threads))
            return rows[-1]

        def spread(row: Measured) -> float:
            return 0.0 if way.is_free else spread_of(row.seconds)

        row = watch.measure(time_steps, spread=spread)
    note = layout.words if isinstance(layout, FusedTiles) else ""
    repeated = layout.repeated if isinstance(layout, FusedTiles) else 0.0
    disturbed = watch.seen[-1].text
    return replace(row, losses=rows[0].losses, disturbed=disturbed, note=note, repeated=repeated)


def is_failed(row: object) -> bool:
    """Whether another attempt at a row may succeed."""
    if isinstance(row, NotRun):
        return row.failed
    return isinstance(row, Measured) and row.ended is not None


def attempted(
    way: TrainingWay,
    subject: Subject,
    job: Job,
    layouts: dict[str, Layout],
    run: Callable[[Layout], Ran],
) -> Ran | NotRun:
    """The result of a way's run, or why there is none; layouts are kept by the way's name."""
    why = way.why_not(job.workers, job.batch_size, job.inference)
    if why is not None:
        return NotRun(way.text, why, failed=False)
    try:
        subject.check(way)
        if way.name not in layouts:
            layouts[way.name] = layout_of(way, subject)
        return run(layouts[way.name])
    except WayError as error:
        return NotRun(way.text, str(error), failed=not error.is_refusal)
    except HgpartError as error:
        return NotRun(way.text, " ".join(str(error).split()), failed=False)
    except (MemoryError, OSError) as error:  # no more memory, processes or files for this way
        return NotRun(way.text, f"{type(error).__name__}: {first_line(error)}", failed=True)
