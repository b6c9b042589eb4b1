"""Verification -> table, JSON: whether a placed model does what the original does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from hgpart.files.fields import report_json
from hgpart.report.running import in_micro_batches
from hgpart.report.tables import counted, in_unit, print_table
from hgpart.run.verifying import Verification

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
        "tolerance": verification.tolerance,
    }
    for kind, difference in _differences(verification).items():
        fields[f"{kind}_difference"] = difference.value
        fields[f"{kind}_largest_in"] = difference.name
        fields[f"{kind}_nan_in"] = difference.nan_in
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
    accepted = f"{verification.tolerance:.0e}"
    rows = [
        [kind, f"{difference.value:.1e}", accepted, difference.name]
        for kind, difference in _differences(verification).items()
    ]
    headings = ["compared", "largest relative difference", "accepted", "in"]
    print_table(console, "Beside the original", headings, rows, left=(0, 3))
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


def _differences(verification: Verification) -> dict[str, Any]:
    return {kind: getattr(verification, kind) for kind in ("outputs", "gradients", "buffers")}


def _type(verification: Verification) -> str:
    return str(verification.dtype).removeprefix("torch.")
