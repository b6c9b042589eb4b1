"""Rows of figures -> an HTML table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


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
