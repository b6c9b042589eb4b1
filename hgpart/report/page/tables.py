"""Comparison, Report -> HTML tables that can be sorted; every cell keeps its exact figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hgpart.compare.comparison import (
    CONTESTED,
    EPOCHS,
    VERDICT_K,
    Comparison,
    as_record,
    cell_of,
    why_no_step,
    winners,
)
from hgpart.compare.outcomes import Failed, NotApplicable, Outcome
from hgpart.compare.strategies import strategies_by_name
from hgpart.hypergraph.metrics import Evaluation
from hgpart.report import UNITS, Report, as_json
from hgpart.report.partition.printing import one_way
from hgpart.report.partition.record import work_scale

_EPOCH_UNITS = {"MB": "GB", "GB": "GB", "MiB": "GiB", "GiB": "GiB"}


@dataclass(frozen=True)
class Column:
    """A column of figures.

    Attributes
    ----------
    key : str
        Of the record that a row shows.
    heading : str
    meaning : str
        For who does not know what the heading says.
    unit : str
        Empty where it has none.
    size : float
        How many of the figure's own units make one of `unit`.
    decimals : int, optional
        Four digits of each figure when left out.
    """

    key: str
    heading: str
    meaning: str
    unit: str = ""
    size: float = 1
    decimals: int | None = None


# ------------------------------------------------------------------ a comparison


def comparison_columns(comparison: Comparison, unit: str) -> list[Column]:
    """What is said of each strategy; `unit` is that of bytes."""
    size, epoch = UNITS[unit], _EPOCH_UNITS[unit]
    return [
        Column("k", "k", "Number of devices."),
        Column(
            "eps",
            "eps",
            "Imbalance that was allowed: 0.1 is 10 % above the average. Empty for strategies that "
            "do not take one.",
        ),
        Column(
            "max_over_average",
            "max/avg load",
            "Work of the busiest device over the average; 1 is a perfect balance.",
            decimals=3,
        ),
        Column("imbalance", "imbalance", "Max/avg load less 1.", decimals=3),
        Column(
            "forward_bytes",
            "forward volume",
            f"What all devices send in a forward pass of {comparison.batch_size} samples.",
            unit,
            size,
        ),
        Column(
            "step_bytes",
            "volume per step",
            f"What all devices send in a training step of {comparison.batch_size} samples: "
            "forward, backward and, where parameters are replicated, their synchronisation.",
            unit,
            size,
        ),
        *(
            Column(
                key,
                f"per epoch, batches of {batch}",
                f"What all devices send in an epoch of {comparison.dataset_size:,} samples in "
                f"batches of {batch}.",
                epoch,
                UNITS[epoch],
            )
            for key, batch in EPOCHS.items()
        ),
        Column(
            "largest_device_bytes",
            "busiest device's traffic",
            "The most that one device sends and receives in a step.",
            unit,
            size,
        ),
        Column("messages", "messages", "Number of messages in a step."),
        Column(
            "largest_parameters",
            "most parameters",
            "The most parameters, in millions, that one device holds.",
            "M",
            10**6,
        ),
        Column(
            "largest_activation_bytes",
            "most feature maps",
            f"The most feature maps of {comparison.batch_size} samples, made or received, that "
            "one device holds.",
            unit,
            size,
        ),
        Column("seconds", "time to find", "How long it took to find the split.", "s"),
    ]


def comparison_table(comparison: Comparison, unit: str) -> str:
    """A row a strategy and k; the best of a k are marked, and what can't be used says why.

    What is not within the smallest eps is set back, and says so.
    """
    columns = comparison_columns(comparison, unit)
    always = {"k", "eps", "seconds", *EPOCHS}  # whatever the batch of a step
    best = {key: winners(comparison, key) for key in CONTESTED}
    rows = []
    for row in comparison.rows:
        record = as_record(row, comparison)
        beyond = isinstance(row, Outcome) and not comparison.is_balanced(row)
        note = f"beyond eps {comparison.eps:g}" if beyond else ""
        if isinstance(row, (NotApplicable, Failed)):
            cells = [head_cell(row.strategy)]
            cells += [cell(column, record[column.key]) for column in columns[:2]]
            what = "failed" if isinstance(row, Failed) else "can't be used"
            cells.append(
                f'<td class="why" colspan="{len(columns) - 2}">{what}: {escape(row.why)}</td>'
            )
        else:
            why = why_no_step(row, comparison)
            cells = [head_cell(row.strategy, note=note)]
            for column in columns:
                wins = cell_of(row) in best.get(column.key, ())
                has = why is None or column.key in always
                value = record[column.key] if has else None
                cells.append(cell(column, value, row.k if wins else None, "" if has else why))
        greyed = ' class="beyond"' if beyond else ""
        rows.append(f'<tr data-k="{row.k}"{greyed}>{"".join(cells)}</tr>')
    return table("comparison", "strategy", columns, rows)


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


def comparison_glossary(comparison: Comparison, unit: str) -> str:
    """What the columns and the strategies are."""
    sources = {name: strategy.source for name, strategy in strategies_by_name().items()}
    named = dict.fromkeys(row.strategy for row in comparison.rows)
    terms = [(column.heading, column.meaning) for column in comparison_columns(comparison, unit)]
    terms += [(name, sources[name]) for name in named if name in sources]
    lines = [f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in terms]
    return (
        "<details><summary>What the columns and the strategies are</summary><dl>"
        + "\n".join(lines)
        + "</dl></details>"
    )


# ------------------------------------------------------------------ a plan


def summary_table(report: Report, unit: str) -> str:
    """The figures of a plan, and of the best contiguous layer-wise split."""
    size = UNITS[unit]
    work_unit, work_size = work_scale(report)
    columns = [
        Column(
            "max_load",
            "most work",
            f"Work of the busiest part, in {work_unit}.",
            work_unit.split()[0],
            work_size,
        ),
        Column(
            "min_load",
            "least work",
            f"Work of the least busy part, in {work_unit}.",
            work_unit.split()[0],
            work_size,
        ),
        Column("max_over_average", "max/avg work", "1 is a perfect balance.", decimals=3),
        Column(
            "imbalance",
            "imbalance",
            "How far the busiest part is above its share of the work.",
            decimals=3,
        ),
        Column("volume", "volume", f"What all parts send in {report.time}.", unit, size),
        Column("max_part_volume", "busiest sender", "The most that one part sends.", unit, size),
        Column("message_count", "messages", f"In {report.time}."),
    ]
    found: Sequence[tuple[str, Evaluation]] = (
        ("this plan", report.evaluation),
        ("cut between layers", report.layerwise),
    )
    rows = [
        f"<tr>{head_cell(name)}"
        + "".join(cell(column, getattr(each, column.key)) for column in columns)
        + "</tr>"
        for name, each in found
    ]
    return table("summary", "", columns, rows)


def step_table(report: Report, unit: str) -> str:
    """What the parts send at each time of a training step."""
    size = UNITS[unit]
    columns = [
        Column("volume", "volume", "What all parts send.", unit, size),
        Column("most_sent", "busiest sender", "The most that one part sends.", unit, size),
        Column("most_received", "busiest receiver", "The most that one part receives.", unit, size),
        Column("most", "busiest", "The most that one part sends and receives.", unit, size),
        Column("messages", "messages", "Of all parts."),
    ]
    rows = [
        f"<tr>{head_cell(name)}"
        + "".join(cell(column, getattr(flow, column.key)) for column in columns)
        + "</tr>"
        for name, flow in report.step.items()
    ]
    return table("step", "", columns, rows)


def part_table(report: Report, unit: str) -> str:
    """What each part computes, holds, sends and receives."""
    size = UNITS[unit]
    work_unit, work_size = work_scale(report)
    sends, receives = (f"{verb}{one_way(report)}" for verb in ("sends", "receives"))
    columns = [
        Column(
            "work",
            "work",
            f"In {work_unit}.",
            work_unit.split()[0],
            work_size / report.work_units,
        ),
        Column("work_share", "share", "Of the work of all parts.", "%", 0.01),
        Column("parameters", "parameters", "Weights, biases and the like, in millions.", "M", 1e6),
        Column("activation_bytes", "feature maps", "Made or received, for a batch.", unit, size),
        Column("send_bytes", sends, f"To other parts in {report.time}.", unit, size),
        Column("receive_bytes", receives, f"From other parts in {report.time}.", unit, size),
        Column("messages_sent", "messages sent", f"In {report.time}."),
        Column("messages_received", "messages received", f"In {report.time}."),
    ]
    parts: Iterable[Mapping[str, Any]] = json.loads(as_json(report))["parts"]
    rows = [
        f"<tr>{head_cell(str(part['part']), part['part'])}"
        + "".join(cell(column, part[column.key]) for column in columns)
        + "</tr>"
        for part in parts
    ]
    return table("parts", "part", columns, rows)


# ------------------------------------------------------------------ any table


def table(name: str, first: str, columns: Sequence[Column], rows: Sequence[str]) -> str:
    """A table of rows that are HTML already; `first` heads the column in front of the figures."""
    headings = [_heading(first, "", "")]
    headings += [_heading(column.heading, column.unit, column.meaning) for column in columns]
    return (
        f'<div class="wide"><table id="{name}-table"><thead><tr>{"".join(headings)}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody></table></div>"
    )


def _heading(text: str, unit: str, meaning: str) -> str:
    if not text:
        return "<td></td>"
    shown = escape(text) + (f" <small>{escape(unit)}</small>" if unit else "")
    return f'<th scope="col"><button type="button" title="{escape(meaning)}">{shown}</button></th>'


def head_cell(text: str, value: int | None = None, note: str = "") -> str:
    """The cell that says what a row is of."""
    exact = "" if value is None else f' data-value="{value}"'
    small = f"<small> {escape(note)}</small>" if note else ""
    return f'<th scope="row"{exact}>{escape(text)}{small}</th>'


def cell(
    column: Column, value: Any, best_of_k: int | None = None, why_none: str | None = None
) -> str:
    """A figure in its column's unit, with all its digits to point at."""
    if value is None:
        reason = f' title="{escape(why_none)}"' if why_none else ""
        return f'<td data-key="{column.key}"{reason}>-</td>'
    text = _text(column, value)
    best = star = ""
    if best_of_k is not None:
        best = ' class="best"'
        star = f'<abbr title="best of k = {best_of_k}">★</abbr> '
    exact = f"{value:,}" if isinstance(value, int) else str(value)
    return (
        f'<td data-key="{column.key}" data-value="{json.dumps(value)}" title="{exact}"{best}>'
        f"{star}{text}</td>"
    )


def _text(column: Column, value: float) -> str:
    if column.key == "eps":
        return f"{value:g}"
    if isinstance(value, int) and column.size == 1:
        return f"{value:,}"
    if column.decimals is not None:
        return f"{value:.{column.decimals}f}"
    return four_digits(value / column.size)


def four_digits(value: float) -> str:
    """Write a figure with four digits, and no more than six decimals.

    >>> [four_digits(value) for value in (140123.5, 31.25, 0.031249, 1, 0, 2e-9)]
    ['140,124', '31.25', '0.03125', '1.000', '0', '<0.000001']
    """
    if value == 0:
        return "0"
    if value < 1e-6:
        return "<0.000001"
    decimals = 3 - math.floor(math.log10(value))
    return f"{value:,.{min(6, max(0, decimals))}f}"
