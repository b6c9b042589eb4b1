"""Recommendation -> its answer, and a table of the ways, for people."""

from __future__ import annotations

from rich.console import Console

from hgpart.recommendation.ranking import Recommendation
from hgpart.report.recommendation.words import answer, reasons
from hgpart.report.tables import UNITS, even_decimals, in_unit, print_table, ruled_table


def print_recommendation(found: Recommendation, console: Console, unit: str) -> None:
    """Print the answer first, then why, the ways in their order, and what is no way.

    Parameters
    ----------
    found : Recommendation
    console : Console
    unit : str
        What bytes are printed in, one of `UNITS`.
    """
    console.print(answer(found, unit), style="bold")
    for line in (*reasons(found, unit), *found.notes):
        console.print(line, soft_wrap="hgpart " in line)  # a command is copied whole
    console.print()
    _print_ways(found, console, unit)
    left = f"; no time for {found.left_out} others: --time-limit" if found.left_out else ""
    console.print(f"{found.simulated} ways simulated, the best of each division is shown{left}")
    if found.dropped:
        console.print()
        console.print("Dropped", style="bold")
        for one in found.dropped:
            console.print(f"{one.what}: {one.why}")


def _print_ways(found: Recommendation, console: Console, unit: str) -> None:
    ways = found.ranked
    headings = ["way", "schedule", "ms a step"]
    columns = [
        [one.division.text for one in ways],
        [one.scheduling.text for one in ways],
        even_decimals([1000 * one.simulated_seconds for one in ways]),
    ]
    if any(one.measured_seconds is not None for one in ways):
        known = [one.measured_seconds for one in ways if one.measured_seconds is not None]
        figures = iter(even_decimals([1000 * one for one in known]))
        headings.append("measured ms")
        columns.append(["-" if one.measured_seconds is None else next(figures) for one in ways])
    alone = found.one_device.simulated_seconds
    headings += ["times one device", "computes ms", "waits ms", f"sends {unit}", f"needs {unit}"]
    columns += [
        [f"{alone / one.simulated_seconds:.2f}" for one in ways],
        even_decimals([1000 * one.computing_seconds for one in ways]),
        even_decimals([1000 * one.waiting_seconds for one in ways]),
        even_decimals([one.sent_bytes / UNITS[unit] for one in ways]),
        in_unit([one.largest_bytes for one in ways], unit),
    ]
    table = ruled_table(headings)
    table.columns[1].justify = "left"
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    title = f"{found.model}, steps of {found.batch_size} samples on {found.machine.name}"
    print_table(console, f"{title} (simulated, but for what is called measured)", table)
