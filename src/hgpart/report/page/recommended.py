"""Recommendation -> its page: the ways side by side, and memory against its limit."""

from __future__ import annotations

from collections.abc import Sequence

from hgpart.recommendation.ranking import Ranked, Recommendation, trains
from hgpart.report.page.document import Drawings, header, page, paragraphs, section
from hgpart.report.page.drawing.figures import Figure, memory_figure, shortened, ways_figure
from hgpart.report.page.table import records_table
from hgpart.report.partition.looks import COLOURS
from hgpart.report.recommendation import answer, ranked_columns, reasons

MOST_WAYS = 8  # ways in a chart


def recommendation_page(
    recommendation: Recommendation, limits: Sequence[int | None], unit: str = "MB"
) -> str:
    """The page of a recommendation: the best way, all ways side by side, the best one's memory.

    Parameters
    ----------
    limits : sequence of int or None
        Bytes that each device may be given; None where that is not known.
    unit : str
        Unit of bytes, one of `hgpart.report.UNITS`.
    """
    ways, best = recommendation.ranked[:MOST_WAYS], recommendation.best
    drawn = Drawings()
    subject = [
        recommendation.model,
        recommendation.steps,
        recommendation.machine.name,
        f"{recommendation.devices} devices",
        f"times: {recommendation.times}",
    ]
    body = [
        header(
            subject,
            [
                answer(recommendation, unit),
                *recommendation.cautions,
                *reasons(recommendation, unit),
            ],
        ),
        *paragraphs(list(recommendation.notes)),
        section(
            f"Seconds a {recommendation.step}",
            f"Simulated, for the best {len(ways)} of {len(recommendation.ranked)} ways: the whole "
            "bar is the step, and the dark one in it what the device computes that computes "
            "longest. A diamond is what was measured. Less is better.",
            drawn.plot("ways", _ways_figure(ways), f"Seconds a {recommendation.step} of each way"),
        ),
        section(
            "Every way, side by side",
            "",
            records_table("ways", ranked_columns(recommendation), recommendation.rows, unit),
        ),
    ]
    needed = [size for size in best.needed_bytes if size is not None]
    if needed and len(needed) == len(best.needed_bytes):
        memory = memory_figure(needed, limits[: len(needed)], unit)
        picture = drawn.plot("memory", memory, "Memory of each device against its limit")
        text = "What each device needs in a step, beside what it may have, where that is known."
        body.append(section("Memory of the best way", text, picture))
    if recommendation.dropped:
        lines = [f"{dropped.what}: {dropped.why}" for dropped in recommendation.dropped]
        body.append(section("Dropped ways", "", *paragraphs(lines)))
    does = "train" if trains(recommendation.goal) else "run"
    return page(f"{recommendation.model}: how to {does} it", body, drawn)


def _ways_figure(ways: Sequence[Ranked]) -> Figure:
    names = [f"{number}. {way.trial.text}" for number, way in enumerate(ways, start=1)]
    steps = [shortened(way.simulated_seconds) for way in ways]
    computing = [shortened(way.computing_seconds) for way in ways]
    series = {"step": (steps, 0.8, COLOURS[5]), "computes": (computing, 0.4, COLOURS[0])}
    return ways_figure(names, series, [way.measured_seconds for way in ways])
