"""Bench, Races -> tables: what a step, a pass or an accuracy takes each way; what can't be run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console

from hgpart.bench.races import Race, Races, race_columns
from hgpart.bench.results import Bench, Measured, NotRun, bench_columns
from hgpart.bench.ways.way import APART, SINGLE
from hgpart.report.tables import counted, print_table, print_ways
from hgpart.tracing.input_shape import shape_text

CURVE_POINTS = 6  # points of each way that are printed, where it has more


def print_bench(bench: Bench, console: Console, unit: str, *, wide: bool = False) -> None:
    """Print the fastest way, then all in the order asked for, then why others could not be run.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    wide : bool
        Whether all columns are printed, however wide the console is.
    """
    console.print(fastest(bench), style="bold")
    if bench.caution:
        console.print(bench.caution, style="bold")
    console.print(" · ".join(settings(bench)))
    if bench.measured:
        console.print()
        columns = bench_columns(bench)
        title = "Passes forward" if bench.inference else "Training steps"
        print_ways(console, title, columns, bench.measured, unit, wide=wide)
        is_known = bench.speed_up(bench.measured[0]) is not None
        alone = f"one process of {counted(bench.threads, 'thread')}"
        over = f"{SINGLE}, {alone}" if is_known else f"{SINGLE}, which is not among these ways"
        times = "a step: the median"
        if bench.inference:
            times = "p50, p90, p99: latency of so many of a hundred batches, one at a time"
        console.print(
            f"{times}; speed-up: over {over}; busy: CPU time of all processes, as a share of what "
            f"their threads had; sent: by all processes in a {unit_of(bench)}; peak: memory of the "
            "process with most, libraries included"
        )
        for line in said_of_ways(bench):
            console.print(line)
    print_refused(bench.rows, console)
    if bench.left_out:
        console.print(not_begun(bench.left_out, "turn"))


def said_of_ways(bench: Bench) -> list[str]:
    """Notes on how ways divide the model."""
    return [f"{row.way}: {row.note}" for row in bench.measured if row.note]


def unit_of(bench: Bench) -> str:
    """What is timed."""
    return "pass" if bench.inference else "step"


def not_begun(left_out: int, what: str) -> str:
    """How many turns or ways there was no time for; empty where there are none.

    >>> not_begun(2, "turn")
    '2 turns left out, as the time was up; --json FILE --resume goes on'
    """
    if not left_out:
        return ""
    return f"{counted(left_out, what)} left out, as the time was up; --json FILE --resume goes on"


def print_refused(rows: Iterable[Measured | Race | NotRun], console: Console) -> None:
    """Print why ways could not be run, or not to the end, if there are any."""
    reasons = [f"{row.way} {why}" for row in rows if (why := why_not(row))]
    if reasons:
        console.print()
    for reason in reasons:
        console.print(reason)


def why_not(row: Measured | Race | NotRun) -> str:
    """Why a way could not be run, or not to the end; empty where it was."""
    if isinstance(row, NotRun):
        return f"{row.what}: {row.why}"
    if isinstance(row, Measured) and row.ended is not None:
        return f"failed after {counted(row.rounds, 'turn')}: {row.ended}"
    return ""


def fastest(bench: Bench) -> str:
    """One line: the fastest way of training or running the model, and by how much."""
    rows = contenders(bench)
    if not rows:
        return f"{bench.model}: no way could be measured"
    best, *others = sorted(rows, key=lambda row: row.quartiles[1])
    seconds = best.quartiles[1]
    facts = [*gain_over_one(bench, best), f"{bench.batch_size / seconds:,.1f} samples/s"]
    if others:
        facts.append(f"{others[0].quartiles[1] / seconds:.2f} times {others[0].way}, the next")
    for limit in bench.measured:
        if limit not in rows:
            share = 100 * limit.quartiles[1] / seconds
            facts.append(f"{share:.0f} % of processes that never talk")
    return f"{best.way}: {', '.join(facts)}"


def contenders(bench: Bench) -> list[Measured]:
    """Rows of which one is the fastest: in training none of processes that never talk."""
    return [row for row in bench.measured if row.way != APART or bench.inference]


def gain_over_one(bench: Bench | Races, best: Any) -> list[str]:
    """How much faster the best way is than one process, where that is known."""
    gain = bench.speed_up(best)
    if gain is None or best.way == SINGLE:
        return []
    return [f"{gain:.2f} times as fast as one process of {counted(bench.threads, 'thread')}"]


def settings(bench: Bench) -> list[str]:
    """What was measured."""
    rounds = max((row.rounds for row in bench.measured), default=0)
    steps = f"{bench.steps} passes" if bench.inference else counted(bench.steps, "step")
    turns = f"{counted(rounds, 'turn')} of {steps}"
    return common_settings(bench, turns, bench.data, f"work: {bench.work_source}")


def common_settings(bench: Bench | Races, *own: str) -> list[str]:
    """What rows of ways were made with; `own` is what only some have."""
    return [
        bench.model,
        f"input {shape_text(bench.input_shape)}",
        f"batch of {bench.batch_size}",
        f"{bench.processes} processes of {counted(bench.threads, 'thread')}",
        *own,
        f"seed {bench.seed}",
        *([bench.machine] if bench.machine else []),
    ]


def print_races(races: Races, console: Console, *, wide: bool = False) -> None:
    """Print the first way at the goal, then all, then why others did not run."""
    console.print(winner(races), style="bold")
    if races.caution:
        console.print(races.caution, style="bold")
    console.print(" · ".join(race_settings(races)))
    if races.run:
        console.print()
        title = f"Training to {100 * races.until:g} % of the test samples"
        print_ways(console, title, race_columns(races), races.run, "MB", wide=wide)
        console.print()
        _print_curves(races, console)
    print_refused(races.rows, console)
    if races.left_out:
        console.print(not_begun(races.left_out, "way"))


def winner(races: Races) -> str:
    """One line: the way that has the accuracy first."""
    goal = f"{100 * races.until:g} %"
    finishes = [(point, row) for row in races.run if (point := races.finish(row)) is not None]
    if not finishes:
        return f"{races.model}: no way came to {goal} of the test samples"
    (first, best), *others = sorted(finishes, key=lambda finish: finish[0].seconds)
    took = f"{goal} of the test samples in {first.seconds:,.1f} s of training"
    facts = [*gain_over_one(races, best), took]
    if others:
        point, row = others[0]
        facts.append(f"{point.seconds / first.seconds:.2f} times as fast as {row.way}, the next")
    return f"{best.way}: {', '.join(facts)}"


def race_settings(races: Races) -> list[str]:
    """What was run."""
    epochs = f"at most {counted(races.epochs, 'epoch')}"
    return common_settings(races, races.data, f"sgd, lr {races.lr:g}", epochs)


def _print_curves(races: Races, console: Console) -> None:
    rows = []
    for row in races.run:
        apart = max(1, -(-len(row.points) // CURVE_POINTS))
        shown = [*row.points[:-1:apart], row.points[-1]]
        points = [f"{point.seconds:,.1f}: {100 * point.accuracy:.1f}" for point in shown]
        rows.append((row.way, "  ".join(points)))
    print_table(console, "Curves", ["way", "s: % of the test samples, over time"], rows)
