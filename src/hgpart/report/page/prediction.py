"""PredictionReport -> its page: what a step should take, and what each part should do in it."""

from __future__ import annotations

from typing import Any

from hgpart.report.page.document import Drawn, header, page, plot
from hgpart.report.page.drawing.figures import TICKS_DOWN, Figure, part_ticks, shortened
from hgpart.report.page.drawing.timelines import PART_HEIGHT, timeline_figure
from hgpart.report.partition.looks import GREY, part_marker
from hgpart.report.prediction.printing import prediction_answer, prediction_notes
from hgpart.report.prediction.record import PredictionReport


def prediction_page(report: PredictionReport) -> str:
    """The page of a prediction, beside what was measured, if it was."""
    prediction, measured = report.prediction, report.measurement
    k = prediction.schedule.k
    subject = [
        report.model,
        f"{k} device{'s' * (k > 1)} of {report.machine.name}",
        f"steps of {prediction.batch_size} samples, {prediction.schedule.rule}",
        f"times: {report.times}",
    ]
    lines = [prediction_answer(report), *prediction_notes(report)]
    last = measured.timeline[-1] if measured is not None and measured.timeline else ()
    figures: dict[str, Drawn] = {"seconds": (bars := _seconds_figure(report))}
    figures["step"] = when = timeline_figure(k, last, report.timeline[0], "ms")
    above = "The thin row is the step as it is simulated, the thick one below it the last one "
    above += "measured, with a thin line where it waited for a message. "
    body = [
        header(subject, lines),
        "<section><h2>What a step takes</h2>",
        "<p>What each part computes, simulated. The busiest sets the pace."
        f"{' A diamond is what was measured.' if measured is not None else ''}</p>",
        plot("seconds", bars, "What each part computes in a step"),
        "</section>",
        "<section><h2>What each part does when</h2>",
        f"<p>{above if last else ''}A row is a part, in its colour, a box what it does of one "
        "micro-batch.</p>",
        plot("step", when, "What each part does when in a step"),
        "</section>",
    ]
    return page(f"{report.model}: a step, simulated", body, figures)


def _seconds_figure(report: PredictionReport) -> Figure:
    """Milliseconds of a batch that each part computes, simulated and, if it was, measured."""
    prediction, measured = report.prediction, report.measurement
    parts = list(range(len(prediction.busy)))
    busy = [1000 * float(seconds) / prediction.batches for seconds in prediction.busy]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "computes, simulated",
            "y": parts,
            "x": [*map(shortened, busy)],
            "marker": part_marker(parts),
            "hovertemplate": "part %{y} computes %{x:.4~g} ms, simulated<extra></extra>",
        }
    ]
    if measured is not None:
        timings = measured.totals.timings
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "measured",
                "y": parts,
                "x": [shortened(1000 * one.busy / measured.steps) for one in timings],
                "marker": {
                    "symbol": "diamond",
                    "size": 12,
                    "color": GREY,
                    "line": {"width": 1, "color": "#ffffff"},
                },
                "hovertemplate": "part %{y} computes %{x:.4~g} ms, measured<extra></extra>",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "ms a step"}, "rangemode": "tozero"},
        "yaxis": {
            "title": {"text": "part"},
            "autorange": "reversed",
            **part_ticks(len(parts), TICKS_DOWN),
        },
        "meta": {"legend": "above"},
    }
    return Figure(data, layout, height=PART_HEIGHT * len(parts) + 150)
