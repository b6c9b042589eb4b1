"""Races -> their page: which way of training is the first at an accuracy, the table, curves."""

from __future__ import annotations

from hgpart.bench.races import Races, race_columns
from hgpart.report.page.document import header, page, plot, section
from hgpart.report.page.drawing.ways import race_figure
from hgpart.report.page.tables.ways import races_table, ways_glossary
from hgpart.report.races import race_settings, winner


def race_page(races: Races) -> str:
    """The page of ways of training to an accuracy: which is first, the table, the curves."""
    figures = {"races": race_figure(races)}
    curves = plot("races", figures["races"], "Accuracy of each way against seconds of training")
    body = [
        header(race_settings(races), [winner(races)]),
        section(
            "Every way, side by side",
            "All begin with the same weights, and see the same batches in the same order. Each had "
            "the machine to itself.",
            races_table(races),
            ways_glossary(races.rows, race_columns(races)),
        ),
        section("Accuracy against time", "", curves),
    ]
    return page(f"{races.model}: ways of training to an accuracy", body, figures)
