"""Races -> table: seconds and steps of each way to an accuracy, and curves of them."""

from __future__ import annotations

from rich.console import Console

from hgpart.bench.races import Races, race_columns
from hgpart.report.benches import common_settings, gain_over_one, print_refused
from hgpart.report.tables import counted, print_table, print_ways

CURVE_POINTS = 6  # points of each way that are printed, where it has more


def print_races(races: Races, console: Console, *, wide: bool = False) -> None:
    """Print the first way at the goal, then all, then why others did not run."""
    console.print(winner(races), style="bold")
    console.print(" · ".join(race_settings(races)))
    if races.run:
        console.print()
        title = f"Training to {100 * races.until:g} % of the test samples"
        print_ways(console, title, race_columns(races), races.run, "MB", wide=wide)
        console.print()
        _print_curves(races, console)
    print_refused(races.rows, console)


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
