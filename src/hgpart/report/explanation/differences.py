"""PlanDifference -> text, tables and JSON: what differs between two plans, for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from hgpart.arrays import Int64
from hgpart.explanation.differing import LayerDifference, PlanDifference
from hgpart.explanation.steps import SimulatedStep
from hgpart.files.columns import BYTES, Column
from hgpart.files.fields import report_json
from hgpart.partition import Partition
from hgpart.report.explanation.explained import size_text, time_text, way_of
from hgpart.report.partition.slice_shares import ranges
from hgpart.report.tables import print_columns


@dataclass(frozen=True, eq=False)
class DifferenceReport:
    """A difference, and what it is of.

    Attributes
    ----------
    model : str
        The model spec.
    names : tuple of two str
        What the two plans are called.
    """

    model: str
    names: tuple[str, str]
    difference: PlanDifference


def difference_answer(report: DifferenceReport, unit: str) -> str:
    """The most important: how much lies elsewhere, and what that changes."""
    difference = report.difference
    before, after = difference.before.evaluation.volume, difference.after.evaluation.volume
    if not difference.layers and not difference.is_least:
        same = ", with the devices renumbered" if difference.is_renumbered else ""
        return f"The two plans divide {report.model} alike{same}"
    least = "at least " if difference.is_least else ""
    pieces = [f"{least}{100 * difference.elsewhere:.3g} % of the work lies elsewhere"]
    pieces.append(f"{size_text(after, unit)} travel instead of {size_text(before, unit)}")
    step, next_step = difference.step_before, difference.step_after
    if step is not None and next_step is not None:
        pieces.append(
            f"a step takes {time_text(next_step.seconds)} instead of {time_text(step.seconds)} "
            "(simulated)"
        )
    return f"From {report.names[0]} to {report.names[1]}: {', '.join(pieces)}"


def difference_notes(report: DifferenceReport, unit: str) -> Iterator[str]:
    """How devices were matched, what weights move, and what is not compared."""
    difference = report.difference
    if difference.is_renumbered:
        pairs = [
            f"its {own} is {device}"
            for own, device in enumerate(difference.devices)
            if own != device
        ]
        yield (
            f"As devices are alike, those of {report.names[1]} are renumbered so that least "
            f"work moves: {', '.join(pairs)}"
        )
    if difference.weight_bytes:
        yield (
            f"{size_text(difference.weight_bytes, unit)} of weights are on a device that did not "
            "have them before"
        )
    for line in difference.not_compared:
        yield f"Not the same: {line}"
    if difference.step_before is not None:
        yield f"Seconds are simulated, for {difference.step_before.assumed}"
    elif difference.no_seconds:
        yield f"No seconds: {difference.no_seconds}"


@dataclass(frozen=True, eq=False)
class PlanRow:
    """A plan as a row of the first table."""

    name: str
    partition: Partition
    memory: Int64
    step: SimulatedStep | None


def plan_rows(report: DifferenceReport) -> list[PlanRow]:
    """The two plans."""
    difference = report.difference
    before = difference.before, difference.memory_before, difference.step_before
    after = difference.after, difference.memory_after, difference.step_after
    return [PlanRow(report.names[0], *before), PlanRow(report.names[1], *after)]


def plan_columns() -> list[Column[PlanRow]]:
    """What each plan costs in all."""
    return [
        Column("", "plan", value=lambda row: row.name),
        Column("", "devices", value=lambda row: row.partition.k),
        Column("", "volume", "", BYTES, lambda row: row.partition.evaluation.volume, decimals=2),
        Column("", "imbalance", value=lambda row: row.partition.evaluation.imbalance, decimals=3),
        Column("", "most memory", "", BYTES, lambda row: int(row.memory.max()), decimals=1),
        Column("", "step", "", "ms", lambda row: None if row.step is None else row.step.seconds),
        Column(
            "", "schedule", value=lambda row: row.step and row.step.scheduling.text, detail=True
        ),
    ]


@dataclass(frozen=True, eq=False)
class DeviceRow:
    """A device in both plans, as a row of the second table; None where a plan has it not."""

    name: str
    load_before: float | None
    load_after: float | None
    memory_before: int | None
    memory_after: int | None
    busy_before: float | None
    busy_after: float | None


def device_rows(report: DifferenceReport) -> list[DeviceRow]:
    """What each device has before and after, in the first plan's numbers."""
    difference = report.difference
    own = {device: part for part, device in enumerate(difference.devices)}
    rows = []
    for device in range(max(difference.before.k, *(number + 1 for number in difference.devices))):
        first = device if device < difference.before.k else None
        second = own.get(device)
        if first is None and second is None:
            continue
        name = str(device)
        if second is not None and second != device:
            name += f" (then {second})"
        rows.append(
            DeviceRow(
                name,
                _load(difference.before, first),
                _load(difference.after, second),
                None if first is None else int(difference.memory_before[first]),
                None if second is None else int(difference.memory_after[second]),
                _busy(difference.step_before, first),
                _busy(difference.step_after, second),
            )
        )
    return rows


def _load(partition: Partition, part: int | None) -> float | None:
    loads = partition.evaluation.loads
    return None if part is None else float(loads[part] / max(1, int(loads.sum())))


def _busy(step: SimulatedStep | None, part: int | None) -> float | None:
    return None if step is None or part is None else float(step.busy[part])


def device_columns(report: DifferenceReport) -> list[Column[DeviceRow]]:
    """Work, memory and simulated seconds of each device."""
    columns: list[Column[DeviceRow]] = [
        Column("", "device", value=lambda row: row.name),
        Column("", "work", "", "%", lambda row: row.load_before, decimals=1),
        Column("", "then", "", "%", lambda row: row.load_after, decimals=1),
        Column("", "memory", "", BYTES, lambda row: row.memory_before, decimals=1),
        Column("", "then", "", BYTES, lambda row: row.memory_after, decimals=1),
    ]
    if report.difference.step_before is not None:
        columns += [
            Column("", "computes", "", "ms", lambda row: row.busy_before),
            Column("", "then", "", "ms", lambda row: row.busy_after),
        ]
    return columns


def difference_columns(report: DifferenceReport) -> list[Column[LayerDifference]]:
    """What is different of each layer."""
    columns: list[Column[LayerDifference]] = [
        Column("name", "layer"),
        Column(
            "", "on", "Devices, in the first plan's numbers.", value=lambda row: ranges(row.before)
        ),
        Column("", "then on", value=lambda row: ranges(row.after)),
        Column("elsewhere", "elsewhere", "Share of it on another device.", "%", decimals=0),
        Column("sent_before", "sends", "Bytes of its own nets.", BYTES),
        Column("sent_after", "then", "", BYTES),
        Column("received_before", "gets", "Bytes that come for it.", BYTES, detail=True),
        Column("received_after", "then", "", BYTES, detail=True),
    ]
    if any(layer.alone_bytes is not None for layer in report.difference.layers):
        meaning = "What the volume would change by if only this layer lay as in the second plan."
        columns += [
            Column("weight_bytes", "weights", "Weights that come to a device.", BYTES, detail=True),
            Column("alone_bytes", "alone", meaning, BYTES),
        ]
    if any(layer.alone_seconds is not None for layer in report.difference.layers):
        meaning = "What a step's seconds would then change by, simulated."
        columns.append(
            Column("alone_seconds", "step alone", meaning, "ms", decimals=1, detail=True)
        )
    return columns


def print_difference(report: DifferenceReport, console: Console, unit: str) -> None:
    """Print the most important, then both plans, then devices and layers.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    """
    difference = report.difference
    console.print(difference_answer(report, unit), style="bold")
    for line in difference_notes(report, unit):
        console.print(line)
    console.print()
    first, second = map(way_of, (difference.before, difference.after))
    when = first if first == second else f"{first}; then {second}"
    print_columns(
        console, f"Plans (volume: {when})", plan_columns(), plan_rows(report), unit, texts_left=True
    )
    console.print()
    title = f"Devices ({report.names[0]}, then {report.names[1]})"
    print_columns(
        console, title, device_columns(report), device_rows(report), unit, texts_left=True
    )
    if difference.layers:
        console.print()
        print_columns(
            console,
            layers_title(report),
            difference_columns(report),
            difference.layers,
            unit,
            texts_left=True,
        )


def layers_title(report: DifferenceReport) -> str:
    """Title of the table of layers."""
    alone = "; alone: what only this layer's move would change"
    known = any(layer.alone_bytes is not None for layer in report.difference.layers)
    return (
        "Layers that moved, or whose neighbours did: largest change of what they send first"
        f"{alone if known else ''}"
    )


def difference_json(report: DifferenceReport) -> str:
    """All figures as a JSON object, a line for each key and layer; bytes and seconds."""
    difference = report.difference
    fields: dict[str, Any] = {
        "model": report.model,
        "plans": report.names,
        "devices": difference.devices,
        "renumbered": difference.is_renumbered,
        "elsewhere": difference.elsewhere,
        "elsewhere_is_least": difference.is_least,
        "weight_bytes": difference.weight_bytes,
        "not_compared": difference.not_compared,
        "no_seconds": difference.no_seconds or None,
    }
    for name, plan in zip(("before", "after"), plan_rows(report), strict=True):
        evaluation, step = plan.partition.evaluation, plan.step
        fields[name] = {
            "k": plan.partition.k,
            "volume_bytes": evaluation.volume,
            "imbalance": evaluation.imbalance,
            "loads": evaluation.loads.tolist(),
            "memory_bytes": plan.memory.tolist(),
            "simulated_seconds": None if step is None else step.seconds,
            "simulated_busy_seconds": None if step is None else step.busy.tolist(),
            "schedule": None if step is None else step.scheduling.text,
        }
    return report_json({**fields, "layers": [asdict(layer) for layer in difference.layers]})
