"""Curves and bars -> plotly figures, without the colours that follow the reader's theme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from hgpart.files.columns import UNITS
from hgpart.partition.problem.balance import capacities
from hgpart.report.partition.looks import COLOURS, DASHES, GREY, part_marker
from hgpart.report.partition.record import Report, work_scale
from hgpart.report.tables import even_decimals

# Numbers that there is room for side by side at 400 pixels, and below each other.
TICKS_ACROSS, TICKS_DOWN = 16, 40
PART_HEIGHT, WAY_HEIGHT = 34, 40  # pixels of a row of a part, and of a way
FAINT = "rgba(140, 140, 140, 0.35)"
MOST_ROOM = 2.5  # times the largest need: a limit above that is off the scale
HEADROOM = 1.25  # times the largest need that the axis shows then
TOP_RIGHT = {"xref": "paper", "yref": "paper", "x": 1, "y": 1, "xanchor": "right", "yanchor": "top"}


@dataclass(frozen=True)
class Figure:
    """What plotly draws, and how large.

    Attributes
    ----------
    data : list
        Plotly's traces.
    height : int
        Pixels.
    """

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int


def axis(title: str, *, from_zero: bool = False, **more: Any) -> dict[str, Any]:
    """An axis with a title, perhaps one that begins at 0."""
    begin = {"rangemode": "tozero"} if from_zero else {}
    return {"title": {"text": title}, **begin, **more}


def line(
    name: str,
    x: Sequence[Any],
    y: Sequence[Any],
    hover: str,
    *,
    look: int = 0,
    symbol: str | Sequence[str] | None = None,
    dash: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """A curve in the colour and with the dashes of a number, with markers if there is a symbol."""
    markers = {} if symbol is None else {"marker": {"symbol": symbol, "size": 9}}
    return {
        "type": "scatter",
        "mode": "lines" if symbol is None else "lines+markers",
        "name": name,
        "x": x,
        "y": y,
        "line": {
            "color": COLOURS[look % len(COLOURS)],
            "dash": DASHES[(look // len(COLOURS) + dash) % len(DASHES)],
            "width": 2,
        },
        **markers,
        "hovertemplate": f"{hover}<extra></extra>",
        **more,
    }


def bars(
    name: str, y: Sequence[Any], x: Sequence[float | None], marker: Any, hover: str, **more: Any
) -> dict[str, Any]:
    """Bars from left to right."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": y,
        "x": x,
        "marker": marker,
        "hovertemplate": f"{hover}<extra></extra>",
        **more,
    }


def diamonds(y: Sequence[Any], x: Sequence[float | None], hover: str) -> dict[str, Any]:
    """What was measured, over bars of what was simulated."""
    look = {"symbol": "diamond", "size": 12, "color": COLOURS[1]}
    edge = {"line": {"width": 1, "color": "#ffffff"}}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "measured",
        "y": y,
        "x": x,
        "marker": {**look, **edge},
        "hovertemplate": f"{hover}<extra></extra>",
    }


def ways_figure(
    names: Sequence[str],
    series: Mapping[str, tuple[Sequence[float | None], float, Any]],
    measured: Sequence[float | None] = (),
) -> Figure:
    """A bar for each way, one series in the other: seconds, width and colours of each."""
    labels = [escape(name) for name in names]
    hover = "<b>%{{y}}</b><br>{}: %{{x:.4~g}} s"
    data = [
        bars(name, labels, seconds, {"color": colour}, hover.format(name), width=width)
        for name, (seconds, width, colour) in series.items()
    ]
    if any(seconds is not None for seconds in measured):
        data.append(diamonds(labels, measured, hover.format("measured")))
    layout = {
        "barmode": "overlay",
        "xaxis": axis("seconds a step", from_zero=True),
        "yaxis": {"autorange": "reversed", "automargin": True},
        "meta": {"legend": "above"},
        "showlegend": len(data) > 1,
    }
    return Figure(data, layout, height=WAY_HEIGHT * len(names) + 130)


def seconds_figure(k: int, title: str, *traces: dict[str, Any]) -> Figure:
    """Milliseconds of each part, a row each."""
    layout = {
        "barmode": "stack",
        "xaxis": axis(title, from_zero=True),
        "yaxis": axis("part", autorange="reversed", **part_ticks(k, TICKS_DOWN)),
        "legend": {"traceorder": "normal"},
        "meta": {"legend": "above"},
    }
    return Figure([*traces], layout, height=PART_HEIGHT * k + 150)


def part_bars(
    series: Sequence[tuple[str, Sequence[float], dict[str, Any]]],
    limit: tuple[str, Sequence[float | None]] | None,
    across: str,
    unit: str,
    height: int,
) -> Figure:
    """A bar for each part, in series beside each other, and a dashed line of limits."""
    parts = list(range(len(series[0][1])))
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": name,
            "x": parts,
            "y": values,
            "marker": look,
            "hovertemplate": f"{across} %{{x}}, {name}<br>%{{y:,.4~r}} {unit}<extra></extra>",
        }
        for name, values, look in series
    ]
    if limit is not None:
        name, limits = limit
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": [-0.5, *parts, len(parts) - 0.5],
                "y": [limits[0], *limits, limits[-1]],
                "line": {"shape": "hvh", "dash": "dash", "color": GREY},
                "hovertemplate": f"{name}: %{{y:,.4~r}} {unit}<extra></extra>",
            }
        )
    layout = {
        "barmode": "group",
        "xaxis": axis(across, **part_ticks(len(parts))),
        "yaxis": axis(unit, from_zero=True, tickformat=",~r"),
        "meta": {"legend": "above"},
    }
    return Figure(data, layout, height)


def load_figure(report: Report) -> Figure:
    """Work of each part, of this plan and of the cut between layers, and the most allowed."""
    unit, size = work_scale(report)
    loads, problem = report.partition.evaluation.loads, report.partition.problem
    speeds = problem.speeds or [1.0] * problem.k
    allowed = capacities(int(loads.sum()), speeds, problem.eps) / size
    cut = {"color": "rgba(140, 140, 140, 0.25)", "line": {"color": GREY, "width": 1}}
    bars = [
        ("this plan", (loads / size).tolist(), part_marker(range(problem.k))),
        ("cut between layers", (report.layerwise.loads / size).tolist(), cut),
    ]
    limits = f"most that eps {problem.eps:g} allows", allowed.tolist()
    return part_bars(bars, limits, "part", escape(unit), height=420)


def shortened(value: float) -> float | None:
    """Six digits, which are more than a colour or a label shows: the page is smaller.

    >>> shortened(1 / 3), shortened(float("nan"))
    (0.333333, None)
    """
    return None if np.isnan(value) else float(f"{value:.6g}")


def part_ticks(k: int, most: int = TICKS_ACROSS) -> dict[str, Any]:
    """A tick for each part, while there is room."""
    return {"dtick": 1, "tick0": 0} if k <= most else {"tickmode": "auto", "nticks": most}


def memory_figure(needed: Sequence[int], limits: Sequence[int | None], unit: str) -> Figure:
    """What each device needs, and the most that it may have.

    Limits far above all needs would crush the bars: the axis ends before them, and a note says
    what they are.

    Parameters
    ----------
    needed : sequence of int
        Bytes of each device.
    limits : sequence of int or None
        Bytes; None where that is not known. As many, or none at all.
    unit : str
        Unit of bytes, one of `hgpart.report.UNITS`.
    """
    size = UNITS[unit]
    most = max(needed, default=0)
    far = [limit for limit in limits if limit is not None and limit > MOST_ROOM * most > 0]
    known = [None if limit is None else limit / size for limit in limits]
    line = None if all(limit is None for limit in known) else ("may have", known)
    bars = [("needs", [count / size for count in needed], part_marker(range(len(needed))))]
    figure = part_bars(bars, line, "device", unit, height=400)
    if far:
        figure.layout["yaxis"] |= {"range": [0, HEADROOM * most / size], "rangemode": "normal"}
        ends = " to ".join(dict.fromkeys(even_decimals([min(far) / size, max(far) / size])))
        note = {"text": f"↑ may have {ends} {unit}, off the scale", **TOP_RIGHT, "showarrow": False}
        figure.layout["annotations"] = [note]
    return figure
