"""TrainingReport -> tables, JSON: what a training came to, for people and for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from typing import Any

from rich.console import Console

from hgpart.report.running import (
    STALE,
    in_micro_batches,
    print_contradiction,
    schedule_fields,
    staleness_columns,
    staleness_fields,
)
from hgpart.report.tables import UNITS, counted, even_decimals, in_unit, print_table, ruled_table
from hgpart.run.training.loop import TrainingResult
from hgpart.schedule_wanted import Scheduling

CURVE_ROWS = 10
BAR = 40  # characters of the largest loss


@dataclass(frozen=True, eq=False)
class TrainingReport:
    """All that is said about a training.

    Attributes
    ----------
    model, data, dtype : str
        As they were asked for.
    devices : tuple of str
        Of each part.
    processes : int
    result : TrainingResult
    volume_bytes : int
        The plan's communication volume, of a forward pass of a batch of this training.
    scheduling : Scheduling
    norms : str
        What updates running statistics, ``micro-batch`` or ``batch``.
    peak_bytes : tuple of int or None
        The most that each part holds in a step, by the schedule, where that can be computed; see
        `hgpart.peak_bytes`.
    work_shares : tuple of float
        What each part has of the multiply-accumulates; none where work was measured.
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


def training_json(report: TrainingReport) -> str:
    """All figures as a JSON object; bytes are of all steps, and the volume of one.

    A loss that is no number (of a training that diverged) is null.
    """
    options, result = report.result.options, report.result
    timings, traffic = result.totals.timings, result.totals.traffic
    fields: dict[str, Any] = {
        "hgpart_version": version("hgpart"),
        "model": report.model,
        "data": report.data,
        "dtype": report.dtype,
        "k": len(report.devices),
        "processes": report.processes,
        **{name: getattr(options, name) for name in ("batch_size", "optimizer", "lr")},
        "micro_batches": report.scheduling.micro_batches,
        **schedule_fields(report.scheduling),
        "norms": report.norms,
        "recompute": report.scheduling.recompute,
        "peak_bytes": report.peak_bytes,
        "momentum": options.momentum if options.optimizer == "sgd" else None,
        "weight_decay": options.weight_decay,
        "seed": options.seed,
        "steps": len(result.losses),
        "steps_now": result.steps,
        "accuracy": result.accuracy,
        **{
            name: getattr(result, name)
            for name in ("accuracies", "learning_rates")
            if options.decay
        },
        "samples_per_second": result.samples_per_second,
        "forward_bytes": int(traffic.forward_bytes.sum()),
        "backward_bytes": int(traffic.backward_bytes.sum()),
        "uncounted_bytes": int(traffic.uncounted_bytes.sum()),
        "volume_bytes": report.volume_bytes,
        "losses": [loss if math.isfinite(loss) else None for loss in result.losses],
        "parts": [
            {"device": device, **vars(timing), **staleness_fields(result.staleness, part)}
            for part, (device, timing) in enumerate(zip(report.devices, timings, strict=True))
        ],
    }
    lines = [f'  "{name}": {json.dumps(value)}' for name, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def training_answer(report: TrainingReport) -> str:
    """Say what a training came to: its loss, its accuracy, its speed."""
    result = report.result
    facts = [f"loss {result.losses[-1]:.4g}" if result.losses else "no steps"]
    if result.accuracy is not None:
        facts.append(f"test accuracy {100 * result.accuracy:.2f} %")
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
    if result.accuracies:
        console.print(_epochs(result))
    if result.losses:
        console.print()
        _print_curve(result.losses, console)
    if steps:
        console.print()
        _print_parts(report, console, unit)
        busy = [timing.busy for timing in result.totals.timings]
        print_contradiction(console, report.model, report.work_shares, busy)
        console.print()
        _print_traffic(report, console, unit)


def _epochs(result: TrainingResult) -> str:
    """How many there were, the best of them, and what the learning rate came to."""
    best = max(result.accuracies)
    first, last = result.learning_rates[0], result.learning_rates[-1]
    return (
        f"{len(result.accuracies)} epochs, the best one {result.accuracies.index(best) + 1}: test "
        f"accuracy {100 * best:.2f} %; learning rate {first:g}, {last:.3g} in the last one"
    )


def _print_curve(losses: Sequence[float], console: Console) -> None:
    rows = runs(losses)
    largest = max((mean for _, _, mean in rows if math.isfinite(mean)), default=0.0)
    table = ruled_table(["steps", "mean loss", ""])
    table.columns[2].justify = "left"
    for first, last, mean in rows:
        filled = math.isfinite(mean) and largest > 0
        bar = "#" * round(BAR * mean / largest) if filled else ""
        table.add_row(f"{first}-{last}", f"{mean:.4f}", bar)
    print_table(console, "Loss", table)


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


def _print_parts(report: TrainingReport, console: Console, unit: str) -> None:
    timings = report.result.totals.timings
    busy = [timing.forward_busy + timing.backward_busy for timing in timings]
    waiting = [timing.forward_waiting + timing.backward_waiting for timing in timings]
    peaks = in_unit(report.peak_bytes, unit)
    headings, stale = staleness_columns(report.result.staleness)
    holds = f"holds {unit}"
    table = ruled_table(["device", "busy s", "waiting s", "waiting %", holds, *headings])
    columns = zip(report.devices, even_decimals(busy), even_decimals(waiting), peaks, strict=True)
    for part, (device, busy_text, waiting_text, peak) in enumerate(columns):
        total = busy[part] + waiting[part]
        share = f"{100 * waiting[part] / total:.1f}" if total else "-"
        more = [column[part] for column in stale]
        table.add_row(f"{part} ({device})", busy_text, waiting_text, share, peak, *more)
    print_table(console, "Time in the parts' forward and backward passes", table)
    if stale:
        console.print(STALE)


def _print_traffic(report: TrainingReport, console: Console, unit: str) -> None:
    traffic, steps = report.result.totals.traffic, report.result.steps
    sums = {
        "forward": int(traffic.forward_bytes.sum()),
        "backward": int(traffic.backward_bytes.sum()),
    }
    table = ruled_table([f"{unit} between devices", "a step", "all steps"])
    for way, total in sums.items():
        table.add_row(
            way, *even_decimals([total / steps / UNITS[unit]]), f"{total / UNITS[unit]:,.3f}"
        )
    table.add_row("the plan's volume", *even_decimals([report.volume_bytes / UNITS[unit]]), "")
    print_table(console, "Traffic", table)
