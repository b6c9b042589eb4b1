"""Comparison -> plotly figures: a line for each way, against k or eps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from hgpart.compare.comparison import Comparison
from hgpart.compare.outcomes import Outcome
from hgpart.report.page.drawing.figures import Figure, axis, line
from hgpart.report.partition.looks import SYMBOLS

MOST_LINES = 8  # lines of a chart; others wait in the legend
LINEAR_RANGE = 4  # figures that differ less are not drawn on a logarithmic axis


class StrategyLine(NamedTuple):
    """A way, what it is called in the legend, and which dash it has."""

    strategy: str
    label: str
    dash: int


class LinePoint(NamedTuple):
    """Where on the axis, the figure, if there is one, and whether it is beyond the smallest eps."""

    at: float
    value: float | None
    beyond: bool


Lines = Mapping[StrategyLine, list[LinePoint]]


def lines_figure(comparison: Comparison, attribute: str, title: str, size: float) -> Figure:
    """One figure of every way against k; `size` is what the axis' unit is.

    A way keeps its colour and marker whatever eps is, and each eps has its dash. Points that
    are not within the smallest eps are hollow. Of more than eight lines those with the least at the
    largest k are drawn, and the others wait in the legend.
    """
    epss = sorted({row.eps for row in comparison.rows if row.eps is not None})
    lines: dict[StrategyLine, list[LinePoint]] = {}
    for row in comparison.steps:
        label = row.strategy
        if row.eps is not None and len(epss) > 1:
            label += f", eps {row.eps:g}"
        dash = 0 if row.eps is None else epss.index(row.eps)
        point = LinePoint(row.k, _value(row, attribute, size), not comparison.is_balanced(row))
        lines.setdefault(StrategyLine(row.strategy, label, dash), []).append(point)
    ks = sorted({row.k for row in comparison.rows})
    across = axis("devices (k)", type="log", tickvals=ks, ticktext=[*map(str, ks)])
    return _figure(comparison, lines, "k", across, title)


def eps_figure(comparison: Comparison, attribute: str, title: str, size: float, k: int) -> Figure:
    """One figure of the ways that take an eps against it, for one k."""
    lines: dict[StrategyLine, list[LinePoint]] = {}
    for row in comparison.steps:
        if row.eps is not None and row.k == k:
            value = _value(row, attribute, size)
            point = LinePoint(row.eps, value, not comparison.is_balanced(row))
            lines.setdefault(StrategyLine(row.strategy, row.strategy, 0), []).append(point)
    ticks = sorted({point.at for points in lines.values() for point in points})
    texts = [f"{eps:g}" for eps in ticks]
    across = axis("eps (imbalance allowed)", tickvals=ticks, ticktext=texts)
    return _figure(comparison, lines, "eps", across, title)


def _value(row: Outcome, attribute: str, size: float) -> float | None:
    """None also where it is 0, which a logarithmic axis does not have."""
    value: float | None = getattr(row, attribute)
    return value / size if value else None


def _figure(
    comparison: Comparison, lines: Lines, letter: str, across: dict[str, Any], title: str
) -> Figure:
    names = list(dict.fromkeys(row.strategy for row in comparison.rows))
    data, drawn = [], _least(lines)
    for strategy, unsorted in lines.items():
        number = names.index(strategy.strategy)
        points = sorted(unsorted, key=lambda point: point.at)
        beyond = [point.beyond for point in points]
        symbol = SYMBOLS[number % len(SYMBOLS)]
        label, text = escape(strategy.label), escape(title)
        data.append(
            line(
                label,
                [point.at for point in points],
                [point.value for point in points],
                f"<b>{label}</b><br>{letter} = %{{x}}<br>%{{y:,.4~r}} {text}%{{customdata}}",
                look=number,
                dash=strategy.dash,
                symbol=[symbol + "-open" * out for out in beyond],
                visible=True if strategy in drawn else "legendonly",
                customdata=[f"<br>beyond eps {comparison.eps:g}" * out for out in beyond],
            )
        )
    values = [point.value for points in lines.values() for point in points if point.value]
    if max(values, default=1) < LINEAR_RANGE * min(values, default=1):
        up = axis(escape(title), from_zero=True, type="linear", tickformat=",~r")
    else:  # 1, 2, 5, 10, 20, ...
        up = axis(f"{escape(title)} (logarithmic)", type="log", tickformat=",~r", dtick="D2")
    layout = {
        "xaxis": across,
        "yaxis": up,
        "hovermode": "closest",
        "meta": {"legend": "aside"},
    }
    return Figure(data, layout, height=540)


def _least(lines: Lines) -> set[StrategyLine]:
    """The lines that a chart has room for, with the least at the end of their axis."""

    def last(strategy: StrategyLine) -> tuple[float, float]:
        point = max(lines[strategy], key=lambda point: point.at)
        return -point.at, math.inf if point.value is None else point.value

    return set(sorted(lines, key=last)[:MOST_LINES])
