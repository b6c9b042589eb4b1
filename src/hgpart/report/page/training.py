"""TrainingReport -> its page: losses against steps, what each part did."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hgpart.report.page.document import Drawn, header, page, plot, section
from hgpart.report.page.drawing.figures import Figure, axis, line, shortened
from hgpart.report.page.measured_steps import devices_text, measured_sections
from hgpart.report.tables import counted
from hgpart.report.training import TrainingReport, training_answer, validated
from hgpart.run.training.epochs import Epoch

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
    figures: dict[str, Drawn] = {}
    body = [header(subject, [training_answer(report)])]
    if result.losses:
        figures["losses"] = curve = _losses_figure(result.losses)
        text = "Mean cross entropy of the batch of each step, before its update."
        body.append(section("Loss", text, plot("losses", curve, "Loss against steps")))
    if validated(result):
        figures["accuracies"] = curve = _accuracies_figure(validated(result))
        text = (
            "Share of the validation samples that are given their class, after each epoch. Point "
            "at one for its learning rate."
        )
        picture = plot("accuracies", curve, "Validation accuracy against epochs")
        body.append(section("Accuracy", text, picture))
    more, drawn = measured_sections(
        result.totals.timings, result.steps, result.timeline, result.planned
    )
    return page(f"{report.model}: a training", [*body, *more], {**figures, **drawn})


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


def _accuracies_figure(epochs: Sequence[tuple[Epoch, float]]) -> Figure:
    curve = line(
        "validation accuracy",
        [epoch.number for epoch, _ in epochs],
        [shortened(100 * accuracy) for _, accuracy in epochs],
        "epoch %{x}: %{y:.4~g} %, learning rate %{customdata}",
        look=2,
        customdata=[f"{epoch.rate:.3g}" for epoch, _ in epochs],
    )
    layout = {"xaxis": axis("epochs"), "yaxis": axis("% of the validation samples")}
    return Figure([curve], layout, height=420)
