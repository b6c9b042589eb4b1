"""RunReport -> its page; timings, events -> what parts did in measured steps, of any page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hgpart.execution.records.events import Event, Timeline
from hgpart.execution.records.totals import Timing
from hgpart.report.page.document import Drawings, header, page, section
from hgpart.report.page.drawing.figures import FAINT, Figure, bars, seconds_figure, shortened
from hgpart.report.page.drawing.timelines import milliseconds_of, timeline_figure
from hgpart.report.partition.looks import part_marker
from hgpart.report.running import RunReport, run_answer
from hgpart.report.tables import counted


def measured_sections(
    timings: tuple[Timing, ...],
    steps: int,
    timeline: Timeline,
    planned: Sequence[Event],
    drawn: Drawings,
) -> Iterator[str]:
    """What each part worked and waited; none where there were no steps.

    The last step has its plan above it, drawn as long as the step: the schedule's own costs are
    estimates, which say what follows what, but not how fast the devices are.
    """
    if not steps:
        return
    seconds = working_figure(timings, steps)
    yield section(
        "What a step took",
        "Mean of all steps: what each part worked, and what it waited for others. The busiest "
        "sets the pace.",
        drawn.plot("seconds", seconds, "What each part works and waits in a step"),
    )
    if not timeline:
        return
    last, title = timeline[-1], "ms, measured"
    above = stretched(planned, milliseconds_of(last))
    when = timeline_figure(len(timings), last, above, title, is_stretched=True)
    text = (
        "The last step, measured: a row is a part, in its colour, a box what it did of one "
        "micro-batch, a thin line that it waited for a message. "
    )
    if planned:
        text += (
            "The thin row above it is the schedule by its estimates, drawn as long as the "
            f"measured step ({milliseconds_of(last):,.4g} ms; by the estimates "
            f"{milliseconds_of(planned):,.4g} ms). "
        )
    picture = drawn.plot("last-step", when, "What each part did when in the last step")
    yield section("What each part did when", text, picture)


def devices_text(devices: Sequence[str]) -> str:
    """How many devices there are, and of which kinds.

    >>> devices_text(("cpu", "cpu"))
    '2 devices: cpu'
    """
    return f"{len(devices)} devices: {', '.join(dict.fromkeys(devices))}"


def working_figure(timings: Sequence[Timing], steps: int) -> Figure:
    """Milliseconds of a step that each part works, and that it waits for messages."""

    def milliseconds(name: str) -> list[float | None]:
        return [shortened(1000 * getattr(timing, name) / steps) for timing in timings]

    k, hover = len(timings), "part %{{y}} {}<br>%{{x:.4~g}} ms a step"
    parts, works, waits = [*range(k)], "works", "waits for messages"
    return seconds_figure(
        k,
        "ms a step, measured",
        bars(works, parts, milliseconds("busy"), part_marker(parts), hover.format(works)),
        bars(waits, parts, milliseconds("waiting"), {"color": FAINT}, hover.format(waits)),
    )


def stretched(events: Sequence[Event], milliseconds: float) -> tuple[Event, ...]:
    """The same events from a common begin on, so that all together take so many milliseconds.

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


def run_page(report: RunReport) -> str:
    """The page of a run: what a step took, and what each part did in it."""
    measured = report.measurement
    passes = "forward and backward" if measured.backward else "forward"
    subject = [
        report.model,
        f"{counted(measured.steps, 'step')} of {counted(measured.batch_size, 'sample')}, {passes}",
        devices_text(report.devices),
    ]
    drawn, timings = Drawings(), measured.totals.timings
    about = timings, measured.steps, measured.timeline, measured.planned
    body = [header(subject, [run_answer(report)]), *measured_sections(*about, drawn)]
    return page(f"{report.model}: a run", body, drawn)
