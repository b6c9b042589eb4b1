"""Timings, Timeline -> sections of a page: what parts did in measured steps, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hgpart.execution.events import Doing, Event, Timeline
from hgpart.execution.totals import Timing
from hgpart.report.page.document import Drawn, plot
from hgpart.report.page.figures import Figure, part_ticks, shortened
from hgpart.report.page.looks import COLOURS, GREY, hatch_of, part_colour
from hgpart.report.page.planned_step import LOOKS, PART_HEIGHT
from hgpart.schedules.schedule import Direction

WAITING = "rgba(140, 140, 140, 0.35)"
SHORTEST = 0.002  # of a step, that a wait is drawn as


def measured_sections(
    timings: tuple[Timing, ...], steps: int, timeline: Timeline
) -> tuple[list[str], dict[str, Drawn]]:
    """What each part worked and waited; none where there were no steps."""
    if not steps:
        return [], {}
    figures: dict[str, Drawn] = {"seconds": (bars := seconds_figure(timings, steps))}
    body = [
        "<section><h2>What a step took</h2>",
        "<p>In the mean of all steps: what each part worked, and what it waited for others. The "
        "busiest sets the pace.</p>",
        plot("seconds", bars, "What each part works and waits in a step"),
        "</section>",
    ]
    if timeline:
        figures["last-step"] = when = last_step_figure(timeline, len(timings))
        body += [
            "<section><h2>What each part did when</h2>",
            "<p>The last step, measured: a row is a part, a box what it did of one micro-batch, "
            "crossed where it waited for a message.</p>",
            plot("last-step", when, "What each part did when in the last step"),
            "</section>",
        ]
    return body, figures


def devices_text(devices: Sequence[str]) -> str:
    """Say how many there are, and of which kinds.

    >>> devices_text(("cpu", "cpu"))
    '2 devices: cpu'
    """
    return f"{len(devices)} devices: {', '.join(dict.fromkeys(devices))}"


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
    runs = _joined(event for event in events if event.doing is Doing.RUN)
    looks = {**LOOKS, Direction.UPDATE: ("update", COLOURS[2], "")}
    groups = [
        ([event for event in runs if event.action.direction is direction], *look)
        for direction, look in looks.items()
    ]
    least = SHORTEST * (max(event.end for event in events) - origin)
    waits = [one for one in events if one.doing is Doing.WAIT and one.end - one.begin >= least]
    groups.append((waits, "waits for a message", GREY, "x"))
    layout = {
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": {"title": {"text": "ms, measured"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "part"}, "range": [k - 0.5, -0.5], **part_ticks(k)},
        "meta": {"legend": "above"},
    }
    data = [_boxes(*group, origin) for group in groups if group[0]]
    return Figure(data, layout, height=PART_HEIGHT * k + 150)


def _joined(events: Iterable[Event]) -> list[Event]:
    """The chunks of a part's pass as one box, from the first one's begin to the last one's end."""
    found: list[Event] = []
    for event in sorted(events, key=lambda one: (one.action.part, one.begin)):
        before = found[-1] if found else None
        if before is not None and (*before.action[:3], before.action.chunk + 1) == event.action:
            found[-1] = before._replace(action=event.action, end=event.end)
        else:
            found.append(event)
    return found


def _boxes(
    events: Sequence[Event], name: str, colour: str, pattern: str, origin: int
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [event.action.part for event in events],
        "base": [shortened((event.begin - origin) / 1e6) for event in events],
        "x": [shortened((event.end - event.begin) / 1e6) for event in events],
        "customdata": [event.action.micro_batch for event in events],
        "marker": {"color": colour, "pattern": {"shape": pattern}, "line": {"width": 0}},
        "hovertemplate": f"part %{{y}}, {name}<br>micro-batch %{{customdata}}: %{{x:.4~g}} ms from "
        "%{base:.4~g}<extra></extra>",
    }
