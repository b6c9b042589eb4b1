"""Bench, Races -> HTML tables: what a step, or an accuracy, takes each way."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hgpart.bench.races import Race, Races
from hgpart.bench.results import Bench, Row, as_record
from hgpart.bench.row_files import NotRun
from hgpart.bench.ways.way import way_of
from hgpart.report.page.tables.table import Column, cell, head_cell, table
from hgpart.report.tables import UNITS, counted


def way_columns(bench: Bench, unit: str) -> list[Column]:
    """What is said of each way; `unit` is that of bytes."""
    size = UNITS[unit]
    return [
        Column("speed_up", "speed-up", "Over one process, by medians.", decimals=2),
        Column("median_seconds", "a step", "Median of all timed steps.", "s"),
        Column("lower_seconds", "lower", "A quarter of the steps are as fast.", "s"),
        Column("upper_seconds", "upper", "A quarter of the steps are as slow.", "s"),
        Column("samples_per_second", "samples/s", "By the median."),
        Column(
            "busy_share",
            "busy",
            "CPU time of all processes, as a share of that which their threads had.",
            decimals=2,
        ),
        Column("waiting_share", "waiting", "The rest of it.", decimals=2),
        Column("sent_bytes", "sent", "By all processes in a step.", unit, size),
        Column(
            *("largest_peak_bytes", "peak", "Memory of the process with most, libraries included."),
            *(unit, size),
        ),
        Column("all_peak_bytes", "peak of all", "Of all processes together.", unit, size),
    ]


def ways_table(bench: Bench, unit: str) -> str:
    """A row a way; what could not be run says why."""
    columns = way_columns(bench, unit)
    rows = []
    for row in bench.rows:
        if isinstance(row, NotRun):
            rows.append(_refused(row, len(columns)))
        else:
            record = as_record(row, bench)
            cells = "".join(cell(column, record[column.key]) for column in columns)
            rows.append(f"<tr>{head_cell(row.way)}{cells}</tr>")
            if row.ended is not None:
                turns = counted(row.rounds, "turn")
                rows.append(_said(row.way, f"failed after {turns}: {row.ended}", len(columns)))
    return table("ways", "way", columns, rows)


def ways_glossary(rows: Sequence[Row | Race], columns: Sequence[Column] = ()) -> str:
    """What the columns and the ways are."""
    terms = [(column.heading, column.meaning) for column in columns]
    terms += [(row.way, way_of(row.way).meaning) for row in rows]
    lines = [f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in terms]
    return (
        "<details><summary>What the columns and the ways are</summary><dl>"
        + "\n".join(lines)
        + "</dl></details>"
    )


def races_table(races: Races) -> str:
    """A row a way; what could not be run says why."""
    columns = [
        Column("speed_up", "speed-up", "Over one process, to the accuracy.", decimals=2),
        Column("seconds", "to the accuracy", "Training alone; tests are left out.", "s"),
        Column("steps", "steps", "To the accuracy."),
        Column("epochs", "epochs", "That it was trained for."),
        Column(
            "best", "best", "The largest share of the test samples that were right.", decimals=4
        ),
        Column("spent", "in all", "Seconds of its epochs.", "s"),
    ]
    rows = []
    for row in races.rows:
        if isinstance(row, NotRun):
            rows.append(_refused(row, len(columns)))
            continue
        finish = races.finish(row)
        record: dict[str, float | None] = {
            "speed_up": races.speed_up(row),
            "seconds": None if finish is None else finish.seconds,
            "steps": None if finish is None else finish.steps,
            "epochs": len(row.points),
            "best": max(point.accuracy for point in row.points),
            "spent": row.points[-1].seconds,
        }
        cells = "".join(cell(column, record[column.key]) for column in columns)
        rows.append(f"<tr>{head_cell(row.way)}{cells}</tr>")
    return table("races", "way", columns, rows)


def _refused(row: NotRun, columns: int) -> str:
    return _said(row.way, f"{row.what}: {row.why}", columns)


def _said(way: str, why: str, columns: int) -> str:
    return f'<tr>{head_cell(way)}<td class="why" colspan="{columns}">{escape(why)}</td></tr>'
