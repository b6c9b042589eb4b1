"""Rows of text -> tables on a console, and the units that figures are printed in."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

from rich.box import Box
from rich.console import Console
from rich.table import Table

from hgpart.terminal import PlainConsole

UNITS: Mapping[str, int] = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}

_RULED = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)  # below the headings


def counted(number: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "step"), counted(2, "step")
    ('1 step', '2 steps')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def ruled_table(headings: Sequence[str]) -> Table:
    """Make a table whose first column is text and whose others are figures, never cut off."""
    table = Table(box=_RULED, show_edge=False, pad_edge=False, header_style="")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left", no_wrap=True)
    return table


def print_table(console: Console, title: str, table: Table) -> None:
    """Print within the console's width: what is wider becomes tables below each other."""
    console.print(title, style="bold")
    for at, part in enumerate(within(console.width, table)):
        if at:
            console.print()
        for line in table_lines(part):
            console.out(line, highlight=False)


def within(width: int, table: Table) -> list[Table]:
    r"""The table, with narrower gaps where it has to be, or its columns in several tables.

    Each begins with the first column. A column that is too wide by itself stays so.

    >>> table = ruled_table(["part", "busy ms", "waiting ms", "sends MB"])
    >>> table.add_row("0", "1.25", "0.50", "100.0")
    >>> for part in within(25, table):
    ...     print(*table_lines(part), sep="\n")
    part  busy ms  waiting ms
    -------------------------
    0        1.25        0.50
    part  sends MB
    --------------
    0        100.0
    """
    if _width(table) > width:
        table.collapse_padding = True
    if _width(table) <= width:
        return [table]
    bands: list[list[int]] = []
    for at in range(1, len(table.columns)):
        if bands and _width(_columns(table, [0, *bands[-1], at])) <= width:
            bands[-1].append(at)
        else:
            bands.append([at])
    return [_columns(table, [0, *band]) for band in bands] or [table]


def _width(table: Table) -> int:
    return max(map(len, table_lines(table)), default=0)


def _columns(table: Table, which: Sequence[int]) -> Table:
    """Some columns of a table."""
    columns = [table.columns[at] for at in which]
    found = ruled_table([str(column.header) for column in columns])
    found.collapse_padding = True
    for new, column in zip(found.columns, columns, strict=True):
        new.justify = column.justify
    for row in zip(*(column.cells for column in columns), strict=True):
        found.add_row(*row)
    return found


def table_lines(table: Table) -> list[str]:
    """The lines of a table, none of them cut off or wrapped."""
    text = io.StringIO()
    PlainConsole(file=text, width=10_000).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def in_unit(sizes: Sequence[int | None], unit: str) -> list[str]:
    """Bytes in one of `UNITS`; a dash for what is not known.

    >>> in_unit([643_240_000, None, 500_000], "MB")
    ['643.2', '-', '0.5']
    """
    known = iter(even_decimals([size / UNITS[unit] for size in sizes if size is not None]))
    return ["-" if size is None else next(known) for size in sizes]


def even_decimals(values: Sequence[float]) -> list[str]:
    """Write figures with the same number of decimals: four digits of the largest.

    >>> even_decimals([643.24, 0.5]), even_decimals([12345.6]), even_decimals([0.03125, 0.0])
    (['643.2', '0.5'], ['12,346'], ['0.03125', '0.00000'])
    """
    largest = max(map(abs, values), default=0.0)
    decimals = 0 if largest == 0 else min(6, max(0, 3 - math.floor(math.log10(largest))))
    return [f"{value:,.{decimals}f}" for value in values]
