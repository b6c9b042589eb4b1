"""PredictionReport -> its page: what a step should take, and what each part should do in it."""

from __future__ import annotations

from hgpart.prediction.device_times import sources
from hgpart.report.page.document import Drawings, header, page, section
from hgpart.report.page.drawing.figures import Figure, bars, diamonds, seconds_figure, shortened
from hgpart.report.page.drawing.timelines import timeline_figure
from hgpart.report.partition.looks import part_marker
from hgpart.report.prediction import PredictionReport, prediction_answer, prediction_notes
from hgpart.report.tables import counted


def prediction_page(report: PredictionReport) -> str:
    """The page of a prediction, beside what was measured, if it was."""
    prediction, measured = report.prediction, report.measurement
    k = prediction.schedule.k
    subject = [
        report.model,
        f"{counted(k, 'device')} of {report.machine.name}",
        f"steps of {prediction.batch_size} samples, {prediction.schedule.rule}",
        f"times: {sources(report.machine, report.times)}",
    ]
    lines = [prediction_answer(report), *prediction_notes(report)]
    last = measured.timeline[-1] if measured is not None and measured.timeline else ()
    drawn, seconds = Drawings(), _computing_figure(report)
    when = timeline_figure(k, last, report.timeline[0], "ms")
    diamond = " A diamond is what was measured." if measured is not None else ""
    above = "The thin row is the step as it is simulated, the thick one below it the last one "
    above += "measured, with a thin line where it waited for a message. "
    body = [
        header(subject, lines),
        section(
            "What a step takes",
            f"What each part computes, simulated. The busiest sets the pace.{diamond}",
            drawn.plot("seconds", seconds, "What each part computes in a step"),
        ),
        section(
            "What each part does when",
            f"{above if last else ''}A row is a part, in its colour, a box what it does of one "
            "micro-batch.",
            drawn.plot("step", when, "What each part does when in a step"),
        ),
    ]
    return page(f"{report.model}: a step, simulated", body, drawn)


def _computing_figure(report: PredictionReport) -> Figure:
    """Milliseconds of a batch that each part computes, simulated and, if it was, measured."""
    prediction, measured = report.prediction, report.measurement
    busy = [shortened(1000 * float(value) / prediction.batches) for value in prediction.busy]
    parts, hover = [*range(len(busy))], "part %{{y}} computes %{{x:.4~g}} ms, {}"
    name, simulated = "computes, simulated", hover.format("simulated")
    traces = [bars(name, parts, busy, part_marker(parts), simulated)]
    if measured is not None:
        timings = measured.totals.timings
        clock = [shortened(1000 * timing.busy / measured.steps) for timing in timings]
        traces.append(diamonds(parts, clock, hover.format("measured")))
    return seconds_figure(len(parts), "ms a step", *traces)
