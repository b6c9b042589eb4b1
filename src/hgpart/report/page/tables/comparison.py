"""Comparison -> HTML: the table, buttons that choose a k, what the words mean."""

from __future__ import annotations

import json
from html import escape

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
from hgpart.compare.step_seconds import LINKS
from hgpart.partition.ways import way_named
from hgpart.report.page.tables.table import Column, cell, head_cell, table
from hgpart.report.tables import UNITS

_EPOCH_UNITS = {"MB": "GB", "GB": "GB", "MiB": "GiB", "GiB": "GiB"}


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
            "step_seconds",
            "a step, about",
            f"An estimate, for {LINKS}: what the busiest device computes, sends and receives, in "
            "micro-batches. hgpart predict and recommend simulate.",
            "s",
        ),
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
    named = dict.fromkeys(row.strategy for row in comparison.rows)
    terms = [(column.heading, column.meaning) for column in comparison_columns(comparison, unit)]
    terms += [(name, way_named(name).words) for name in named]
    lines = [f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in terms]
    return (
        "<details><summary>What the columns and the strategies are</summary><dl>"
        + "\n".join(lines)
        + "</dl></details>"
    )
