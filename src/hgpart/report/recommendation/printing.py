"""Recommendation -> its answer, and a table of the ways, for people."""

from __future__ import annotations

from rich.console import Console

from hgpart.recommendation.ranking import Recommendation
from hgpart.report.recommendation.columns import ranked_columns
from hgpart.report.recommendation.words import answer, reasons
from hgpart.report.tables import print_ways


def print_recommendation(
    recommendation: Recommendation, console: Console, unit: str, *, wide: bool = False
) -> None:
    """Print the answer first, then why, the ways in their order, and those that were dropped.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    wide : bool
        Whether all columns are printed, however wide the console is.
    """
    console.print(answer(recommendation, unit), style="bold")
    for line in (*reasons(recommendation, unit), *recommendation.notes):
        console.print(line, soft_wrap="hgpart " in line)  # a command is copied whole
    console.print()
    is_measured = any(ranked.measured_seconds is not None for ranked in recommendation.ranked)
    how = "simulated, except where it says measured" if is_measured else "simulated"
    title = (
        f"{recommendation.model}, steps of {recommendation.batch_size} samples on "
        f"{recommendation.machine.name} ({how})"
    )
    print_ways(
        console, title, ranked_columns(recommendation), recommendation.ranked, unit, wide=wide
    )
    left = (
        f"; no time for {recommendation.left_out} others: --time-limit"
        if recommendation.left_out
        else ""
    )
    console.print(
        f"{recommendation.simulated} ways simulated, the best of each division is shown{left}"
    )
    if recommendation.dropped:
        console.print()
        console.print("Dropped", style="bold")
        for dropped in recommendation.dropped:
            console.print(f"{dropped.what}: {dropped.why}")
