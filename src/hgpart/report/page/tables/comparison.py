"""Comparison -> HTML: the table, buttons that choose a k, what the words mean."""

from __future__ import annotations

import json

from hgpart.compare.columns import comparison_columns
from hgpart.compare.comparison import (
    CONTESTED,
    EPOCHS,
    VERDICT_K,
    Comparison,
    cell_of,
    why_no_step,
    winners,
)
from hgpart.compare.outcomes import Failed, Outcome
from hgpart.partition.ways.catalogue import way_named
from hgpart.report.page.tables.table import glossary, reason_row, row, table


def comparison_table(comparison: Comparison, unit: str) -> str:
    """A row a way and k; the best of a k are marked, and what can't be used says why.

    What is not within the smallest eps is set back, and says so.
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
            row(
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


def comparison_glossary(comparison: Comparison) -> str:
    """What the columns and the ways are."""
    named = dict.fromkeys(row.strategy for row in comparison.rows)
    terms = [(name, way_named(name).words) for name in named]
    title = "What the columns and the ways are"
    return glossary(title, comparison_columns(comparison), terms)
