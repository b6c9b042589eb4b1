"""PredictionReport -> tables and a drawing, for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from hgpart.report.prediction.columns import prediction_columns
from hgpart.report.prediction.record import PredictionReport
from hgpart.report.running import in_micro_batches
from hgpart.report.tables import counted, print_columns
from hgpart.schedules.drawing import draw_times

SAME = 0.005  # share of a step that is not worth a line


def prediction_answer(report: PredictionReport) -> str:
    """What a step should take: one line."""
    return (
        f"{1000 * report.seconds:,.1f} ms a step, "
        f"{report.prediction.samples_per_second:,.1f} samples/s (simulated)"
    )


def prediction_notes(report: PredictionReport) -> Iterator[str]:
    """What one step alone should take, and how far the simulation is from what was measured."""
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
    unit : str
        Unit of bytes, one of `UNITS`.
    """
    prediction, k = report.prediction, report.prediction.schedule.k
    console.print(prediction_answer(report), style="bold")
    divided = in_micro_batches(report.scheduling)
    console.print(
        f"{report.model} on {counted(k, 'device')} of {report.machine.name}, steps of "
        f"{prediction.batch_size} samples{divided}, forward and backward"
    )
    for line in prediction_notes(report):
        console.print(line)
    console.print()
    title = "Parts, in a step (simulated)"
    print_columns(console, title, prediction_columns(report), range(k), unit)
    console.print()
    if prediction.update_seconds:
        console.print(
            f"The optimizer takes {1000 * prediction.update_seconds:,.1f} ms more after a step (by "
            "the times of layers)"
        )
    drawn = draw_times(
        prediction.schedule, prediction.spans, f"idle {100 * prediction.bubble:.0f} % (simulated)"
    )
    for line in drawn.splitlines()[: 1 + k]:
        console.out(line, highlight=False)
