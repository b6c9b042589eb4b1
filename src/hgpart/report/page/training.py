"""TrainingReport -> its page: losses against steps, what each part did."""

from __future__ import annotations

import math

import numpy as np

from hgpart.report.page.document import Drawn, header, page, plot
from hgpart.report.page.drawing.figures import Figure, shortened
from hgpart.report.page.measured_steps import devices_text, measured_sections
from hgpart.report.partition.looks import COLOURS
from hgpart.report.tables import counted
from hgpart.report.training import TrainingReport, training_answer

MOST_POINTS = 1000  # of a curve; more are means of steps


def training_page(report: TrainingReport) -> str:
    """The page of a training: what it came to, its losses, what each part did."""
    result, options = report.result, report.result.options
    subject = [
        report.model,
        report.data,
        f"{counted(len(result.losses), 'step')} of {counted(options.batch_size, 'sample')}",
        f"{options.optimizer}, learning rate {options.lr:g}",
        devices_text(report.devices),
    ]
    figures: dict[str, Drawn] = {}
    body = [header(subject, [training_answer(report)])]
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
    more, drawn = measured_sections(
        result.totals.timings, result.steps, result.timeline, result.planned
    )
    return page(f"{report.model}: a training", [*body, *more], {**figures, **drawn})


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
