"""Comparison <-> its files: JSON, which can be resumed, and CSV."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hgpart.compare.columns import comparison_columns
from hgpart.compare.comparison import LARGEST, Cell, Comparison, cell_of, verdict
from hgpart.compare.outcomes import Failed, NotApplicable, Outcome, Row
from hgpart.files.columns import fields_of
from hgpart.files.fields import csv_text
from hgpart.files.json_files import JsonObject
from hgpart.files.row_files import resumed_rows, rows_json
from hgpart.hypergraph.modelling import LARGEST_FACTOR
from hgpart.partition.ways.built_in import FORMER

FORMAT = "hgpart comparison 1"
WHAT = "a comparison of hgpart compare --json"

# What two comparisons must agree in for one to resume the other.
SETTINGS = (
    "fingerprint",
    "batch_size",
    "bytes_per_element",
    "linear",
    "input_vertex",
    "output_vertex",
    "slices",
    "work_digest",
    "constraints",
    "seed",
)
# Figures of a row that are read alike.
AMOUNTS = ("max_over_average", "imbalance", "bytes_per_sample", "seconds")
WHOLES = (
    "forward_bytes",
    "bytes_per_step",
    "largest_device_bytes",
    "messages",
    "largest_parameters",
    "largest_activation_bytes",
)


def comparison_json(comparison: Comparison) -> str:
    """A comparison as JSON, one line a row."""
    said = verdict(comparison)
    return rows_json(FORMAT, comparison, lambda row: as_record(row, comparison), verdict=said)


def comparison_csv(comparison: Comparison) -> str:
    """A comparison as CSV: a header and a line a row, with the fields of the JSON and `why`."""
    records = [as_record(row, comparison) for row in comparison.rows]
    names = dict.fromkeys(name for record in records for name in record)
    return csv_text(sorted(names, key="why".__eq__), records)


def as_record(row: Row, comparison: Comparison) -> dict[str, object]:
    """A row with the figures that follow from it, for JSON and CSV."""
    record: dict[str, object] = asdict(row)
    if isinstance(row, Outcome):
        record |= fields_of(comparison_columns(comparison), row)
    elif isinstance(row, Failed):
        record["failed"] = True
    return record


def _row(record: JsonObject) -> Row:
    def amount(name: str) -> float:
        value = record.number(name)
        if not 0 <= value <= LARGEST:
            raise record.wrong(name, f"a number from 0 to {LARGEST}")
        return value

    eps = None if record.fields.get("eps") is None else amount("eps")
    name, k = record.string("strategy"), record.whole("k", 1, LARGEST)
    strategy = FORMER.get(name, name)
    if "failed" in record.fields:
        return Failed(strategy, k, eps, record.string("why"))
    if "why" in record.fields:
        return NotApplicable(strategy, k, eps, record.string("why"))
    figures: dict[str, Any] = {name: amount(name) for name in AMOUNTS}
    figures |= {name: record.whole(name) for name in WHOLES}
    takes = None if record.fields.get("step_seconds") is None else amount("step_seconds")
    batch_size = record.whole("batch_size", 1, LARGEST_FACTOR)
    smallest = record.whole("smallest_batch", 1, LARGEST)
    return Outcome(
        strategy, k, eps, batch_size, **figures, smallest_batch=smallest, step_seconds=takes
    )


def rows_done(path: Path | str | None, comparison: Comparison) -> dict[Cell, Row]:
    """The rows of a file that `comparison` (as yet without rows) resumes, failed ones too.

    Raises
    ------
    FormatError
        If the file is malformed.
    PlanError
        If it compares another model, or with other settings.
    """
    rows = resumed_rows(path, WHAT, FORMAT, comparison, SETTINGS, _row)
    return {cell_of(row): row for row in rows}
