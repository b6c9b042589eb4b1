"""Report -> HTML tables: the plan beside a cut between layers, its steps and parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hgpart.hypergraph.metrics import Evaluation
from hgpart.report.page.tables.table import Column, cell, head_cell, table
from hgpart.report.partition.fields import as_json
from hgpart.report.partition.printing import one_way
from hgpart.report.partition.record import Report, work_scale
from hgpart.report.tables import UNITS


def summary_table(report: Report, unit: str) -> str:
    """The figures of a plan, and of the best contiguous layer-wise split."""
    size = UNITS[unit]
    work_unit, work_size = work_scale(report)
    columns = [
        Column(
            "max_load",
            "most work",
            f"Work of the busiest part, in {work_unit}.",
            work_unit.split()[0],
            work_size,
        ),
        Column(
            "min_load",
            "least work",
            f"Work of the least busy part, in {work_unit}.",
            work_unit.split()[0],
            work_size,
        ),
        Column("max_over_average", "max/avg work", "1 is a perfect balance.", decimals=3),
        Column(
            "imbalance",
            "imbalance",
            "How far the busiest part is above its share of the work.",
            decimals=3,
        ),
        Column("volume", "volume", f"What all parts send in {report.time}.", unit, size),
        Column("max_part_volume", "busiest sender", "The most that one part sends.", unit, size),
        Column("message_count", "messages", f"In {report.time}."),
    ]
    found: Sequence[tuple[str, Evaluation]] = (
        ("this plan", report.partition.evaluation),
        ("cut between layers", report.layerwise),
    )
    rows = [
        f"<tr>{head_cell(name)}"
        + "".join(cell(column, getattr(each, column.key)) for column in columns)
        + "</tr>"
        for name, each in found
    ]
    return table("summary", "", columns, rows)


def step_table(report: Report, unit: str) -> str:
    """What the parts send at each time of a training step."""
    size = UNITS[unit]
    columns = [
        Column("volume", "volume", "What all parts send.", unit, size),
        Column("most_sent", "busiest sender", "The most that one part sends.", unit, size),
        Column("most_received", "busiest receiver", "The most that one part receives.", unit, size),
        Column("most", "busiest", "The most that one part sends and receives.", unit, size),
        Column("messages", "messages", "Of all parts."),
    ]
    rows = [
        f"<tr>{head_cell(name)}"
        + "".join(cell(column, getattr(flow, column.key)) for column in columns)
        + "</tr>"
        for name, flow in report.step.items()
    ]
    return table("step", "", columns, rows)


def part_table(report: Report, unit: str) -> str:
    """What each part computes, holds, sends and receives."""
    size = UNITS[unit]
    work_unit, work_size = work_scale(report)
    sends, receives = (f"{verb}{one_way(report)}" for verb in ("sends", "receives"))
    columns = [
        Column(
            "work",
            "work",
            f"In {work_unit}.",
            work_unit.split()[0],
            work_size / report.work_units,
        ),
        Column("work_share", "share", "Of the work of all parts.", "%", 0.01),
        Column("parameters", "parameters", "Weights, biases and the like, in millions.", "M", 1e6),
        Column("activation_bytes", "feature maps", "Made or received, for a batch.", unit, size),
        Column("send_bytes", sends, f"To other parts in {report.time}.", unit, size),
        Column("receive_bytes", receives, f"From other parts in {report.time}.", unit, size),
        Column("messages_sent", "messages sent", f"In {report.time}."),
        Column("messages_received", "messages received", f"In {report.time}."),
    ]
    parts: Iterable[Mapping[str, Any]] = json.loads(as_json(report))["parts"]
    rows = [
        f"<tr>{head_cell(str(part['part']), part['part'])}"
        + "".join(cell(column, part[column.key]) for column in columns)
        + "</tr>"
        for part in parts
    ]
    return table("parts", "part", columns, rows)
