"""A few lines and a small table -> text, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape


@dataclass(frozen=True)
class Summary:
    """A few lines and a small table; printed it is text, in a notebook HTML.

    Attributes
    ----------
    rows : tuple of tuple of str
        Rows, each with a cell for each column.

    >>> Summary(("Two parts",), ("part", "MACs"), (("0", "1,024"), ("1", "98")))
    Two parts
    part   MACs
       0  1,024
       1     98
    """

    lines: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def with_column(self, name: str, cells: Sequence[object]) -> Summary:
        """The summary with another column at the right."""
        pairs = zip(self.rows, cells, strict=True)
        rows = tuple((*row, str(cell)) for row, cell in pairs)
        return replace(self, columns=(*self.columns, name), rows=rows)

    def without_column(self, name: str) -> Summary:
        """The summary without a column."""
        at = self.columns.index(name)
        rows = tuple((*row[:at], *row[at + 1 :]) for row in self.rows)
        return replace(self, columns=(*self.columns[:at], *self.columns[at + 1 :]), rows=rows)

    def __repr__(self) -> str:
        """The text, so that the prompt shows it without `print`."""
        table = (self.columns, *self.rows)
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        rows = [
            "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
            for row in table
        ]
        return "\n".join([*self.lines, *rows])

    def _repr_html_(self) -> str:
        lines = "<br>".join(map(escape, self.lines))
        table = [_row("th", self.columns), *(_row("td", row) for row in self.rows)]
        return f"<p>{lines}</p><table>{''.join(table)}</table>"


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"
