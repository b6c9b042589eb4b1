"""Verification, PlacementReport -> tables, JSON: what parts of a model compute, and hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from hgpart.arrays import Int64
from hgpart.files.columns import BYTES, UNITS, Column
from hgpart.files.fields import report_json
from hgpart.placement.accounting import PartFigures, PlacementReport
from hgpart.recommendation.memory import OPTIMIZER
from hgpart.report.running import in_micro_batches
from hgpart.report.tables import counted, in_unit, print_columns, print_table
from hgpart.run.verifying import Difference, Verification

MOST_FAILURES = 10  # failures that are printed


def verification_json(about: Mapping[str, Any], verification: Verification) -> str:
    """All figures as a JSON object, a line for each key; a difference that is infinite is null.

    Parameters
    ----------
    about : mapping
        What was verified, which comes first.
    """
    scheduling = verification.scheduling
    fields: dict[str, Any] = {
        "passed": verification.passed,
        **about,
        "k": verification.k,
        "batch_size": verification.batch_size,
        "micro_batches": 1 if scheduling is None else scheduling.micro_batches,
        "schedule": None if scheduling is None else scheduling.name,
        "norms": verification.norms,
        "training": verification.training,
        "dtype": _type(verification),
    }
    for kind, difference in _differences(verification).items():
        fields[f"{kind}_difference"] = difference.value
        fields[f"{kind}_largest_in"] = difference.name
        fields[f"{kind}_nan_in"] = difference.nan_in
        fields[f"{kind}_tolerance"] = difference.tolerance
        fields[f"{kind}_tolerance_because"] = difference.because
    for direction in ("forward", "backward"):
        for unit in ("bytes", "messages"):
            name = f"{direction}_{unit}"
            fields[name] = int(getattr(verification.traffic, name).sum())
            fields[f"planned_{name}"] = int(getattr(verification.planned, name).sum())
    fields["misplaced"] = list(verification.misplaced)
    fields["failures"] = list(verification.failures)
    return report_json(fields)


def print_verification(
    about: Mapping[str, Any], verification: Verification, console: Console, unit: str
) -> None:
    """Print PASS or FAIL first, then what was compared.

    Parameters
    ----------
    about : mapping
        What was verified.
    unit : str
        Unit of bytes, one of `UNITS`.
    """
    failures = verification.failures
    verdict = "FAIL" if failures else "PASS"
    does = "does not compute what" if failures else "computes what"
    parts = counted(verification.k, "part")
    console.print(f"{verdict}: {about['model']} in {parts} {does} the original does", style="bold")
    for failure in failures[:MOST_FAILURES]:
        console.print(f"  {failure}")
    if len(failures) > MOST_FAILURES:
        console.print(f"  and {len(failures) - MOST_FAILURES} more")
    scheduling = verification.scheduling
    divided = "" if scheduling is None else in_micro_batches(scheduling, verification.norms)
    mode = "training" if verification.training else "evaluation"
    facts = [f"{name} {value}" for name, value in about.items() if name != "model"]
    console.print(
        ", ".join(
            [*facts, f"{verification.batch_size} samples{divided}", _type(verification), mode]
        )
    )
    console.print()
    rows = [
        [kind, f"{difference.value:.1e}", f"{difference.tolerance:.0e}", difference.name]
        for kind, difference in _differences(verification).items()
    ]
    headings = ["compared", "largest relative difference", "accepted", "in"]
    print_table(console, "Beside the original", headings, rows, left=(0, 3))
    reasons: dict[tuple[float, str], list[str]] = {}
    for kind, difference in _differences(verification).items():
        reasons.setdefault((difference.tolerance, difference.because), []).append(kind)
    for (tolerance, because), kinds in reasons.items():
        of_kinds = "" if len(reasons) == 1 else f" of {' and '.join(kinds)}"
        console.print(f"Accepted{of_kinds}: {tolerance:.0e}, {because}")
    for kind, difference in _differences(verification).items():
        if difference.nan_in:
            console.print(f"Of the {kind}, {difference.nan_in} has NaN, at the same places in both")
    console.print()
    rows = []
    for direction in ("forward", "backward"):
        both = (verification.traffic, verification.planned)
        sizes = [int(getattr(traffic, f"{direction}_bytes").sum()) for traffic in both]
        messages = [int(getattr(traffic, f"{direction}_messages").sum()) for traffic in both]
        rows.append([direction, *in_unit(sizes, unit), *(f"{count:,}" for count in messages)])
    headings = ["pass", f"sent {unit}", "by the table", "messages", "by the table"]
    print_table(console, "Traffic, counted to the byte", headings, rows)


def _differences(verification: Verification) -> dict[str, Difference]:
    return {kind: getattr(verification, kind) for kind in ("outputs", "gradients", "buffers")}


def _type(verification: Verification) -> str:
    return str(verification.dtype).removeprefix("torch.")


def print_placement(
    report: PlacementReport,
    disagreements: Sequence[str],
    console: Console,
    unit: str,
) -> None:
    """Print the largest memory and the traffic first, then the figures of each part.

    Parameters
    ----------
    disagreements : sequence of str
        Where the figures are not those of the partition.
    unit : str
        Unit of bytes, one of `UNITS`.
    """
    memory = [figures.memory_bytes(OPTIMIZER) for figures in report.parts]
    largest = report.parts[memory.index(max(memory))]
    volume, messages = int(report.sent_bytes.sum()), int(report.sent_messages.sum())
    console.print(
        f"{in_unit([max(memory)], unit)[0]} {unit} on part {largest.part}, which needs the most; "
        f"{in_unit([volume], unit)[0]} {unit} of maps in {messages:,} messages between parts",
        style="bold",
    )
    passes = "a training step" if report.training else "a forward pass in evaluation"
    parts = counted(report.k, "part")
    if len(report.parts) < report.k:
        parts += f", {len(report.parts)} of them here"
    console.print(f"{parts}, {report.batch_size} samples in {passes}, states of {OPTIMIZER}")
    agree = "not as the partition says:" if disagreements else "all figures are the plan's"
    console.print(f"Counted in the submodules; {agree}")
    for line in disagreements:
        console.print(f"  {line}")
    console.print()
    columns = _memory_columns(UNITS[unit])
    print_columns(console, f"Memory, {unit}", columns, report.parts, unit)
    console.print()
    title = "Work and traffic of a forward pass"
    print_columns(console, title, _work_columns(report), report.parts, unit)
    unused = sum(figures.unused_parameters for figures in report.parts)
    if unused:
        console.print(f"Also held: {unused:,} parameters that the model makes no use of")
    if report.k > 1:
        console.print()
        texts = in_unit(report.sent_bytes.ravel().tolist(), unit)
        rows = []
        for part in (figures.part for figures in report.parts):
            sizes = texts[part * report.k : (part + 1) * report.k]
            rows.append([str(part), *sizes[:part], "", *sizes[part + 1 :]])
        headings = [f"{unit} from", *(f"to {part}" for part in range(report.k))]
        print_table(console, "Between parts in a forward pass", headings, rows)


def _name(figures: PartFigures) -> str:
    return f"{figures.part} ({figures.device})"


def _memory_columns(size: int) -> list[Column[PartFigures]]:
    def buffers(part: PartFigures) -> int:
        buffers = part.buffer_bytes + part.copied_gradient_bytes
        return buffers + part.exchange_bytes + part.index_bytes

    def state(part: PartFigures) -> int:
        return part.optimizer_bytes(OPTIMIZER)

    return [
        Column("", "part", value=_name),
        Column("", "all", value=lambda part: part.memory_bytes(OPTIMIZER), size=size),
        Column("parameter_bytes", "parameters", size=size),
        Column("gradient_bytes", "gradients", size=size),
        Column("", "optimizer", value=state, size=size),
        Column("activation_bytes", "activations", size=size),
        Column("", "buffers", value=buffers, size=size),
    ]


def _work_columns(report: PlacementReport) -> list[Column[PartFigures]]:
    work = sum(figures.macs for figures in report.parts)

    def sums(matrix: Int64, axis: int) -> Callable[[PartFigures], int]:
        return lambda part: int(matrix.sum(axis)[part.part])

    return [
        Column("", "part", value=_name),
        Column("parameters", "parameters"),
        Column("macs", "MAC"),
        Column("", "MAC", "", "%", lambda part: part.macs / work if work else None, decimals=1),
        Column("", "sends", "", BYTES, sums(report.sent_bytes, 1)),
        Column("", "messages", value=sums(report.sent_messages, 1)),
        Column("", "receives", "", BYTES, sums(report.received_bytes, 0)),
        Column("", "messages", value=sums(report.received_messages, 0)),
    ]
