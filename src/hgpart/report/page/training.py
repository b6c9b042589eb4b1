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
        text = f"Mean of {result.loss.name} over the batch of each step, before its update."
        body.append(section("Loss", text, plot("losses", curve, "Loss against steps")))
    if scored := validated(result):
        name, unit, text = (
            ("accuracy", "%", "Share of the validation samples that are given their class")
            if result.loss.of_classes
            else ("loss", "", "Loss of the validation samples")
        )
        figures["validation"] = curve = _scores_figure(scored, name, unit)
        text += ", after each epoch. Point at one for its learning rate."
        picture = plot("validation", curve, f"Validation {name} against epochs")
        body.append(section("Validation", text, picture))
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


def _scores_figure(scored: Sequence[tuple[Epoch, float]], name: str, unit: str) -> Figure:
    factor = 100 if unit == "%" else 1
    curve = line(
        f"validation {name}",
        [epoch.number for epoch, _ in scored],
        [shortened(factor * score) if math.isfinite(score) else None for _, score in scored],
        f"epoch %{{x}}: %{{y:.4~g}} {unit}, learning rate %{{customdata}}",
        look=2,
        customdata=[f"{epoch.rate:.3g}" for epoch, _ in scored],
    )
    layout = {"xaxis": axis("epochs"), "yaxis": axis(f"{name} {unit}".rstrip())}
    return Figure([curve], layout, height=420)
