"""Bench, Races -> plotly figures: what a step, or an accuracy, takes each way."""

from __future__ import annotations

from html import escape
from math import inf

from hgpart.bench.races import Races
from hgpart.bench.results import Bench
from hgpart.report.page.drawing.figures import MOST_LINES, Figure
from hgpart.report.partition.looks import COLOURS, DASHES, SYMBOLS

BAR_HEIGHT = 30  # of a way, in pixels


def ways_figure(bench: Bench) -> Figure:
    """A bar for the median of each way, and a line from quartile to quartile."""
    rows = bench.measured
    quartiles = [row.quartiles for row in rows]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [escape(row.way) for row in rows],
            "x": [middle for _, middle, _ in quartiles],
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [upper - middle for _, middle, upper in quartiles],
                "arrayminus": [middle - lower for lower, middle, _ in quartiles],
            },
            "marker": {"color": COLOURS[0]},
            "hovertemplate": "<b>%{y}</b><br>%{x:.4~g} s a step<extra></extra>",
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "seconds a step"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "showlegend": False,
    }
    return Figure(data, layout, height=BAR_HEIGHT * len(rows) + 120)


def race_figure(races: Races) -> Figure:
    """Accuracy of each way against seconds of training, as figure 5.2 of the thesis.

    Of more than eight ways those that came first are drawn, and the others wait in the legend.
    """
    finishes = {row.way: races.finish(row) for row in races.run}
    seconds = {way: inf if point is None else point.seconds for way, point in finishes.items()}
    first = sorted(seconds, key=seconds.__getitem__)[:MOST_LINES]
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": escape(row.way),
            "visible": True if row.way in first else "legendonly",
            "x": [point.seconds for point in row.points],
            "y": [100 * point.accuracy for point in row.points],
            "customdata": [point.steps for point in row.points],
            "line": {
                "color": COLOURS[at % len(COLOURS)],
                "dash": DASHES[at // len(COLOURS) % len(DASHES)],
                "width": 2,
            },
            "marker": {"symbol": SYMBOLS[at % len(SYMBOLS)], "size": 7},
            "hovertemplate": f"<b>{escape(row.way)}</b><br>%{{y:.1f}} % after %{{x:.4~g}} s, "
            "%{customdata} steps<extra></extra>",
        }
        for at, row in enumerate(races.run)
    ]
    layout = {
        "xaxis": {"title": {"text": "seconds of training"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "% of the test samples"}},
    }
    return Figure(data, layout, height=460)
