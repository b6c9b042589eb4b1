"""Bench, Races -> HTML tables: what a step, or an accuracy, takes each way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hgpart.bench.races import Race, Races, race_columns
from hgpart.bench.results import Bench, Row, bench_columns
from hgpart.bench.row_files import NotRun
from hgpart.bench.ways.way import way_of
from hgpart.files.columns import Column
from hgpart.report.page.drawing.ways import notes_of
from hgpart.report.page.tables.table import glossary, reason_row, row, table
from hgpart.report.tables import counted


def ways_table(bench: Bench, unit: str) -> str:
    """A row a way, the fastest and the base of speed-ups marked; other ways say why not."""
    columns, notes, rows = bench_columns(bench), notes_of(bench), []
    for way in bench.rows:
        if isinstance(way, NotRun):
            rows.append(reason_row(columns, way.way, f"{way.what}: {way.why}"))
            continue
        note = notes.get(way.way, "")
        best = ("median_seconds",) if note == "fastest" else ()
        rows.append(row(columns, way, unit, note=note, best=best, best_of="fastest"))
        if way.ended is not None:
            why = f"failed after {counted(way.rounds, 'turn')}: {way.ended}"
            rows.append(reason_row(columns, way.way, why))
    return table("ways", columns, rows, unit)


def races_table(races: Races) -> str:
    """A row a way; what could not be run says why."""
    columns = race_columns(races)
    rows = [
        reason_row(columns, way.way, f"{way.what}: {way.why}")
        if isinstance(way, NotRun)
        else row(columns, way, "MB")
        for way in races.rows
    ]
    return table("races", columns, rows, "MB")


def ways_glossary(rows: Sequence[Row | Race], columns: Sequence[Column[Any]]) -> str:
    """What the columns and the ways are."""
    terms = [(way.way, way_of(way.way).meaning) for way in rows]
    return glossary("What the columns and the ways are", columns, terms)
