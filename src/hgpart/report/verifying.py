"""Verification -> table, JSON: whether a placed model does what the original does."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from rich.console import Console

from hgpart.report.running import in_micro_batches
from hgpart.report.tables import UNITS, even_decimals, print_table, ruled_table
from hgpart.run.verifying import Verification

MOST_FAILURES = 10  # that are printed


def verification_json(about: Mapping[str, Any], verification: Verification) -> str:
    """All figures as a JSON object, a line for each key; a difference that is infinite is null.

    Parameters
    ----------
    about : mapping
        What was verified: it comes first.
    verification : Verification
    """
    scheduling = verification.scheduling
    fields: dict[str, Any] = {
        "hgpart_version": version("hgpart"),
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
        finite = math.isfinite(difference.value)
        fields[f"{kind}_difference"] = difference.value if finite else None
        fields[f"{kind}_largest_in"] = difference.name
        fields[f"{kind}_nan_in"] = difference.nan_in
    for direction in ("forward", "backward"):
        for unit in ("bytes", "messages"):
            name = f"{direction}_{unit}"
            fields[name] = int(getattr(verification.traffic, name).sum())
            fields[f"planned_{name}"] = int(getattr(verification.planned, name).sum())
    fields["misplaced"] = list(verification.misplaced)
    fields["failures"] = list(verification.failures)
    lines = [f'  "{name}": {json.dumps(value)}' for name, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def print_verification(
    about: Mapping[str, Any], verification: Verification, console: Console, unit: str
) -> None:
    """Print PASS or FAIL first, then what was compared.

    Parameters
    ----------
    about : mapping
        What was verified.
    verification : Verification
    console : Console
    unit : str
        What bytes are printed in, one of `UNITS`.
    """
    failures = verification.failures
    verdict = "FAIL" if failures else "PASS"
    does = "does not compute what" if failures else "computes what"
    parts = f"{verification.k} part{'s' * (verification.k > 1)}"
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
    table = ruled_table(["compared", "largest relative difference", "accepted", "in"])
    table.columns[-1].justify = "left"
    for kind, difference in _differences(verification).items():
        accepted = f"{verification.tolerance:.0e}"
        table.add_row(kind, f"{difference.value:.1e}", accepted, difference.name)
    print_table(console, "Beside the original", table)
    for kind, difference in _differences(verification).items():
        if difference.nan_in:
            console.print(f"Of the {kind}, {difference.nan_in} has NaN, at the same places in both")
    console.print()
    table = ruled_table(["pass", f"sent {unit}", "by the table", "messages", "by the table"])
    for direction in ("forward", "backward"):
        both = (verification.traffic, verification.planned)
        sizes = [int(getattr(one, f"{direction}_bytes").sum()) for one in both]
        messages = [int(getattr(one, f"{direction}_messages").sum()) for one in both]
        texts = even_decimals([size / UNITS[unit] for size in sizes])
        table.add_row(direction, *texts, *(f"{count:,}" for count in messages))
    print_table(console, "Traffic, counted to the byte", table)


def _differences(verification: Verification) -> dict[str, Any]:
    return {kind: getattr(verification, kind) for kind in ("outputs", "gradients", "buffers")}


def _type(verification: Verification) -> str:
    return str(verification.dtype).removeprefix("torch.")
