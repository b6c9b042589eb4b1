"""Comparison, Report -> plotly figures, without the colours that follow the reader's theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from hgpart.compare.comparison import Comparison
from hgpart.partition.problem.balance import capacities
from hgpart.report import UNITS, Report
from hgpart.report.partition.record import layer_shares, work_scale

# Okabe and Ito's colours for the colour-blind (https://jfly.uni-koeln.de/color/), without the
# yellow and black that vanish on a light or a dark page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"),
    *("pentagon", "hexagram", "bowtie", "hourglass", "triangle-left", "triangle-right", "hexagon"),
    *("star-square", "diamond-wide", "octagon", "star-triangle-up", "star-triangle-down"),
    *("star-diamond", "diamond-tall", "hexagon2"),
)

MAX_LABELLED_PARTS = 16  # cells that have room for their figure
MAX_TICKED_PARTS = 40
MAX_SLICE_TICKS = 8
MAX_STRIPS = 4096  # slices of all parts that a picture has room for
ROW_HEIGHT = 18  # of a layer, in pixels
LINEAR_RANGE = 4  # loads that differ less are not drawn on a logarithmic axis


@dataclass(frozen=True)
class Figure:
    """What plotly draws, and how large.

    Attributes
    ----------
    data : list
        Traces.
    layout : dict
    height, least_width : int
        In pixels; a narrower window scrolls.
    most_width : int, optional
        As wide as the window when left out.
    """

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int
    least_width: int = 320
    most_width: int | None = None


def lines_figure(comparison: Comparison, attribute: str, title: str, size: float) -> Figure:
    """One figure of every strategy against k; `size` is what the axis' unit is.

    A strategy keeps its colour and marker whatever eps is, and each eps has its dash. Points that
    are not within the smallest eps are hollow.
    """
    names = list(dict.fromkeys(row.strategy for row in comparison.rows))
    epss = sorted({row.eps for row in comparison.rows if row.eps is not None})
    lines: dict[tuple[str, float | None], list[tuple[int, float | None, bool]]] = {}
    for row in comparison.steps:
        # None where it is 0, which a logarithmic axis does not have.
        value = getattr(row, attribute) / size or None
        point = row.k, value, not comparison.is_balanced(row)
        lines.setdefault((row.strategy, row.eps), []).append(point)
    data = []
    for (name, eps), points in lines.items():
        at = names.index(name)
        dash = at // len(COLOURS) + (0 if eps is None else epss.index(eps))
        label = name if eps is None or len(epss) == 1 else f"{name}, eps {eps:g}"
        points.sort(key=lambda point: point[0])
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": escape(label),
                "x": [k for k, _, _ in points],
                "y": [value for _, value, _ in points],
                "customdata": [
                    f"<br>beyond eps {comparison.eps:g}" if beyond else ""
                    for _, _, beyond in points
                ],
                "line": {
                    "color": COLOURS[at % len(COLOURS)],
                    "dash": DASHES[dash % len(DASHES)],
                    "width": 2,
                },
                "marker": {
                    "symbol": [
                        SYMBOLS[at % len(SYMBOLS)] + ("-open" if beyond else "")
                        for _, _, beyond in points
                    ],
                    "size": 9,
                },
                "hovertemplate": f"<b>{escape(label)}</b><br>k = %{{x}}<br>"
                f"%{{y:,.4~r}} {escape(title)}%{{customdata}}<extra></extra>",
            }
        )
    values = [value for points in lines.values() for _, value, _ in points if value]
    linear = max(values, default=1) < LINEAR_RANGE * min(values, default=1)
    ks = sorted({row.k for row in comparison.rows})
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": "devices (k)"},
            "tickvals": ks,
            "ticktext": list(map(str, ks)),
        },
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


def load_figure(report: Report) -> Figure:
    """Work of each part, of this plan and of the layer-wise split, and the most allowed."""
    unit, size = work_scale(report)
    unit = escape(unit)
    parts = list(range(report.k))
    speeds = report.speeds or [1.0] * report.k
    limit = capacities(int(report.evaluation.loads.sum()), speeds, report.eps) / size
    hatch = "/" if report.k <= MAX_TICKED_PARTS else ""
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": name,
            "x": parts,
            "y": (loads / size).tolist(),
            "marker": {"color": colour, "pattern": {"shape": pattern}},
            "hovertemplate": f"part %{{x}}, {name}<br>%{{y:,.4~r}} {unit}<extra></extra>",
        }
        for name, loads, colour, pattern in (
            ("this plan", report.evaluation.loads, COLOURS[0], ""),
            ("cut between layers", report.layerwise.loads, COLOURS[4], hatch),
        )
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"most that eps {report.eps:g} allows",
            "x": [-0.5, *parts, report.k - 0.5],
            "y": [limit[0], *limit.tolist(), limit[-1]],
            "line": {"shape": "hvh", "dash": "dash", "color": COLOURS[1]},
            "hovertemplate": f"allowed: %{{y:,.4~r}} {unit}<extra></extra>",
        }
    )
    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": "part"}, **part_ticks(report.k)},
        "yaxis": {"title": {"text": unit}, "tickformat": ",~r", "rangemode": "tozero"},
        "meta": {"legend": "above"},
    }
    return Figure(data, layout, height=420)


def traffic_figure(report: Report, unit: str) -> Figure:
    """Bytes that each part sends to each other part in a forward pass."""
    k = report.k
    sent = report.evaluation.traffic / UNITS[unit]
    data = _heat_map(
        np.where(report.evaluation.traffic > 0, sent, np.nan),
        report.evaluation.messages.tolist(),
        unit,
        f"part %{{y}} sends part %{{x}}<br>%{{z:,.4~r}} {unit} in %{{customdata}} messages"
        "<extra></extra>",
        "%{z:,.3~r}",
    )
    axis = {"range": [-0.5, k - 0.5], "constrain": "domain", **part_ticks(k)}
    layout = {
        "xaxis": {**axis, "title": {"text": "receives"}, "side": "top"},
        "yaxis": {
            **axis,
            "range": [k - 0.5, -0.5],
            "title": {"text": "sends"},
            "scaleanchor": "x",
        },
    }
    side = max(280, min(800, 60 * k))
    return Figure(
        data, layout, height=side + 100, least_width=min(side, 600), most_width=side + 210
    )


def layer_figure(report: Report) -> Figure:
    """The share of each layer that each part computes, in percent."""
    shown = [view for view in report.blocks.views if view.exists]
    shares = np.array([layer_shares(report, view) for view in shown]) * 100
    tasks = [report.shares.layer_tasks[view.at].tolist() for view in shown]
    data = _heat_map(
        np.where(shares > 0, shares, np.nan),
        tasks,
        "% of the layer",
        "<b>%{y}</b>, part %{x}<br>%{customdata:,} tasks, %{z:.4~r} % of the layer<extra></extra>",
        "%{z:.2~r}",
    )
    return _layers_by_parts(data, [view.layer.name for view in shown], report.k)


def slices_figure(report: Report) -> Figure:
    """The slices of each layer that each part computes filters of: strips side by side."""
    slices = report.modelling.slices
    strips = slices + 1  # of a part, the last one empty
    shown = [
        (view.layer.name, groups)
        for view, groups in zip(report.blocks.views, report.slices_of_layers, strict=True)
        if groups
    ]
    values = np.full((len(shown), report.k * strips), np.nan)
    details: list[list[str | None]] = [[None] * values.shape[1] for _ in shown]
    for row, (_, groups) in enumerate(shown):
        for group in groups:
            for part, share in zip(group.parts, group.shares, strict=True):
                for at in group.slices:
                    values[row, part * strips + at] = at
                    details[row][part * strips + at] = f"part {part}: {100 * share:.4g} %"
    data = _heat_map(
        values,
        details,
        "slice",
        "<b>%{y}</b>, slice %{z}<br>%{customdata} of its filters<extra></extra>",
        "%{z}",
    )
    data[0] |= {"x0": 1 / strips - 0.5, "dx": 1 / strips, "xgap": 0, "ygap": 1}
    data[0] |= {"zmin": -0.3 * slices, "zmax": slices - 1}  # so that none has the page's colour
    ticks = np.unique(np.linspace(0, slices - 1, min(slices, MAX_SLICE_TICKS)).astype(int))
    data[0]["colorbar"] |= {"tickvals": ticks.tolist()}
    return _layers_by_parts(data, [name for name, _ in shown], report.k)


def _layers_by_parts(data: list[dict[str, Any]], names: Sequence[str], k: int) -> Figure:
    """A row a layer, a column a part."""
    rows = len(names)
    layout = {
        "xaxis": {
            "title": {"text": "part"},
            "side": "top",
            "range": [-0.5, k - 0.5],
            **part_ticks(k),
        },
        "yaxis": {
            "range": [rows - 0.5, -0.5],
            "tickvals": list(range(rows)),
            "ticktext": list(map(escape, names)),
            "tickfont": {"size": 11},
            "automargin": True,
        },
    }
    longest = max(map(len, layout["yaxis"]["ticktext"]), default=0)
    width = min(480, 7 * longest) + max(320, 7 * k)
    return Figure(data, layout, height=max(240, ROW_HEIGHT * rows) + 130, least_width=width)


def _heat_map(
    values: np.ndarray[Any, Any], details: Sequence[Any], unit: str, hover: str, label: str
) -> list[dict[str, Any]]:
    """A trace whose empty cells are not a number; cells say their figure where there is room."""
    few = values.shape[1] <= MAX_LABELLED_PARTS
    largest = max((value for value in values.ravel().tolist() if not np.isnan(value)), default=1)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": [[shortened(value) for value in row] for row in values.tolist()],
        "customdata": details,
        "colorscale": "Cividis",
        "zmin": 0,
        "zmax": largest,
        "hoverongaps": False,
        "hovertemplate": hover,
        "colorbar": {
            "title": {"text": unit, "side": "right"},
            "tickformat": ",~r",
            "lenmode": "pixels",
            "len": 240,
            "y": 1,
            "yanchor": "top",
        },
        "xgap": int(few),
        "ygap": int(few),
    }
    if few:
        trace["texttemplate"] = label
    return [trace]


def shortened(value: float) -> float | None:
    """Six digits are more than a colour or a label shows: the page is smaller without the others.

    >>> shortened(1 / 3), shortened(float("nan"))
    (0.333333, None)
    """
    return None if np.isnan(value) else float(f"{value:.6g}")


def part_ticks(k: int) -> dict[str, Any]:
    """A tick for each part, while there is room."""
    return {"dtick": 1, "tick0": 0} if k <= MAX_TICKED_PARTS else {"tickmode": "auto"}
