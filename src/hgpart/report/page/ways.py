"""Bench, Races -> their pages: which way of training is fastest, or first at an accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import inf
from typing import Any

from hgpart.bench.races import Race, Races, race_columns
from hgpart.bench.results import Bench, NotRun, Row, bench_columns
from hgpart.bench.ways.way import SINGLE, way_of
from hgpart.files.columns import Column
from hgpart.report.benches import (
    contenders,
    fastest,
    not_begun,
    race_settings,
    said_of_ways,
    settings,
    unit_of,
    why_not,
    winner,
)
from hgpart.report.page.comparison import MOST_LINES
from hgpart.report.page.document import Drawings, header, page, section
from hgpart.report.page.drawing.figures import Figure, axis, line, ways_figure
from hgpart.report.page.table import figures_row, glossary, reason_row, table
from hgpart.report.partition.looks import COLOURS, GREY, SYMBOLS

FASTEST, BASE = "fastest", "base of speed-ups"


def bench_page(bench: Bench, unit: str = "MB") -> str:
    """The page of ways of training, or running, on the clock: which is fastest, the table, bars.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `hgpart.report.UNITS`.
    """
    drawn, a = Drawings(), f"a {unit_of(bench)}"
    what = "Training, forward and backward with an update"
    if bench.inference:
        what = "Passes forward, one batch at a time"
    said = ". ".join(said_of_ways(bench))
    body = [
        header(settings(bench), _lines(fastest(bench), bench, "turn")),
        _rows_section(
            "ways",
            f"{what}. Each way had the machine to itself, in turns. ★ marks the fastest. Click a "
            f"heading to sort; point at a figure for all its digits. {said}",
            bench_columns(bench),
            bench.rows,
            unit,
            notes_of(bench),
        ),
        section(
            f"Seconds {a}",
            "The median of all that were timed, and a line from the lower to the upper quartile. "
            "Lower is better. The fastest way is green; the way that speed-ups are over is grey.",
            drawn.plot("ways", bench_figure(bench), f"Seconds {a} of each way"),
        ),
    ]
    kind = "running" if bench.inference else "training"
    return page(f"{bench.model}: ways of {kind} on the clock", body, drawn)


def race_page(races: Races) -> str:
    """The page of ways of training to an accuracy: which is first, the table, the curves."""
    drawn = Drawings()
    label = "Accuracy of each way against seconds of training"
    body = [
        header(race_settings(races), _lines(winner(races), races, "way")),
        _rows_section(
            "races",
            "All begin with the same weights, and see the same batches in the same order. Each had "
            "the machine to itself.",
            race_columns(races),
            races.rows,
            "MB",
        ),
        section("Accuracy against time", "", drawn.plot("races", race_figure(races), label)),
    ]
    return page(f"{races.model}: ways of training to an accuracy", body, drawn)


def _lines(answer: str, record: Bench | Races, what: str) -> list[str]:
    """The answer, why it can't be trusted, and what there was no time for."""
    return [*filter(None, (answer, record.caution, not_begun(record.left_out, what)))]


def _rows_section(
    name: str,
    text: str,
    columns: Sequence[Column[Any]],
    rows: Sequence[Row | Race],
    unit: str,
    notes: Mapping[str, str] | None = None,
) -> str:
    """A row a way, with what is noted beside it; what could not be run, or to its end, says why."""
    shown = []
    for row in rows:
        if not isinstance(row, NotRun):
            note = (notes or {}).get(row.way, "")
            best = ("median_seconds", "p50_seconds") if note == FASTEST else ()
            shown.append(figures_row(columns, row, unit, note=note, best=best, best_of=FASTEST))
        if why := why_not(row):
            shown.append(reason_row(columns, row.way, why))
    terms = [(row.way, way_of(row.way).meaning) for row in rows]
    return section(
        "Every way, side by side",
        text,
        table(name, columns, shown, unit),
        glossary("What the columns and the ways are", columns, terms),
    )


def notes_of(bench: Bench) -> dict[str, str]:
    """What is said beside the fastest way of training one model, and beside one process."""
    notes = {row.way: BASE for row in bench.measured if row.way == SINGLE}
    if rows := contenders(bench):
        notes[min(rows, key=lambda row: row.quartiles[1]).way] = FASTEST
    return notes


def bench_figure(bench: Bench) -> Figure:
    """A bar for the median of each way, and a line from quartile to quartile."""
    rows, notes = bench.measured, notes_of(bench)
    quartiles = [row.quartiles for row in rows]
    colours = {FASTEST: COLOURS[2], BASE: GREY}
    names = [f"{row.way} ({notes[row.way]})" if row.way in notes else row.way for row in rows]
    looks = [colours.get(notes.get(row.way, ""), COLOURS[0]) for row in rows]
    medians = [middle for _, middle, _ in quartiles]
    figure = ways_figure(names, {f"a {unit_of(bench)}": (medians, 0.7, looks)})
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
