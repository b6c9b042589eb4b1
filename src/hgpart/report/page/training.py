"""TrainingReport -> its page: losses against steps, what each part did."""

from __future__ import annotations

import math

import numpy as np

from hgpart.report.page.document import Drawings, header, page, section
from hgpart.report.page.drawing.figures import Figure, axis, line, shortened
from hgpart.report.page.running import devices_text, measured_sections
from hgpart.report.tables import counted
from hgpart.report.training import TrainingReport, training_answer

MOST_POINTS = 1000  # points of a curve; more are means of steps


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
    drawn = Drawings()
    body = [header(subject, [training_answer(report)])]
    if result.losses:
        text = "Mean cross entropy of the batch of each step, before its update."
        picture = drawn.plot("losses", _losses_figure(result.losses), "Loss against steps")
        body.append(section("Loss", text, picture))
    if result.accuracies:
        curve = _accuracies_figure(result.accuracies, result.learning_rates)
        text = (
            "Share of the test samples that are given their class, after each epoch. Point at one "
            "for its learning rate."
        )
        picture = drawn.plot("accuracies", curve, "Test accuracy against epochs")
        body.append(section("Accuracy", text, picture))
    about = result.totals.timings, result.steps, result.timeline, result.planned
    return page(f"{report.model}: a training", [*body, *measured_sections(*about, drawn)], drawn)


def _losses_figure(losses: tuple[float, ...]) -> Figure:
    runs = np.array_split(np.arange(len(losses)), min(len(losses), MOST_POINTS))
    means = [float(np.mean([losses[at] for at in run])) for run in runs]
    curve = line(
        "loss",
        [int(run[-1]) + 1 for run in runs],
        [shortened(mean) if math.isfinite(mean) else None for mean in means],
        "step %{x}: %{y:.4~g}",
    )
    layout = {"xaxis": axis("steps", from_zero=True), "yaxis": axis("loss", from_zero=True)}
    return Figure([curve], layout, height=420)


def _accuracies_figure(accuracies: tuple[float, ...], rates: tuple[float, ...]) -> Figure:
    curve = line(
        "test accuracy",
        [*range(1, len(accuracies) + 1)],
        [shortened(100 * accuracy) for accuracy in accuracies],
        "epoch %{x}: %{y:.4~g} %, learning rate %{customdata}",
        look=2,
        customdata=[f"{rate:.3g}" for rate in rates],
    )
    layout = {"xaxis": axis("epochs"), "yaxis": axis("% of the test samples")}
    return Figure([curve], layout, height=420)
