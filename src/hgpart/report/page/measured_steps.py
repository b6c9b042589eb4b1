"""Timings, events -> sections of a page: what parts did in measured steps, and when."""

from __future__ import annotations

from collections.abc import Sequence

from hgpart.execution.records.events import Event, Timeline
from hgpart.execution.records.totals import Timing
from hgpart.report.page.document import Drawn, plot
from hgpart.report.page.drawing.figures import TICKS_DOWN, Figure, part_ticks, shortened
from hgpart.report.page.drawing.timelines import PART_HEIGHT, milliseconds_of, timeline_figure
from hgpart.report.partition.looks import part_marker

WAITING = "rgba(140, 140, 140, 0.35)"


def measured_sections(
    timings: tuple[Timing, ...], steps: int, timeline: Timeline, planned: Sequence[Event]
) -> tuple[list[str], dict[str, Drawn]]:
    """What each part worked and waited; none where there were no steps.

    The last step has its plan above it, as long as it is itself: the schedule's own costs are
    guesses, which say what follows what, but not how fast the devices are.
    """
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
        last = timeline[-1]
        figures["last-step"] = when = timeline_figure(
            *(len(timings), last, stretched(planned, milliseconds_of(last)), "ms, measured"),
            is_stretched=True,
        )
        said = (
            "The thin row above it is the schedule by its estimates, drawn as long as the measured "
            f"step ({milliseconds_of(last):,.4g} ms; by the estimates "
            f"{milliseconds_of(planned):,.4g} ms). "
        )
        body += [
            "<section><h2>What each part did when</h2>",
            "<p>The last step, measured: a row is a part, in its colour, a box what it did of one "
            f"micro-batch, a thin line that it waited for a message. {said if planned else ''}</p>",
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
            ("works", [one.busy for one in timings], part_marker(parts)),
            ("waits for messages", [one.waiting for one in timings], {"color": WAITING}),
        )
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "ms a step, measured"}, "rangemode": "tozero"},
        "yaxis": {
            "title": {"text": "part"},
            "autorange": "reversed",
            **part_ticks(len(parts), TICKS_DOWN),
        },
        "legend": {"traceorder": "normal"},
        "meta": {"legend": "above"},
    }
    return Figure(data, layout, height=PART_HEIGHT * len(parts) + 150)


def stretched(events: Sequence[Event], milliseconds: float) -> tuple[Event, ...]:
    """The same from a common begin on, so that all together take so long.

    >>> from hgpart.execution.records.events import planned_events
    >>> from hgpart.schedules.schedule import Action, Direction
    >>> planned = planned_events([Action(0, Direction.FORWARD, 0, 0)], [(0.0, 2.0)])
    >>> stretched(planned, 500.0)[0].end
    500000000
    """
    before = milliseconds_of(events)
    by = milliseconds / before if before else 1.0
    return tuple(
        event._replace(begin=round(event.begin * by), end=round(event.end * by)) for event in events
    )
