"""TrainingReport, RunReport -> their pages: losses against steps, seconds of each part."""

from __future__ import annotations

import math

import numpy as np

from hgpart.execution.events import Timeline
from hgpart.execution.totals import Timing
from hgpart.report.page.document import Drawn, header, page, plot
from hgpart.report.page.figures import Figure, shortened
from hgpart.report.page.looks import COLOURS
from hgpart.report.page.measured_steps import last_step_figure, seconds_figure
from hgpart.report.running import RunReport
from hgpart.report.training import TrainingReport

MOST_POINTS = 1000  # of a curve; more are means of steps


def training_page(report: TrainingReport) -> str:
    """The page of a training: what it came to, its losses, what each part did."""
    result, options = report.result, report.result.options
    facts = [f"loss {result.losses[-1]:.4g}" if result.losses else "no steps"]
    if result.accuracy is not None:
        facts.append(f"test accuracy {100 * result.accuracy:.2f} %")
    if result.samples_per_second is not None:
        facts.append(f"{result.samples_per_second:,.1f} samples/s")
    subject = [
        report.model,
        report.data,
        f"{len(result.losses)} steps of {options.batch_size} samples",
        f"{options.optimizer}, learning rate {options.lr:g}",
        *_devices(report.devices),
    ]
    figures: dict[str, Drawn] = {}
    body = [header(subject, [", ".join(facts)])]
    if result.losses:
        figures["losses"] = curve = _losses_figure(result.losses)
        body += [
            "<section><h2>Loss</h2>",
            "<p>Mean cross entropy of the batch of each step, before its update.</p>",
            plot("losses", curve, "Loss against steps"),
            "</section>",
        ]
    if result.accuracies:
        figures["accuracies"] = curve = _accuracies_figure(result.accuracies, result.learning_rates)
        body += [
            "<section><h2>Accuracy</h2>",
            "<p>Share of the test samples that are given their class, after each epoch. Point at "
            "one for its learning rate.</p>",
            plot("accuracies", curve, "Test accuracy against epochs"),
            "</section>",
        ]
    more, drawn = _measured(result.totals.timings, result.steps, result.timeline)
    return page(f"{report.model}: a training", [*body, *more], {**figures, **drawn})


def run_page(report: RunReport) -> str:
    """The page of a run: what a step took, and what each part did in it."""
    measured = report.measurement
    passes = "forward and backward" if measured.backward else "forward"
    subject = [
        report.model,
        f"{measured.steps} steps of {measured.batch_size} samples, {passes}",
        *_devices(report.devices),
    ]
    milliseconds = 1000 * measured.seconds / measured.steps
    facts = f"{measured.samples_per_second:,.1f} samples/s, {milliseconds:,.1f} ms a step"
    body, drawn = _measured(measured.totals.timings, measured.steps, measured.timeline)
    return page(f"{report.model}: a run", [header(subject, [facts]), *body], drawn)


def _devices(devices: tuple[str, ...]) -> list[str]:
    return [f"{len(devices)} devices: {', '.join(dict.fromkeys(devices))}"]


def _measured(
    timings: tuple[Timing, ...], steps: int, timeline: Timeline
) -> tuple[list[str], dict[str, Drawn]]:
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


def _losses_figure(losses: tuple[float, ...]) -> Figure:
    runs = np.array_split(np.arange(len(losses)), min(len(losses), MOST_POINTS))
    means = [float(np.mean([losses[at] for at in run])) for run in runs]
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "loss",
            "x": [int(run[-1]) + 1 for run in runs],
            "y": [shortened(mean) if math.isfinite(mean) else None for mean in means],
            "line": {"color": COLOURS[0], "width": 2},
            "hovertemplate": "step %{x}: %{y:.4~g}<extra></extra>",
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "steps"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "loss"}, "rangemode": "tozero"},
    }
    return Figure(data, layout, height=420)


def _accuracies_figure(accuracies: tuple[float, ...], rates: tuple[float, ...]) -> Figure:
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "test accuracy",
            "x": list(range(1, len(accuracies) + 1)),
            "y": [shortened(100 * one) for one in accuracies],
            "customdata": [f"{rate:.3g}" for rate in rates],
            "line": {"color": COLOURS[2], "width": 2},
            "hovertemplate": "epoch %{x}: %{y:.4~g} %, learning rate %{customdata}<extra></extra>",
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "epochs"}},
        "yaxis": {"title": {"text": "% of the test samples"}},
    }
    return Figure(data, layout, height=420)
