"""Recommendation -> the same, the best ways of it run on this machine and ranked by that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hgpart.bench.results import Measured
from hgpart.bench.session import WayError
from hgpart.bench.turns import turn_of
from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import Layout, TrainingWay, way_of
from hgpart.errors import RunError
from hgpart.recommendation.ranking import Dropped, Ranked, Recommendation, ranked_by
from hgpart.recommendation.simulating import REPLICAS
from hgpart.work.watching import Watch, caution

BEST = 3  # ways that are run where nothing else is said
ERROR = 0.1  # of predicted seconds: what is predicted to be so near to the best may be the best
MOST = 6  # ways of hgpart's that are run
LASTING = 25.0  # seconds after which no further turn begins
TURN, MOST_STEPS = 1.5, 10  # seconds of a turn's timed steps, and their number at most
NEAR = 0.1  # of the fastest step: what is so near to it has a second turn
DDP = "torch ddp"


def with_measured(
    found: Recommendation,
    job: Job,
    count: int,
    on_turn: Callable[[str, float], None] = lambda what, done: None,
    lasting: float = LASTING,
) -> Recommendation:
    """Run the best ways, one device and, in training, torch's DDP for a few steps each, in turns.

    The best ways are the first `count`, those that are predicted to take no more than a tenth
    longer than the best, the best with and without slices of the batch, and data parallelism, whose
    layers take what was measured, as they are whole. Each has a turn; then
    those that are near to the fastest have another, in the opposite order, so that a machine which
    becomes slower does so for all.

    Parameters
    ----------
    job : Job
        Its workers are as many as the devices of each way.
    count : int
        Number of the best ways to run.
    on_turn : callable
        Told what is run next, and the share of all that is done.
    lasting : float
        Seconds after which no further turn begins, but for the first ones of the best with and
        without slices of the batch, of data parallelism, of one device and of DDP.

    Returns
    -------
    Recommendation
        Ranked by what was measured, then by what was simulated. A way that failed is dropped.

    Raises
    ------
    RunError
        If no way could be run.
    """
    turns = _Turns({run.text: run for run in _runs(found, job, count)}, lasting, on_turn)
    turns.all()
    turns.near()
    ranked_anew = _ranked_anew(found, turns.rows, turns.failed)
    said = caution("The measured seconds", turns.watch.disturbed)
    return replace(ranked_anew, cautions=(*found.cautions, *([said] if said else [])))


@dataclass(frozen=True, eq=False)
class _Run:
    """A way to run.

    Attributes
    ----------
    predicted : float
        Seconds of a step.
    is_needed : bool
        Whether it is run however long it takes.
    """

    text: str
    way: TrainingWay
    job: Job
    layout: Layout
    predicted: float
    is_needed: bool

    @property
    def steps(self) -> int:
        """Steps to time in a turn."""
        return max(1, min(MOST_STEPS, round(TURN / max(1e-9, self.predicted))))


def _runs(found: Recommendation, job: Job, count: int) -> Iterator[_Run]:
    near = (1 + ERROR) * found.best.seconds
    needed = [*_best_of_each_kind(found.ranked)]
    chosen = [
        ranked
        for at, ranked in enumerate(found.ranked[: max(count, MOST)])
        if (at < count or ranked.seconds <= near) and ranked not in needed
    ]
    ddp = way_of("ddp")
    is_possible = ddp.why_not(found.devices, found.batch_size) is None
    if found.devices > 1 and is_possible and not job.inference:
        yield _Run(DDP, ddp, replace(job, workers=found.devices), None, near, True)
    for ranked in (*needed, *chosen):
        trial, plan = ranked.trial, ranked.plan
        way = TrainingWay(trial.text, trial.way.name, ranked.scheduling, plan=plan)
        own = replace(job, workers=trial.k)
        yield _Run(trial.text, way, own, plan, ranked.seconds, ranked in needed)


def _best_of_each_kind(ranked: Sequence[Ranked]) -> Iterator[Ranked]:
    """The best way with the batch in slices, the best other one, data parallelism, one device.

    Errors of prediction are alike within a kind, and differ between kinds.
    """
    seen = set[tuple[bool, bool, bool]]()
    for way in ranked:
        is_sliced, name = way.partition.modelling.slices > 1, way.trial.way.name
        kind = way.trial.k > 1, is_sliced, name == REPLICAS
        if kind not in seen:
            seen.add(kind)
            yield way


@dataclass(eq=False)
class _Turns:
    """What was measured so far."""

    runs: dict[str, _Run]
    lasting: float
    on_turn: Callable[[str, float], None]
    rows: dict[str, Measured] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)
    begun: float = field(default_factory=time.monotonic)

    def all(self) -> None:
        """A turn of each."""
        for number, run in enumerate(self.runs.values()):
            if run.is_needed or not self._is_over():
                self._turn(run, 0.7 * number / len(self.runs))

    def near(self) -> None:
        """Another turn of those that are near to the fastest, the last one first."""
        seconds = {text: row.quartiles[1] for text, row in self.rows.items()}
        most = (1 + NEAR) * min(seconds.values(), default=0.0)
        texts = [text for text in reversed(seconds) if seconds[text] <= most]
        for number, text in enumerate(texts if len(texts) > 1 else ()):
            if not self._is_over():
                self._turn(self.runs[text], 0.7 + 0.3 * number / len(texts))

    def _turn(self, run: _Run, done: float) -> None:
        self.on_turn(f"run {run.text}", done)
        try:
            row = turn_of(run.way, run.job, run.layout, run.steps, self.watch)
        except WayError as error:
            self.failed[run.text] = str(error)
            self.rows.pop(run.text, None)
            return
        before = self.rows.get(run.text)
        self.rows[run.text] = row if before is None else before.and_then(row)

    def _is_over(self) -> bool:
        return time.monotonic() - self.begun > self.lasting


def _ranked_anew(
    found: Recommendation, rows: dict[str, Measured], failed: dict[str, str]
) -> Recommendation:
    seconds = {text: row.quartiles[1] for text, row in rows.items()}

    def timed(ranked: Ranked) -> Ranked:
        return replace(ranked, measured_seconds=seconds.get(ranked.trial.text))

    kept = {
        ranked.trial.text: timed(ranked)
        for ranked in found.ranked
        if ranked.trial.text not in failed
    }
    if not any(ranked.measured_seconds is not None for ranked in kept.values()):
        text, why = next(iter(failed.items()))
        raise RunError(f"no way could be run; {text}: {why}")
    return replace(
        found,
        ranked=ranked_by(found.goal, kept),
        one_device=timed(found.one_device),
        dropped=(*found.dropped, *(Dropped(text, why) for text, why in failed.items())),
        measured={DDP: seconds[DDP]} if DDP in seconds else {},
    )
