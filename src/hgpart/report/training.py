"""TrainingReport -> tables, JSON: what a training came to, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Console

from hgpart.files.columns import BYTES, UNITS, Column, fields_of
from hgpart.files.fields import report_json
from hgpart.report.running import (
    STALE,
    STALE_PUSHES,
    in_micro_batches,
    print_contradiction,
    schedule_fields,
    staleness_columns,
    timing_columns,
    traffic_fields,
)
from hgpart.report.tables import counted, even_decimals, print_columns, print_table
from hgpart.run.training.epochs import Epoch
from hgpart.run.training.loop import TrainingResult
from hgpart.run.training.scores import Loss
from hgpart.schedule_wanted import Scheduling

CURVE_ROWS = 10
BAR = 40  # characters that the largest loss is drawn with


@dataclass(frozen=True, eq=False)
class TrainingReport:
    """All that is said about a training.

    Attributes
    ----------
    model, data, dtype : str
        What was asked for.
    devices : tuple of str
        Device of each part.
    volume_bytes : int
        The plan's communication volume in a forward pass of a batch of this training.
    norms : str
        What updates running statistics, ``micro-batch`` or ``batch``.
    peak_bytes : tuple of int or None
        The most that each part holds in a step, by the schedule, where that can be computed; see
        `hgpart.peak_bytes`.
    work_shares : tuple of float
        Each part's share of the multiply-accumulates; empty where work was measured.
    autocast : str or None
        The type of autocast; maps may then travel in it.
    way : str or None
        How parameter servers trained whole models, in words; None for a plan. The volume is then
        that of a push by all workers, and `devices` has the servers behind the workers.
    """

    model: str
    data: str
    dtype: str
    devices: tuple[str, ...]
    processes: int
    result: TrainingResult
    volume_bytes: int
    scheduling: Scheduling = field(default_factory=Scheduling)
    norms: str = "micro-batch"
    peak_bytes: tuple[int | None, ...] = ()
    work_shares: tuple[float, ...] = ()
    autocast: str | None = None
    way: str | None = None


def training_columns(report: TrainingReport) -> list[Column[int]]:
    """What each part did, and the most that it holds."""
    timings = report.result.totals.timings

    def waiting(part: int) -> float | None:
        total = timings[part].busy + timings[part].waiting
        return timings[part].waiting / total if total else None

    def peak(part: int) -> int | None:
        return report.peak_bytes[part]

    return [
        *timing_columns(report.devices, timings, what="part" if report.way is None else "process"),
        Column("", "waiting", "", "%", waiting, decimals=1),
        *([Column("", "holds", "", BYTES, peak)] if report.peak_bytes else []),
        *staleness_columns(report.result.staleness),
    ]


def training_json(report: TrainingReport) -> str:
    """All figures as a JSON object; bytes are those of all steps, and the volume that of one.

    A loss that is no number (of a training that diverged) is null.
    """
    options, result = report.result.options, report.result
    classes = result.loss.of_classes
    columns = training_columns(report)
    by_plan = {
        **schedule_fields(report.scheduling),
        "norms": report.norms,
        "peak_bytes": report.peak_bytes,
    }
    return report_json(
        {
            "model": report.model,
            "data": report.data,
            "dtype": report.dtype,
            "autocast": report.autocast,
            "k": len(report.devices),
            "processes": report.processes,
            **{name: getattr(options, name) for name in ("batch_size", "optimizer", "lr")},
            **(by_plan if report.way is None else {"way": report.way}),
            "momentum": options.momentum if options.optimizer == "sgd" else None,
            "weight_decay": options.weight_decay,
            "seed": options.seed,
            "steps": len(result.losses),
            "steps_now": result.steps,
            "accuracy": result.accuracy,
            **({} if classes else {"validation_loss": result.validation_loss}),
            "accuracies" if classes else "validation_losses": [
                epoch.validation for epoch in result.epochs
            ],
            **(
                {}
                if result.test is None
                else {"test_accuracy" if classes else "test_loss": result.test}
            ),
            "learning_rates": [epoch.rate for epoch in result.epochs],
            "best_epoch": None if result.best is None else result.best.number,
            "samples_per_second": result.samples_per_second,
            **traffic_fields(result.totals.traffic),
            "volume_bytes": report.volume_bytes,
            "losses": result.losses,
            "parts": [fields_of(columns, part) for part in range(len(report.devices))],
        }
    )


def training_answer(report: TrainingReport) -> str:
    """What a training came to: its loss, its accuracy, its speed."""
    result = report.result
    facts = [f"loss {result.losses[-1]:.4g}" if result.losses else "no steps"]
    score = result.accuracy if result.loss.of_classes else result.validation_loss
    if score is not None:
        facts.append(_score_said(score, result.loss))
    if result.test is not None:
        facts.append(_score_said(result.test, result.loss, "test"))
    if result.samples_per_second is not None:
        facts.append(f"{result.samples_per_second:,.1f} samples/s")
    return ", ".join(facts)


def print_training(report: TrainingReport, console: Console, unit: str) -> None:
    """Print the loss and the accuracy first, then how they came about."""
    result, steps = report.result, report.result.steps
    console.print(training_answer(report), style="bold")
    before = len(result.losses) - steps
    resumed = f", {before} of them before it was resumed" if before else ""
    divided = in_micro_batches(report.scheduling, report.norms)
    console.print(
        f"{report.model} on {report.data}, {counted(len(result.losses), 'step')} of "
        f"{counted(report.result.options.batch_size, 'sample')}{divided}{resumed}"
    )
    if report.way is not None:
        console.print(report.way)
    if validated(result):
        console.print(_epochs(result))
    if result.losses:
        console.print()
        _print_curve(result.losses, console)
    if steps:
        console.print()
        parts, title = range(len(report.devices)), "Time in the parts' forward and backward passes"
        stale = STALE
        if report.way is not None:
            title, stale = "Time of workers in passes, of servers in updates", STALE_PUSHES
        print_columns(console, title, training_columns(report), parts, unit)
        if result.staleness:
            console.print(stale)
        busy = [timing.busy for timing in result.totals.timings]
        print_contradiction(console, report.model, report.work_shares, busy)
        console.print()
        _print_traffic(report, console, unit)


def validated(result: TrainingResult) -> list[tuple[Epoch, float]]:
    """Epochs that were validated, with their scores."""
    return [(epoch, epoch.validation) for epoch in result.epochs if epoch.validation is not None]


def _score_said(score: float, loss: Loss, samples: str = "validation") -> str:
    if loss.of_classes:
        return f"{samples} accuracy {100 * score:.2f} %"
    return f"{samples} loss {score:.4g}"


def _epochs(result: TrainingResult) -> str:
    """The number of epochs, the best of them, and the learning rates."""
    scored = validated(result)
    best, score = max(scored, key=lambda item: result.loss.goodness(item[1]))
    first, last = scored[0][0].rate, scored[-1][0].rate
    changes = "" if first == last else f"; learning rate {first:.3g}, {last:.3g} in the last one"
    return (
        f"{counted(len(scored), 'epoch')}, the best one {best.number}: "
        f"{_score_said(score, result.loss)}{changes}"
    )


def _print_curve(losses: Sequence[float], console: Console) -> None:
    means = runs(losses)
    largest = max((mean for _, _, mean in means if math.isfinite(mean)), default=0.0)
    rows = []
    for first, last, mean in means:
        filled = math.isfinite(mean) and largest > 0
        bar = "#" * round(BAR * mean / largest) if filled else ""
        rows.append((f"{first}-{last}", f"{mean:.4f}", bar))
    print_table(console, "Loss", ["steps", "mean loss", ""], rows, left=(0, 2))


def runs(losses: Sequence[float]) -> list[tuple[int, int, float]]:
    """First step, last step and mean loss of at most ten runs of steps.

    >>> runs([4.0, 2.0, 1.0])
    [(1, 1, 4.0), (2, 2, 2.0), (3, 3, 1.0)]
    >>> runs([*range(100)])[1]
    (11, 20, 14.5)
    """
    count = min(CURVE_ROWS, len(losses))
    ends = [len(losses) * at // count for at in range(count + 1)]
    return [
        (first + 1, last, sum(losses[first:last]) / (last - first))
        for first, last in pairwise(ends)
    ]


def _print_traffic(report: TrainingReport, console: Console, unit: str) -> None:
    traffic, steps = report.result.totals.traffic, report.result.steps
    size = UNITS[unit]
    rows = []
    names, volume = ("forward", "backward"), "the plan's volume"
    if report.way is not None:
        names, volume = ("pushed", "fetched"), "all weights, by all"
    elif report.autocast is not None:
        volume += f", in {report.dtype}"
    for name, direction in zip(names, ("forward", "backward"), strict=True):
        total = int(getattr(traffic, f"{direction}_bytes").sum())
        rows.append((name, *even_decimals([total / steps / size]), f"{total / size:,.3f}"))
    rows.append((volume, *even_decimals([report.volume_bytes / size]), ""))
    headings = [f"{unit} between devices", "a step", "all steps"]
    print_table(console, "Traffic", headings, rows)
