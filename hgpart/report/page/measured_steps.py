"""Timings, Timeline -> plotly figures: what parts did in measured steps, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hgpart.execution.events import Doing, Event, Timeline
from hgpart.execution.totals import Timing
from hgpart.report.page.figures import Figure, part_ticks, shortened
from hgpart.report.page.looks import GREY, hatch_of, part_colour
from hgpart.report.page.planned_step import LOOKS, PART_HEIGHT

WAITING = "rgba(140, 140, 140, 0.35)"


def seconds_figure(timings: Sequence[Timing], steps: int) -> Figure:
    """Milliseconds of a step that each part works, and that it waits for messages."""
    parts = list(range(len(timings)))
    worked = {"color": [part_colour(part) for part in parts]}
    marker = {**worked, "pattern": {"shape": [hatch_of(part) for part in parts]}}
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": parts,
            "x": [shortened(1000 * seconds / steps) for seconds in several],
            "marker": look,
            "hovertemplate": f"part %{{y}} {name}<br>%{{x:.4~g}} ms a step<extra></extra>",
        }
        for name, several, look in (
            ("works", [one.busy for one in timings], marker),
            ("waits for messages", [one.waiting for one in timings], {"color": WAITING}),
        )
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "ms a step, measured"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "part"}, "autorange": "reversed", **part_ticks(len(parts))},
        "meta": {"legend": "above"},
    }
    return Figure(data, layout, height=PART_HEIGHT * len(parts) + 150)


def last_step_figure(timeline: Timeline, k: int) -> Figure:
    """What each part did when in the last measured step, and when it waited."""
    events = timeline[-1]
    origin = min(event.begin for event in events)
    runs = [event for event in events if event.doing is Doing.RUN]
    groups = [
        (name, [event for event in runs if event.action.direction is direction], colour, pattern)
        for direction, (name, colour, pattern) in LOOKS.items()
    ]
    waits = [event for event in events if event.doing is Doing.WAIT]
    groups.append(("waits for a message", waits, GREY, "x"))
    layout = {
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": {"title": {"text": "ms, measured"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "part"}, "range": [k - 0.5, -0.5], **part_ticks(k)},
        "meta": {"legend": "above"},
    }
    data = [
        _boxes(name, own, colour, pattern, origin) for name, own, colour, pattern in groups if own
    ]
    return Figure(data, layout, height=PART_HEIGHT * k + 150)


def _boxes(
    name: str, events: Sequence[Event], colour: str, pattern: str, origin: int
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [event.action.part for event in events],
        "base": [shortened((event.begin - origin) / 1e6) for event in events],
        "x": [shortened((event.end - event.begin) / 1e6) for event in events],
        "customdata": [str(event.action) for event in events],
        "marker": {"color": colour, "pattern": {"shape": pattern}, "line": {"width": 0}},
        "hovertemplate": f"part %{{y}}, {name}<br>%{{customdata}}: %{{x:.4~g}} ms from "
        "%{base:.4~g}<extra></extra>",
    }
