"""Comparison <-> its files: JSON, which can be resumed, and CSV."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from hgpart.compare.columns import comparison_columns
from hgpart.compare.comparison import LARGEST, Cell, Comparison, cell_of, verdict
from hgpart.compare.outcomes import Failed, NotApplicable, Outcome, Row
from hgpart.files.columns import fields_of
from hgpart.files.fields import csv_text
from hgpart.files.json_files import JsonObject, read_json
from hgpart.files.row_files import resumed_rows, rows_json, rows_of
from hgpart.files.writing import replacing
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
    "seed",
)


def save_comparison(comparison: Comparison, path: Path | str) -> None:
    """Write a comparison as JSON, one line a row.

    Raises
    ------
    OutputError
        If the file can't be written.
    """
    with replacing(path) as file:
        file.write(comparison_json(comparison))


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


def load_comparison(path: Path | str) -> Comparison:
    """Read a file of `save_comparison`.

    Raises
    ------
    FormatError
        If the file can't be read or is malformed; says which line.
    """
    head = read_json(path, WHAT, FORMAT)
    rows = tuple(rows_of(head, _row))
    count = len(rows)
    asked = head.whole("asked_count", 0, count) if "asked_count" in head.fields else count
    per_element = head.fields.get("bytes_per_element")
    epss = head.items("epss")
    if not epss or not all(type(eps) in (int, float) and 0 <= eps <= LARGEST for eps in epss):
        raise head.wrong("epss", "one number >= 0 or more")
    return Comparison(
        model=head.string("model"),
        input_shape=tuple(head.wholes("input_shape")),
        fingerprint=head.string("fingerprint"),
        batch_size=head.whole("batch_size", 1, LARGEST_FACTOR),
        bytes_per_element=(
            None if per_element is None else head.whole("bytes_per_element", 1, LARGEST_FACTOR)
        ),
        work_source=head.string("work_source"),
        seed=head.whole("seed"),
        dataset_size=head.whole("dataset_size", 1, LARGEST),
        rows=rows[:asked],
        besides=rows[asked:],
        epss=tuple(map(float, epss)),
        work_digest=head.string("work_digest"),
        linear=head.string("linear"),
        input_vertex=head.flag("input_vertex"),
        output_vertex=head.flag("output_vertex"),
        slices=(
            None if head.fields.get("slices") is None else head.whole("slices", 1, LARGEST_FACTOR)
        ),
    )


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
    return Outcome(
        strategy=strategy,
        k=k,
        eps=eps,
        batch_size=record.whole("batch_size", 1, LARGEST_FACTOR),
        max_over_average=amount("max_over_average"),
        imbalance=amount("imbalance"),
        forward_bytes=record.whole("forward_bytes"),
        bytes_per_sample=amount("bytes_per_sample"),
        bytes_per_step=record.whole("bytes_per_step"),
        largest_device_bytes=record.whole("largest_device_bytes"),
        messages=record.whole("messages"),
        largest_parameters=record.whole("largest_parameters"),
        largest_activation_bytes=record.whole("largest_activation_bytes"),
        seconds=amount("seconds"),
        smallest_batch=record.whole("smallest_batch", 1, LARGEST),
        step_seconds=(
            None if record.fields.get("step_seconds") is None else amount("step_seconds")
        ),
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
