"""Columns and records -> an HTML table; every cell keeps its exact figure."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Sequence
from html import escape
from typing import TypeVar

from hgpart.files.columns import Column
from hgpart.report.tables import with_decimals

Record = TypeVar("Record")


def table(name: str, columns: Sequence[Column[Record]], rows: Iterable[str], unit: str) -> str:
    """A table of rows that are HTML already, with the columns that have a heading."""
    headings = []
    for column in _shown(columns):
        text, shown = escape(column.heading), escape(column.unit_in(unit))
        if shown:
            text += f" <small>{shown}</small>"
        title = escape(column.meaning)
        headings.append(
            f'<th scope="col"><button type="button" title="{title}">{text}</button></th>'
        )
    return (
        f'<div class="wide"><table id="{name}-table"><thead><tr>{"".join(headings)}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody></table></div>"
    )


def records_table(
    name: str, columns: Sequence[Column[Record]], records: Iterable[Record], unit: str
) -> str:
    """A table with a row for each record."""
    return table(name, columns, (figures_row(columns, record, unit) for record in records), unit)


def figures_row(
    columns: Sequence[Column[Record]],
    record: Record,
    unit: str,
    *,
    note: str = "",
    best: Container[str] = (),
    best_of: str = "",
    missing: str | None = None,
    always: Container[str] = (),
    attributes: str = "",
) -> str:
    """A row, whose first column says what it is of.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    note : str
        What stands beside the first cell.
    best : container of str
        Keys of the columns that the record is the best in.
    best_of : str
        Among which records it is the best.
    missing : str, optional
        Why the record has no figures, but for the keys in `always`.
    attributes : str
        Attributes of the row, as HTML.
    """
    first, *others = _shown(columns)
    tds = []
    for column in others:
        if missing is not None and column.key not in always:
            tds.append(f'<td data-key="{column.key}" title="{escape(missing)}">-</td>')
        else:
            tds.append(_cell(column, record, unit, best_of if column.key in best else ""))
    figure = first.figure(record)
    exact = f' data-value="{figure}"' if isinstance(figure, int) else ""
    return _row(f"{figure}", note, "".join(tds), exact, attributes)


def reason_row(
    columns: Sequence[Column[Record]],
    name: str,
    why: str,
    known: Sequence[int | float | None] = (),
    attributes: str = "",
) -> str:
    """A row that says why it has no figures, behind the first few that are known."""
    shown = _shown(columns)[1:]
    tds = [
        f'<td data-key="{column.key}">-</td>'
        if figure is None
        else f'<td data-key="{column.key}" data-value="{json.dumps(figure)}">{figure:g}</td>'
        for column, figure in zip(shown, known, strict=False)
    ]
    span = len(shown) - len(tds)
    tds.append(f'<td class="why" colspan="{span}">{escape(why)}</td>')
    return _row(name, "", "".join(tds), "", attributes)


def _row(name: str, note: str, tds: str, exact: str, attributes: str) -> str:
    small = f"<small> {escape(note)}</small>" if note else ""
    head = f'<th scope="row"{exact}>{escape(name)}{small}</th>'
    return f"<tr{attributes}>{head}{tds}</tr>"


def _cell(column: Column[Record], record: Record, unit: str, best_of: str) -> str:
    """A figure in its column's unit, with all its digits to point at."""
    exact, shown = column.figure(record), column.shown(record, unit)
    if exact is None or shown is None:
        return f'<td data-key="{column.key}">-</td>'
    if isinstance(exact, str):
        return f'<td data-key="{column.key}" class="text">{escape(exact)}</td>'
    best = star = ""
    if best_of:
        best, star = ' class="best"', f'<abbr title="{escape(best_of)}">★</abbr> '
    digits = f"{exact:,}" if isinstance(exact, int) else str(exact)
    return (
        f'<td data-key="{column.key}" data-value="{json.dumps(exact)}" title="{digits}"{best}>'
        f"{star}{_text(column, shown)}</td>"
    )


def glossary(
    title: str, columns: Sequence[Column[Record]], terms: Iterable[tuple[str, str]]
) -> str:
    """What the columns and further terms are, folded away."""
    explained = [(column.heading, column.meaning) for column in _shown(columns) if column.meaning]
    lines = [
        f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>"
        for term, meaning in (*explained, *terms)
    ]
    return f"<details><summary>{title}</summary><dl>{chr(10).join(lines)}</dl></details>"


def _shown(columns: Sequence[Column[Record]]) -> list[Column[Record]]:
    return [column for column in columns if column.heading]


def _text(column: Column[Record], shown: str | float) -> str:
    if isinstance(shown, str):
        return escape(shown)
    if column.key == "eps":
        return f"{shown:g}"
    if isinstance(shown, int):
        return f"{shown:,}"
    if column.decimals is not None:
        return with_decimals(shown, column.decimals)
    return four_digits(shown)


def four_digits(value: float) -> str:
    """Write a figure with four digits, and no more than six decimals.

    >>> [four_digits(value) for value in (140123.5, -31.25, 0.031249, 1, 0, 2e-9, -2e-9)]
    ['140,124', '-31.25', '0.03125', '1.000', '0', '<0.000001', '>-0.000001']
    """
    if value == 0:
        return "0"
    if abs(value) < 1e-6:
        return "<0.000001" if value > 0 else ">-0.000001"
    decimals = 3 - math.floor(math.log10(abs(value)))
    return with_decimals(value, min(6, max(0, decimals)))
