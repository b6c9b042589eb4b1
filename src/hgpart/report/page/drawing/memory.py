"""Bytes that devices need, and may have -> plotly figure: a bar for each, a line for its limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hgpart.report.page.drawing.figures import Figure, part_ticks
from hgpart.report.partition.looks import GREY, part_marker
from hgpart.report.tables import UNITS


def memory_figure(needed: Sequence[int], limits: Sequence[int | None], unit: str) -> Figure:
    """What each device needs, and the most that it may have.

    Parameters
    ----------
    needed : sequence of int
        Bytes of each device.
    limits : sequence of int or None
        Bytes; None where that is not known. As many, or none at all.
    unit : str
        What bytes are shown in, one of `hgpart.report.UNITS`.
    """
    size, parts = UNITS[unit], list(range(len(needed)))
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": "needs",
            "x": parts,
            "y": [one / size for one in needed],
            "marker": part_marker(parts),
            "hovertemplate": f"device %{{x}} needs %{{y:,.4~r}} {unit}<extra></extra>",
        }
    ]
    if any(limit is not None for limit in limits):
        had = [None if limit is None else limit / size for limit in limits]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "may have",
                "x": [-0.5, *parts, len(parts) - 0.5],
                "y": [had[0], *had, had[-1]],
                "line": {"shape": "hvh", "dash": "dash", "color": GREY},
                "hovertemplate": f"may have %{{y:,.4~r}} {unit}<extra></extra>",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "device"}, **part_ticks(len(parts))},
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero", "tickformat": ",~r"},
        "meta": {"legend": "above"},
    }
    return Figure(data, layout, height=400)
