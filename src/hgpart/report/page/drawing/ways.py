"""Bench, Races -> plotly figures: what a step, or an accuracy, takes each way."""

from __future__ import annotations

from html import escape
from math import inf

from hgpart.bench.races import Races
from hgpart.bench.results import Bench
from hgpart.bench.ways.way import APART, SINGLE
from hgpart.report.page.drawing.comparison import MOST_LINES
from hgpart.report.page.drawing.figures import Figure, axis, line, ways_figure
from hgpart.report.partition.looks import COLOURS, GREY, SYMBOLS

FASTEST, BASE = "fastest", "base of speed-ups"


def notes_of(bench: Bench) -> dict[str, str]:
    """What is said beside the fastest way of training one model, and beside one process."""
    notes = {row.way: BASE for row in bench.measured if row.way == SINGLE}
    trained = [row for row in bench.measured if row.way != APART]
    if trained:
        notes[min(trained, key=lambda row: row.quartiles[1]).way] = FASTEST
    return notes


def bench_figure(bench: Bench) -> Figure:
    """A bar for the median of each way, and a line from quartile to quartile."""
    rows, notes = bench.measured, notes_of(bench)
    quartiles = [row.quartiles for row in rows]
    colours = {FASTEST: COLOURS[2], BASE: GREY}
    names = [
        f"{row.way} ({notes[row.way]})" if row.way in notes else row.way for row in bench.measured
    ]
    looks = [colours.get(notes.get(row.way, ""), COLOURS[0]) for row in rows]
    figure = ways_figure(names, {"a step": ([middle for _, middle, _ in quartiles], 0.7, looks)})
    figure.data[0]["error_x"] = {
        "type": "data",
        "symmetric": False,
        "array": [upper - middle for _, middle, upper in quartiles],
        "arrayminus": [middle - lower for lower, middle, _ in quartiles],
    }
    return figure


def race_figure(races: Races) -> Figure:
    """Accuracy of each way against seconds of training, as figure 5.2 of the thesis.

    Of more than eight ways those that came first are drawn, and the others wait in the legend.
    """
    finishes = {row.way: races.finish(row) for row in races.run}
    seconds = {way: inf if point is None else point.seconds for way, point in finishes.items()}
    first = sorted(seconds, key=seconds.__getitem__)[:MOST_LINES]
    data = [
        line(
            escape(row.way),
            [point.seconds for point in row.points],
            [100 * point.accuracy for point in row.points],
            f"<b>{escape(row.way)}</b><br>%{{y:.1f}} % after %{{x:.4~g}} s, %{{customdata}} steps",
            look=number,
            symbol=SYMBOLS[number % len(SYMBOLS)],
            visible=True if row.way in first else "legendonly",
            customdata=[point.steps for point in row.points],
        )
        for number, row in enumerate(races.run)
    ]
    layout = {
        "xaxis": axis("seconds of training", from_zero=True),
        "yaxis": axis("% of the test samples"),
    }
    return Figure(data, layout, height=460)
