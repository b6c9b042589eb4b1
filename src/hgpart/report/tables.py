"""Rows of text -> tables on a console, and figures -> text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console

from hgpart.files.columns import Column
from hgpart.terminal import printable

WIDE_GAP, GAP = 3, 2  # blanks between columns, and where there is less room

Record = TypeVar("Record")


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "step"), counted(2, "step")
    ('1 step', '2 steps')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def print_table(
    console: Console,
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Sequence[int] = (0,),
) -> None:
    """Print a table; one that is wider than the console becomes tables below each other.

    Parameters
    ----------
    rows : iterable of sequence of str
        A cell for each heading.
    left : sequence of int
        Columns of text, which are aligned to the left.
    """
    console.print(title, style="bold")
    columns = [list(column) for column in zip(headings, *rows, strict=True)]
    for number, lines in enumerate(_bands(columns, left, console.width)):
        if number:
            console.print()
        for line in lines:
            console.out(line, highlight=False)


def _bands(
    columns: Sequence[Sequence[str]], left: Sequence[int], width: int
) -> Iterator[list[str]]:
    """Tables of as many columns as fit, each with the first column; nothing is cut off."""
    if _fits(whole := table_lines(columns, left, WIDE_GAP), width):
        yield whole
        return
    band = [0, 1]
    for at in range(2, len(columns)):
        if _fits(_some(columns, left, [*band, at]), width):
            band.append(at)
        else:
            yield _some(columns, left, band)
            band = [0, at]
    yield _some(columns, left, band)


def _some(columns: Sequence[Sequence[str]], left: Sequence[int], which: Sequence[int]) -> list[str]:
    shown = [columns[at] for at in which if at < len(columns)]
    return table_lines(shown, [at for at, own in enumerate(which) if own in left], GAP)


def _fits(lines: Sequence[str], width: int) -> bool:
    return max(map(cell_len, lines)) <= width


def table_lines(
    columns: Sequence[Sequence[str]], left: Sequence[int] = (0,), gap: int = WIDE_GAP
) -> list[str]:
    r"""The lines of a table of columns, each with its heading first, and a rule below these.

    >>> print(*table_lines([["part", "0"], ["busy ms", "1.25"]]), sep="\n")
    part   busy ms
    --------------
    0         1.25
    """
    padded = []
    for at, column in enumerate(columns):
        cells = [printable(cell) for cell in column]
        width = max(map(cell_len, cells))
        blanks = [" " * (width - cell_len(cell)) for cell in cells]
        pairs = zip(cells, blanks, strict=True)
        padded.append([cell + blank if at in left else blank + cell for cell, blank in pairs])
    lines = [(" " * gap).join(row) for row in zip(*padded, strict=True)]
    return [lines[0].rstrip(), "-" * cell_len(lines[0]), *(line.rstrip() for line in lines[1:])]


# ------------------------------------------------------------------ columns of records


def cells(column: Column[Record], records: Sequence[Record], unit: str) -> list[str]:
    """The figures of a column as text, with the same number of decimals; a dash for none."""
    shown = [column.shown(record, unit) for record in records]
    figures = [figure for figure in shown if isinstance(figure, int | float)]
    if column.decimals is not None:
        texts = iter([with_decimals(figure, column.decimals) for figure in figures])
    elif all(isinstance(figure, int) for figure in figures):
        texts = iter([f"{figure:,}" for figure in figures])
    else:
        texts = iter(even_decimals(figures))
    return [
        "-" if figure is None else figure if isinstance(figure, str) else next(texts)
        for figure in shown
    ]


def print_columns(
    console: Console,
    title: str,
    columns: Sequence[Column[Record]],
    records: Sequence[Record],
    unit: str,
    *,
    texts_left: bool = False,
) -> None:
    """Print a row for each record, without the details where these don't fit.

    Texts are aligned like figures, to the right, unless `texts_left`.
    """
    known = [column for column in columns if column.heading]
    plain = [column for column in known if not column.detail]
    for shown in (known, plain):
        rows = [*zip(*(cells(column, records, unit) for column in shown), strict=True)]
        headings = [column.title(unit) for column in shown]
        if _fits(table_lines([*zip(headings, *rows, strict=True)]), console.width):
            break
    left = [
        at
        for at, column in enumerate(shown)
        if at == 0 or (texts_left and _is_text(column, records))
    ]
    print_table(console, title, headings, rows, left)


def print_ways(
    console: Console,
    title: str,
    columns: Sequence[Column[Record]],
    records: Sequence[Record],
    unit: str,
    *,
    wide: bool = False,
) -> None:
    """Print one table: a row for each way, with the columns that there is room for.

    Where there is no room for all, details are left out, and then the last columns; a line below
    names them. A `wide` table leaves out nothing.
    """
    known = [column for column in columns if column.heading]
    texts = [[column.title(unit), *cells(column, records, unit)] for column in known]
    left = [at for at, column in enumerate(known) if at == 0 or _is_text(column, records)]
    gap, shown = WIDE_GAP, [*range(len(known))]
    if not wide and not _fits(table_lines(texts, left, gap), console.width):
        gap, shown = GAP, [at for at in shown if not known[at].detail]
        while len(shown) > 2 and not _fits(_some(texts, left, shown), console.width):
            del shown[-1]
    console.print(title, style="bold")
    aligned = [at for at, own in enumerate(shown) if own in left]
    for line in table_lines([texts[at] for at in shown], aligned, gap):
        console.out(line, highlight=False)
    missing = [column.heading for at, column in enumerate(known) if at not in shown]
    if missing:
        console.print(f"More columns with --wide: {', '.join(missing)}")


def _is_text(column: Column[Record], records: Sequence[Record]) -> bool:
    return any(isinstance(column.figure(record), str) for record in records)


# ------------------------------------------------------------------ figures


def in_unit(sizes: Sequence[int | None], unit: str) -> list[str]:
    """Bytes in one of `UNITS`; a dash for what is not known.

    >>> in_unit([643_240_000, None, 500_000], "MB")
    ['643.2', '-', '0.5']
    """
    return cells(Column("", unit=unit, value=lambda size: size), sizes, unit)


def even_decimals(values: Sequence[float]) -> list[str]:
    """Write figures with the same number of decimals: four digits of the largest.

    >>> even_decimals([643.24, 0.5]), even_decimals([12345.6]), even_decimals([0.03125, 0.0])
    (['643.2', '0.5'], ['12,346'], ['0.03125', '0.00000'])
    >>> even_decimals([-643.24, -0.04])
    ['-643.2', '0.0']
    """
    largest = max(map(abs, values), default=0.0)
    decimals = 0 if largest == 0 else min(6, max(0, 3 - math.floor(math.log10(largest))))
    return [with_decimals(value, decimals) for value in values]


def with_decimals(value: float, decimals: int) -> str:
    """A figure with so many decimals, without the sign of a rounded -0.04.

    >>> with_decimals(-0.04, 1), with_decimals(-1234.56, 1)
    ('0.0', '-1,234.6')
    """
    return f"{round(value, decimals) + 0:,.{decimals}f}"
