"""DifferenceReport -> its page: both plans, their devices, and the layers that moved."""

from __future__ import annotations

from hgpart.report.explanation.differences import (
    DifferenceReport,
    device_columns,
    device_rows,
    difference_answer,
    difference_columns,
    difference_notes,
    layers_title,
    plan_columns,
    plan_rows,
)
from hgpart.report.page.document import Drawings, header, page, section
from hgpart.report.page.table import glossary, records_table


def difference_page(report: DifferenceReport, unit: str = "MB") -> str:
    """The page of a difference.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    """
    columns = difference_columns(report)
    lines = [difference_answer(report, unit), *difference_notes(report, unit)]
    rows = device_rows(report)
    layers = report.difference.layers
    body = [
        header([report.model, *report.names], lines),
        section("Both plans", "", records_table("plans", plan_columns(), plan_rows(report), unit)),
        section(
            "Devices",
            f"What each has in {report.names[0]}, then in {report.names[1]}.",
            records_table("devices", device_columns(report), rows, unit),
        ),
        section(
            layers_title(report),
            "",
            records_table("layers", columns, layers, unit),
            glossary("What the columns are", columns, ()),
        ),
    ]
    return page(f"{report.model}: two plans", body, Drawings())
