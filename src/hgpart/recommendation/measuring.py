"""Recommendation -> the same, the best ways of it run on this machine and ranked by that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hgpart.bench.results import Measured
from hgpart.bench.session import WayError
from hgpart.bench.turns import turn_of
from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import Layout, TrainingWay, way_of
from hgpart.errors import RunError
from hgpart.recommendation.ranking import Dropped, Ranked, Recommendation, ranked_by

ROUNDS, STEPS = 2, 3  # turns of each way, and steps of each that are timed
TORCHS = ("single", "ddp")


def with_measured(
    found: Recommendation,
    job: Job,
    count: int,
    on_turn: Callable[[str, float], None] = lambda what, done: None,
) -> Recommendation:
    """Run the best ways, one device and torch's own for a few steps each, in turns.

    Parameters
    ----------
    job : Job
        Its workers are as many as the devices of each way.
    count : int
        Number of the best ways to run.
    on_turn : callable
        Told what is run next, and the share of all that is done.

    Returns
    -------
    Recommendation
        Ranked by what was measured, then by what was simulated. A way that failed is dropped.
    """
    chosen = [*found.ranked[:count]]
    if all(ranked.trial.k > 1 for ranked in chosen):
        chosen += [ranked for ranked in found.ranked if ranked.trial.k == 1]
    runs: dict[str, tuple[TrainingWay, Job, Layout]] = {}
    for ranked in chosen:
        trial, plan = ranked.trial, ranked.plan
        way = TrainingWay(trial.text, trial.way.name, ranked.scheduling, plan=plan)
        runs[trial.text] = way, replace(job, workers=trial.k), plan
    for name in TORCHS:
        way = way_of(name)
        if way.why_not(found.devices, found.batch_size) is None and found.devices > 1:
            runs[f"torch {name}"] = way, replace(job, workers=found.devices), None
    rows: dict[str, Measured] = {}
    failed: dict[str, str] = {}
    # Every second round the other way round: a machine that gets slower is as slow for all.
    turns = [text for number in range(ROUNDS) for text in [*runs][:: -1 if number % 2 else 1]]
    for done, text in enumerate(turns):
        if text in failed:
            continue
        on_turn(f"run {text}", done / len(turns))
        try:
            row = turn_of(*runs[text], STEPS)
        except WayError as error:
            failed[text] = str(error)
            continue
        rows[text] = rows[text].and_then(row) if text in rows else row
    return _ranked_anew(found, rows, failed)


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
    if not kept:
        text, why = next(iter(failed.items()))
        raise RunError(f"no way could be run; {text}: {why}")
    return replace(
        found,
        ranked=ranked_by(found.goal, kept),
        one_device=timed(found.one_device),
        dropped=(*found.dropped, *(Dropped(text, why) for text, why in failed.items())),
        measured={text: ranked for text, ranked in seconds.items() if text.startswith("torch ")},
    )
