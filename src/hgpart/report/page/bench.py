"""Bench -> its page: which way of training is fastest, the table, bars."""

from __future__ import annotations

from hgpart.bench.results import Bench, bench_columns
from hgpart.report.benches import fastest, settings
from hgpart.report.page.document import header, page, plot, section
from hgpart.report.page.drawing.ways import bench_figure
from hgpart.report.page.tables.ways import ways_glossary, ways_table


def bench_page(bench: Bench, unit: str = "MB") -> str:
    """The page of ways of training on the clock: which is fastest, the table, bars.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `hgpart.report.UNITS`.
    """
    figures = {"ways": bench_figure(bench)}
    body = [
        header(settings(bench), [fastest(bench)]),
        section(
            "Every way, side by side",
            "Training, forward and backward with an update. Each way had the machine to itself, in "
            "turns. ★ marks the fastest. Click a heading to sort; point at a figure for all its "
            "digits.",
            ways_table(bench, unit),
            ways_glossary(bench.rows, bench_columns(bench)),
        ),
        section(
            "Seconds a step",
            "The median of all timed steps, and a line from the lower to the upper quartile. Lower "
            "is better. The fastest way is green; the way that speed-ups are over is grey.",
            plot("ways", figures["ways"], "Seconds a step of each way"),
        ),
    ]
    return page(f"{bench.model}: ways of training on the clock", body, figures)
