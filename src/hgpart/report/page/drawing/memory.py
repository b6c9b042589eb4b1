"""Bytes that devices need, and may have -> plotly figure: a bar for each, a line for its limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hgpart.files.columns import UNITS
from hgpart.report.page.drawing.figures import Figure, part_bars
from hgpart.report.partition.looks import part_marker
from hgpart.report.tables import even_decimals

MOST_ROOM = 2.5  # times the largest need: a limit above that is off the scale
HEADROOM = 1.25  # times the largest need that the axis shows then


def memory_figure(needed: Sequence[int], limits: Sequence[int | None], unit: str) -> Figure:
    """What each device needs, and the most that it may have.

    Limits far above all needs would crush the bars: the axis ends before them, and a note says
    what they are.

    Parameters
    ----------
    needed : sequence of int
        Bytes of each device.
    limits : sequence of int or None
        Bytes; None where that is not known. As many, or none at all.
    unit : str
        Unit of bytes, one of `hgpart.report.UNITS`.
    """
    size = UNITS[unit]
    most = max(needed, default=0)
    far = [limit for limit in limits if limit is not None and limit > MOST_ROOM * most > 0]
    known = [None if limit is None else limit / size for limit in limits]
    line = None if all(limit is None for limit in known) else ("may have", known)
    bars = [("needs", [count / size for count in needed], part_marker(range(len(needed))))]
    figure = part_bars(bars, line, "device", unit, height=400)
    if far:
        figure.layout["yaxis"] |= {"range": [0, HEADROOM * most / size], "rangemode": "normal"}
        figure.layout["annotations"] = [_off_the_scale(min(far) / size, max(far) / size, unit)]
    return figure


def _off_the_scale(least: float, most: float, unit: str) -> dict[str, Any]:
    limits = " to ".join(dict.fromkeys(even_decimals([least, most])))
    return {
        "text": f"↑ may have {limits} {unit}, off the scale",
        "xref": "paper",
        "yref": "paper",
        "x": 1,
        "y": 1,
        "xanchor": "right",
        "yanchor": "top",
        "showarrow": False,
    }
