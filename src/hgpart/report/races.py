"""Races -> table: seconds and steps of each way to an accuracy, and curves of them."""

from __future__ import annotations

from rich.console import Console

from hgpart.bench.races import Races
from hgpart.bench.ways.way import SINGLE
from hgpart.report.benches import print_refused
from hgpart.report.tables import counted, even_decimals, print_table, ruled_table

CURVE_POINTS = 6  # of each way, where it had more


def print_races(races: Races, console: Console) -> None:
    """Print the first at the goal, then all, then the reasons of those that did not run."""
    console.print(winner(races), style="bold")
    console.print(" · ".join(race_settings(races)))
    if races.run:
        console.print()
        _print_rows(races, console)
        console.print()
        _print_curves(races, console)
    print_refused(races.rows, console)


def winner(races: Races) -> str:
    """Which way has the accuracy first: one line."""
    goal = f"{100 * races.until:g} %"
    there = [(found, row) for row in races.run if (found := races.finish(row)) is not None]
    if not there:
        return f"{races.model}: no way came to {goal} of the test samples"
    (first, best), *others = sorted(there, key=lambda one: one[0].seconds)
    said = [f"{goal} of the test samples in {first.seconds:,.1f} s of training"]
    gain = races.speed_up(best)
    if gain is not None and best.way != SINGLE:
        threads = counted(races.threads, "thread")
        said.insert(0, f"{gain:.2f} times as fast as one process of {threads}")
    if others:
        found, row = others[0]
        said.append(f"{found.seconds / first.seconds:.2f} times as fast as {row.way}, the next")
    return f"{best.way}: {', '.join(said)}"


def race_settings(races: Races) -> list[str]:
    """What was run."""
    return [
        races.model,
        f"input {' x '.join(map(str, races.input_shape))}",
        races.data,
        f"batch of {races.batch_size}",
        f"{races.processes} processes of {counted(races.threads, 'thread')}",
        f"sgd, lr {races.lr:g}",
        f"at most {counted(races.epochs, 'epoch')}",
        f"seed {races.seed}",
        *([races.machine] if races.machine else []),
    ]


def _print_rows(races: Races, console: Console) -> None:
    rows = races.run
    finishes = [races.finish(row) for row in rows]
    seconds = [row.points[-1].seconds for row in rows]
    gains = [races.speed_up(row) for row in rows]
    columns = [
        [row.way for row in rows],
        ["-" if gain is None else f"{gain:.2f}" for gain in gains],
        ["-" if found is None else f"{found.seconds:,.1f}" for found in finishes],
        ["-" if found is None else f"{found.steps:,}" for found in finishes],
        [
            "-" if found is None else str(len(row.points))
            for row, found in zip(rows, finishes, strict=True)
        ],
        [f"{100 * max(point.accuracy for point in row.points):.1f}" for row in rows],
        even_decimals(
            [
                row.points[-1].steps * races.batch_size / spent
                for row, spent in zip(rows, seconds, strict=True)
            ]
        ),
    ]
    headings = ["way", "speed-up", "s", "steps", "epochs", "best %", "samples/s"]
    table = ruled_table(headings)
    for cells in zip(*columns, strict=True):
        table.add_row(*cells)
    print_table(console, f"Training to {100 * races.until:g} % of the test samples", table)


def _print_curves(races: Races, console: Console) -> None:
    table = ruled_table(["way", "s: % of the test samples, as it went"])
    for row in races.run:
        apart = max(1, -(-len(row.points) // CURVE_POINTS))
        shown = [*row.points[:-1:apart], row.points[-1]]
        points = [f"{point.seconds:,.1f}: {100 * point.accuracy:.1f}" for point in shown]
        table.add_row(row.way, "  ".join(points))
    print_table(console, "Curves", table)
