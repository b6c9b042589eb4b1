"""Bench -> its page: which way of training is fastest, the table, bars."""

from __future__ import annotations

from hgpart.bench.results import Bench
from hgpart.report.benches import fastest, settings
from hgpart.report.page.document import header, page, plot
from hgpart.report.page.drawing.ways import ways_figure
from hgpart.report.page.tables.ways import way_columns, ways_glossary, ways_table


def bench_page(bench: Bench, unit: str = "MB") -> str:
    """The page of ways of training on the clock: which is fastest, the table, bars.

    Parameters
    ----------
    bench : Bench
    unit : str
        What bytes are shown in, one of `hgpart.report.UNITS`.
    """
    figures = {"ways": ways_figure(bench)}
    body = [
        header(settings(bench), [fastest(bench)]),
        "<section><h2>Every way, side by side</h2>",
        "<p>Training, forward and backward with an update. Each way had the machine to itself, in "
        "turns. Click a heading to sort; point at a figure for all its digits.</p>",
        ways_table(bench, unit),
        ways_glossary(bench.rows, way_columns(bench, unit)),
        "</section>",
        "<section><h2>Seconds a step</h2>",
        "<p>The median of all timed steps, and a line from the lower to the upper quartile. Lower "
        "is better.</p>",
        plot("ways", figures["ways"], "Seconds a step of each way"),
        "</section>",
    ]
    return page(f"{bench.model}: ways of training on the clock", body, figures)
