"""TrainingReport -> its page: losses against steps, what each part did."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hgpart.report.page.document import Drawings, header, page, section
from hgpart.report.page.drawing.figures import Figure, axis, line, shortened
from hgpart.report.page.running import devices_text, measured_sections
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
        devices_text(report.devices) if report.way is None else report.way,
    ]
    drawn = Drawings()
    body = [header(subject, [training_answer(report)])]
    if result.losses:
        text = f"Mean of {result.loss.name} over the batch of each step, before its update."
        picture = drawn.plot("losses", _losses_figure(result.losses), "Loss against steps")
        body.append(section("Loss", text, picture))
    if scored := validated(result):
        name, unit, text = (
            ("accuracy", "%", "Share of the validation samples that are given their class")
            if result.loss.of_classes
            else ("loss", "", "Loss of the validation samples")
        )
        text += ", after each epoch. Point at one for its learning rate."
        curve = _scores_figure(scored, name, unit)
        picture = drawn.plot("validation", curve, f"Validation {name} against epochs")
        body.append(section("Validation", text, picture))
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
