"""Comparison -> its page: the verdict, the table, traffic and load against k; a plan below."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from typing import NamedTuple

from hgpart.compare.columns import comparison_columns
from hgpart.compare.comparison import (
    CONTESTED,
    EPOCHS,
    VERDICT_K,
    Comparison,
    cell_of,
    verdict,
    why_no_step,
    winners,
)
from hgpart.compare.outcomes import Failed, Outcome
from hgpart.compare.step_seconds import ASSUMED
from hgpart.files.columns import UNITS
from hgpart.machines.named import ASSUMED_LINKS
from hgpart.partition.ways.catalogue import way_named
from hgpart.report.page.document import Drawings, header, page, paragraphs, section
from hgpart.report.page.drawing.figures import Figure, axis, line
from hgpart.report.page.plan import (
    all_settings,
    plan_sections,
    settings_of,
    slices_text,
)
from hgpart.report.page.table import figures_row, glossary, reason_row, table
from hgpart.report.partition.looks import SYMBOLS
from hgpart.report.partition.printing import answer
from hgpart.report.partition.record import Report
from hgpart.tracing.input_shape import shape_text

MOST_LINES = 8  # lines of a chart; others wait in the legend
SECONDS = "s per training step, about"
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


def comparison_page(comparison: Comparison, plan: Report | None = None, unit: str = "MB") -> str:
    """The page of a comparison: the verdict, the table, traffic and load against k.

    Parameters
    ----------
    plan : Report, optional
        A plan to show below it, as `plan_page` does.
    unit : str
        Unit of bytes, one of `hgpart.report.UNITS`.
    """
    subject = [
        comparison.model,
        f"input {shape_text(comparison.input_shape)}",
        *settings_of(comparison),
        f"epoch of {comparison.dataset_size:,} samples",
        f"work: {comparison.work_source}",
        f"seed {comparison.seed}",
    ]
    drawn, size, title = Drawings(), UNITS[unit], f"{unit} per training step"
    figure = lines_figure(comparison, "step_bytes", title, size)
    traffic = drawn.plot("step-bytes", figure, "Traffic of each way against k")
    figure = lines_figure(comparison, "max_over_average", "max/avg load", 1)
    load = drawn.plot("max-over-average", figure, "Load of each way against k")
    terms = [
        (name, way_named(name).words)
        for name in dict.fromkeys(row.strategy for row in comparison.rows)
    ]
    hollow = f"Hollow points are beyond eps {comparison.eps:g}: one device has too much to do."
    most = f"Of more than {MOST_LINES} lines those of least are drawn: click a name to draw or "
    most += "hide one, twice to see it alone."
    body = [
        header(subject, [verdict(comparison)]),
        section(
            "Every way, side by side",
            "Less is better in every column. ★ marks the best of its k, for all but load among the "
            f"splits within max/avg load {1 + comparison.eps:g}; those beyond eps "
            f"{comparison.eps:g} are grey. Click a heading to sort; point at a figure for all its "
            "digits.",
            k_buttons(comparison),
            comparison_table(comparison, unit),
            glossary("What the columns and the ways are", comparison_columns(comparison), terms),
        ),
        section(
            "Traffic against the number of devices",
            "Bytes that all devices together send in a training step: forward, backward and, where "
            f"parameters are replicated, their synchronisation. Lower is better. {most} {hollow}",
            traffic,
        ),
        *_seconds(comparison, drawn),
        section(
            "Load against the number of devices",
            "Work of the busiest device over the average: 1 is a perfect balance, 2 means that it "
            "takes twice as long as it would if all had the same. Lower is better. "
            f"{hollow}",
            load,
        ),
        *_against_eps(comparison, unit, drawn),
    ]
    if plan is not None:
        first, *others = answer(plan, unit)
        lines = [*_plan_settings(plan, comparison), *others]
        body.append(section(f"A plan: {first}", "", *paragraphs(lines)))
        body += plan_sections(plan, unit, drawn)
    return page(f"{comparison.model}: ways compared", body, drawn)


def _seconds(comparison: Comparison, drawn: Drawings) -> list[str]:
    """Estimated seconds against k, where there are any."""
    if not any(row.step_seconds for row in comparison.steps):
        return []
    assumed = ASSUMED if comparison.work_source == "flops" else ASSUMED_LINKS
    figure = lines_figure(comparison, "step_seconds", SECONDS, 1)
    return [
        section(
            "Seconds against the number of devices",
            "About what a training step takes: an estimate by the busiest device's work and bytes, "
            f"for {assumed}, in as many micro-batches as are best. Lower is better. hgpart "
            "recommend simulates, by what your machine was measured to do.",
            drawn.plot("step-seconds", figure, "Estimated seconds of each way against k"),
        )
    ]


def _against_eps(comparison: Comparison, unit: str, drawn: Drawings) -> list[str]:
    """Bytes and seconds against the imbalance that was allowed, where several were asked for."""
    ks = {row.k for row in comparison.steps if row.eps is not None}
    if len(comparison.epss) < 2 or not ks:
        return []
    k = VERDICT_K if VERDICT_K in ks else max(ks)
    size, title = UNITS[unit], f"{unit} per training step"
    figure = lines_figure(comparison, "step_bytes", title, size, k)
    plots = [drawn.plot("bytes-eps", figure, "Traffic of each way against eps")]
    if any(row.step_seconds for row in comparison.steps if row.k == k and row.eps is not None):
        figure = lines_figure(comparison, "step_seconds", SECONDS, 1, k)
        plots.append(drawn.plot("seconds-eps", figure, "Estimated seconds of each way against eps"))
    return [
        section(
            "Traffic and seconds against eps",
            f"With {k} devices: what a larger imbalance saves, of the ways that take one. "
            f"Hollow points are beyond eps {comparison.eps:g}.",
            *plots,
        )
    ]


def _plan_settings(plan: Report, comparison: Comparison) -> list[str]:
    """What a plan was made with, and where that differs from the comparison above it."""
    modelling, eps = plan.partition.modelling, plan.partition.problem.eps
    own, others = all_settings(modelling), all_settings(comparison)
    differences = [f"{own[name]}, not {others[name]}" for name in own if own[name] != others[name]]
    if eps not in comparison.epss:
        asked = ", ".join(f"{eps:g}" for eps in comparison.epss)
        differences.append(f"eps {eps:g}, not {asked}")
    made = f"by {plan.made_by or 'another tool'}"
    facts = ["This plan", *own.values(), *slices_text(modelling), f"eps {eps:g}", made]
    lines = [" · ".join(facts)]
    if differences:
        lines.append(
            "Its figures can't be compared one to one with those of the ways above: it has "
            f"{'; '.join(differences)}."
        )
    return lines


def comparison_table(comparison: Comparison, unit: str) -> str:
    """A row a way and k; the best of a k are marked, and what can't be used says why.

    Rows beyond the smallest eps are set back, and say so.
    """
    columns = comparison_columns(comparison)
    always = {"k", "eps", "seconds", *EPOCHS}  # figures that do not depend on the batch of a step
    best = {key: winners(comparison, key) for key in CONTESTED}
    rows = []
    for outcome in comparison.rows:
        attributes = f' data-k="{outcome.k}"'
        if not isinstance(outcome, Outcome):
            what = "failed" if isinstance(outcome, Failed) else "can't be used"
            known, why = (outcome.k, outcome.eps), f"{what}: {outcome.why}"
            rows.append(reason_row(columns, outcome.strategy, why, known, attributes))
            continue
        beyond = not comparison.is_balanced(outcome)
        rows.append(
            figures_row(
                columns,
                outcome,
                unit,
                note=f"beyond eps {comparison.eps:g}" if beyond else "",
                best=[key for key in CONTESTED if cell_of(outcome) in best[key]],
                best_of=f"best of k = {outcome.k}",
                missing=why_no_step(outcome, comparison),
                always=always,
                attributes=attributes + ' class="beyond"' * beyond,
            )
        )
    return table("comparison", columns, rows, unit)


def k_buttons(comparison: Comparison) -> str:
    """Buttons that choose the rows of one k; nothing where there is only one."""
    ks = sorted({row.k for row in comparison.rows})
    if len(ks) < 2:
        return ""
    shown = VERDICT_K if VERDICT_K in ks else ks[-1]
    buttons = [
        f'<button type="button" data-k="{k}" aria-pressed="{json.dumps(k == shown)}">{k}</button>'
        for k in (*ks, "all")
    ]
    return (
        '<div class="choice" role="group" aria-label="number of devices">k (devices): '
        + "".join(buttons)
        + "</div>"
    )


def lines_figure(
    comparison: Comparison, attribute: str, title: str, size: float, k: int | None = None
) -> Figure:
    """One figure of every way against k; for one k, of the ways that take an eps against that.

    A way keeps its colour and marker whatever eps is, and against k each eps has its dash. Points
    that are not within the smallest eps are hollow. Of more than eight lines those with the least
    at the end of the axis are drawn, and the others wait in the legend.

    Parameters
    ----------
    size : float
        What the unit of the axis is, in that of the attribute.
    """
    lines, against = _lines(comparison, attribute, size, k), "k" if k is None else "eps"
    if k is None:
        ks = sorted({row.k for row in comparison.rows})
        across = axis("devices (k)", type="log", tickvals=ks, ticktext=[*map(str, ks)])
    else:
        ticks = sorted({point.at for points in lines.values() for point in points})
        texts = [f"{eps:g}" for eps in ticks]
        across = axis("eps (imbalance allowed)", tickvals=ticks, ticktext=texts)
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
                f"<b>{label}</b><br>{against} = %{{x}}<br>%{{y:,.4~r}} {text}%{{customdata}}",
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


def _lines(comparison: Comparison, attribute: str, size: float, k: int | None) -> Lines:
    epss = sorted({row.eps for row in comparison.rows if row.eps is not None})
    lines: dict[StrategyLine, list[LinePoint]] = {}
    for row in comparison.steps:
        if k is not None and (row.k != k or row.eps is None):
            continue
        label, dash = row.strategy, 0
        if k is None and row.eps is not None and len(epss) > 1:
            label, dash = f"{label}, eps {row.eps:g}", epss.index(row.eps)
        value = getattr(row, attribute)  # None also for 0, which a logarithmic axis does not have
        at = row.k if k is None or row.eps is None else row.eps
        point = LinePoint(at, value / size if value else None, not comparison.is_balanced(row))
        lines.setdefault(StrategyLine(row.strategy, label, dash), []).append(point)
    return lines


def _least(lines: Lines) -> set[StrategyLine]:
    """The lines that a chart has room for, with the least at the end of their axis."""

    def last(strategy: StrategyLine) -> tuple[float, float]:
        point = max(lines[strategy], key=lambda point: point.at)
        return -point.at, math.inf if point.value is None else point.value

    return set(sorted(lines, key=last)[:MOST_LINES])
