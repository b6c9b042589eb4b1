"""PredictionReport -> tables and a drawing, for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from hgpart.report.prediction.record import PredictionReport
from hgpart.report.running import in_micro_batches
from hgpart.report.tables import UNITS, even_decimals, in_unit, print_table, ruled_table
from hgpart.schedules.drawing import draw_times

SAME = 0.005  # share of a step that nobody need know of


def prediction_answer(report: PredictionReport) -> str:
    """Say what a step should take."""
    return (
        f"{1000 * report.seconds:,.1f} ms a step, "
        f"{report.prediction.samples_per_second:,.1f} samples/s (simulated)"
    )


def prediction_notes(report: PredictionReport) -> Iterator[str]:
    """Say what one step alone should take, and how far the simulation is from what was measured."""
    alone = report.prediction.seconds / report.prediction.batches
    if alone > report.seconds * (1 + SAME):
        yield (
            f"One step alone: {1000 * alone:,.1f} ms; as one follows another, parts that are done "
            "begin the next one"
        )
    if report.measured_seconds is not None and report.error is not None:
        yield (
            f"Measured: {1000 * report.measured_seconds:,.1f} ms a step; the simulation says "
            f"{100 * report.error:+.1f} %"
        )


def print_prediction(report: PredictionReport, console: Console, unit: str) -> None:
    """Print the seconds first, then what each part does in a step, and when.

    Parameters
    ----------
    report : PredictionReport
    console : Console
    unit : str
        What bytes are printed in, one of `UNITS`.
    """
    prediction, k = report.prediction, report.prediction.schedule.k
    console.print(prediction_answer(report), style="bold")
    divided = in_micro_batches(report.scheduling)
    console.print(
        f"{report.model} on {k} device{'s' * (k > 1)} of {report.machine.name}, steps of "
        f"{prediction.batch_size} samples{divided}, forward and backward"
    )
    for line in prediction_notes(report):
        console.print(line)
    console.print()
    _print_parts(report, console, unit)
    console.print()
    if prediction.update_seconds:
        console.print(
            f"Optimizer behind a step: {1000 * prediction.update_seconds:,.1f} ms more (by the "
            "times of layers)"
        )
    drawn = draw_times(
        prediction.schedule, prediction.spans, f"idle {100 * prediction.bubble:.0f} % (simulated)"
    )
    for line in drawn.splitlines()[: 1 + k]:
        console.out(line, highlight=False)


def _print_parts(report: PredictionReport, console: Console, unit: str) -> None:
    prediction, k = report.prediction, report.prediction.schedule.k
    batches, measured = report.prediction.batches, report.measurement
    busy = [1000 * seconds / batches for seconds in prediction.busy]
    idle = [1000 * seconds / batches for seconds in prediction.idle]
    headings = ["part", "busy ms", "idle ms", "busy %"]
    columns = [
        [f"{part} ({report.machine.devices[part].kind})" for part in range(k)],
        even_decimals(busy),
        even_decimals(idle),
        [f"{100 * one / (one + other):.1f}" for one, other in zip(busy, idle, strict=True)],
    ]
    if measured is not None:
        timings = measured.totals.timings
        headings.append("measured busy ms")
        columns.append(even_decimals([1000 * one.busy / measured.steps for one in timings]))
    for heading, axis in ((f"sends {unit}", 1), (f"receives {unit}", 0)):
        sizes = prediction.sent_bytes.sum(axis) / batches
        headings.append(heading)
        columns.append(even_decimals([size / UNITS[unit] for size in sizes]))
    headings.append(f"holds {unit}")
    columns.append(in_unit(prediction.peak_bytes, unit))
    table = ruled_table(headings)
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    print_table(console, "Parts, in a step (simulated)", table)
