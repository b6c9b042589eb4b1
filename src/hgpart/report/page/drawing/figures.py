"""Comparison, Report -> plotly figures, without the colours that follow the reader's theme."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np

from hgpart.compare.comparison import Comparison
from hgpart.compare.outcomes import Outcome
from hgpart.partition.problem.balance import capacities
from hgpart.report.partition.looks import COLOURS, DASHES, GREY, SYMBOLS, part_marker
from hgpart.report.partition.record import Report, work_scale

# Numbers that there is room for side by side at 400 pixels, and below each other.
TICKS_ACROSS, TICKS_DOWN = 16, 40
MOST_LINES = 8  # of a chart; others wait in the legend
LINEAR_RANGE = 4  # loads that differ less are not drawn on a logarithmic axis


@dataclass(frozen=True)
class Figure:
    """What plotly draws, and how large.

    Attributes
    ----------
    data : list
        Traces.
    layout : dict
    height : int
        In pixels.
    """

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int


def lines_figure(comparison: Comparison, attribute: str, title: str, size: float) -> Figure:
    """One figure of every strategy against k; `size` is what the axis' unit is.

    A strategy keeps its colour and marker whatever eps is, and each eps has its dash. Points that
    are not within the smallest eps are hollow. Of more than eight lines those with the least at the
    largest k are drawn, and the others wait in the legend.
    """
    epss = sorted({row.eps for row in comparison.rows if row.eps is not None})
    lines: dict[Line, list[Point]] = {}
    for row in comparison.steps:
        label = row.strategy
        if row.eps is not None and len(epss) > 1:
            label += f", eps {row.eps:g}"
        dash = 0 if row.eps is None else epss.index(row.eps)
        point = Point(row.k, _value(row, attribute, size), not comparison.is_balanced(row))
        lines.setdefault(Line(row.strategy, label, dash), []).append(point)
    ks = sorted({row.k for row in comparison.rows})
    axis = {
        "type": "log",
        "title": {"text": "devices (k)"},
        "tickvals": ks,
        "ticktext": [*map(str, ks)],
    }
    return _lines(comparison, lines, "k", axis, title)


def eps_figure(comparison: Comparison, attribute: str, title: str, size: float, k: int) -> Figure:
    """The same of one k against eps, of the strategies that take one."""
    lines: dict[Line, list[Point]] = {}
    for row in comparison.steps:
        if row.eps is not None and row.k == k:
            point = Point(row.eps, _value(row, attribute, size), not comparison.is_balanced(row))
            lines.setdefault(Line(row.strategy, row.strategy, 0), []).append(point)
    ticks = sorted({point.at for points in lines.values() for point in points})
    axis = {
        "title": {"text": "eps (imbalance allowed)"},
        "tickvals": ticks,
        "ticktext": [f"{eps:g}" for eps in ticks],
    }
    return _lines(comparison, lines, "eps", axis, title)


class Line(NamedTuple):
    """A strategy, what it is called in the legend, and which dash it has."""

    strategy: str
    label: str
    dash: int


class Point(NamedTuple):
    """Where on the axis, the figure, if there is one, and whether it is beyond the smallest eps."""

    at: float
    value: float | None
    beyond: bool


def _value(row: Outcome, attribute: str, size: float) -> float | None:
    """None where it is 0, which a logarithmic axis does not have, too."""
    value: float | None = getattr(row, attribute)
    return value / size if value else None


def _lines(
    comparison: Comparison,
    lines: Mapping[Line, list[Point]],
    letter: str,
    axis: dict[str, Any],
    title: str,
) -> Figure:
    names = list(dict.fromkeys(row.strategy for row in comparison.rows))
    data, drawn = [], _least(lines)
    for line, unsorted in lines.items():
        at = names.index(line.strategy)
        points = sorted(unsorted, key=lambda point: point.at)
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": escape(line.label),
                "visible": True if line in drawn else "legendonly",
                "x": [point.at for point in points],
                "y": [point.value for point in points],
                "customdata": [
                    f"<br>beyond eps {comparison.eps:g}" if point.beyond else "" for point in points
                ],
                "line": {
                    "color": COLOURS[at % len(COLOURS)],
                    "dash": DASHES[(at // len(COLOURS) + line.dash) % len(DASHES)],
                    "width": 2,
                },
                "marker": {
                    "symbol": [
                        SYMBOLS[at % len(SYMBOLS)] + ("-open" if point.beyond else "")
                        for point in points
                    ],
                    "size": 9,
                },
                "hovertemplate": f"<b>{escape(line.label)}</b><br>{letter} = %{{x}}<br>"
                f"%{{y:,.4~r}} {escape(title)}%{{customdata}}<extra></extra>",
            }
        )
    values = [point.value for points in lines.values() for point in points if point.value]
    linear = max(values, default=1) < LINEAR_RANGE * min(values, default=1)
    layout = {
        "xaxis": axis,
        "yaxis": {
            "type": "linear" if linear else "log",
            "title": {"text": escape(title)},
            "tickformat": ",~r",
            **({} if linear else {"dtick": "D2"}),  # 1, 2, 5, 10, 20, ...
        },
        "hovermode": "closest",
        "meta": {"legend": "aside"},
    }
    return Figure(data, layout, height=540)


def _least(lines: Mapping[Line, list[Point]]) -> set[Line]:
    """As many as a chart has room for, with the least at the end of the axis that they have."""

    def last(line: Line) -> tuple[float, float]:
        point = max(lines[line], key=lambda one: one.at)
        return -point.at, math.inf if point.value is None else point.value

    return set(sorted(lines, key=last)[:MOST_LINES])


def load_figure(report: Report) -> Figure:
    """Work of each part, of this plan and of the layer-wise split, and the most allowed."""
    unit, size = work_scale(report)
    unit = escape(unit)
    parts = list(range(report.partition.k))
    speeds = report.partition.problem.speeds or [1.0] * report.partition.k
    limit = (
        capacities(
            int(report.partition.evaluation.loads.sum()), speeds, report.partition.problem.eps
        )
        / size
    )
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": "this plan",
            "x": parts,
            "y": (report.partition.evaluation.loads / size).tolist(),
            "marker": part_marker(parts),
            "hovertemplate": f"part %{{x}}, this plan<br>%{{y:,.4~r}} {unit}<extra></extra>",
        },
        {
            "type": "bar",
            "name": "cut between layers",
            "x": parts,
            "y": (report.layerwise.loads / size).tolist(),
            "marker": {"color": "rgba(140, 140, 140, 0.25)", "line": {"color": GREY, "width": 1}},
            "hovertemplate": f"part %{{x}}, cut between layers<br>%{{y:,.4~r}} {unit}"
            "<extra></extra>",
        },
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"most that eps {report.partition.problem.eps:g} allows",
            "x": [-0.5, *parts, report.partition.k - 0.5],
            "y": [limit[0], *limit.tolist(), limit[-1]],
            "line": {"shape": "hvh", "dash": "dash", "color": GREY},
            "hovertemplate": f"allowed: %{{y:,.4~r}} {unit}<extra></extra>",
        }
    )
    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": "part"}, **part_ticks(report.partition.k)},
        "yaxis": {"title": {"text": unit}, "tickformat": ",~r", "rangemode": "tozero"},
        "meta": {"legend": "above"},
    }
    return Figure(data, layout, height=420)


def shortened(value: float) -> float | None:
    """Six digits are more than a colour or a label shows: the page is smaller without the others.

    >>> shortened(1 / 3), shortened(float("nan"))
    (0.333333, None)
    """
    return None if np.isnan(value) else float(f"{value:.6g}")


def part_ticks(k: int, most: int = TICKS_ACROSS) -> dict[str, Any]:
    """A tick for each part, while there is room."""
    return {"dtick": 1, "tick0": 0} if k <= most else {"tickmode": "auto", "nticks": most}
