"""Prediction, Measurement -> PredictionReport: a predicted step, for programs and for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from hgpart.arrays import Float64
from hgpart.execution.records.events import Timeline, planned_events
from hgpart.files.columns import BYTES, Column, fields_of
from hgpart.files.fields import report_json
from hgpart.machines.machine import Machine
from hgpart.prediction.device_times import Times, cautions, sources
from hgpart.prediction.predict import Prediction
from hgpart.report.running import in_micro_batches, schedule_fields
from hgpart.report.tables import counted, print_columns
from hgpart.run.measuring import Measurement
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.drawing import draw_times

SAME = 0.005  # share of a step that is not worth a line


@dataclass(frozen=True, eq=False)
class PredictionReport:
    """A prediction of a step, and what it is for.

    Attributes
    ----------
    times : Times
        The times of layers that it was simulated with.
    measurement : Measurement or None
        Steps on this machine, if they were run.
    """

    model: str
    machine: Machine
    times: Times
    prediction: Prediction
    scheduling: Scheduling
    measurement: Measurement | None = None

    @property
    def cautions(self) -> tuple[str, ...]:
        """Why the figures can't be trusted, if anything is known against them."""
        measured = "" if self.measurement is None else self.measurement.caution
        known = cautions(self.machine, self.times)
        return (*known, measured) if measured else known

    @property
    def seconds(self) -> float:
        """Simulated seconds of a batch, where one follows another."""
        return self.prediction.period / self.prediction.batches

    @property
    def measured_seconds(self) -> float | None:
        """Measured seconds of a batch."""
        measured = self.measurement
        return None if measured is None else measured.seconds / measured.steps

    @property
    def error(self) -> float | None:
        """The difference of simulated and measured seconds, relative to the measured ones."""
        measured = self.measured_seconds
        return None if measured is None else self.seconds / measured - 1

    @property
    def timeline(self) -> Timeline:
        """The simulated step, in the form of a measured one."""
        return (planned_events(self.prediction.schedule.order, self.prediction.spans),)


def prediction_columns(report: PredictionReport) -> list[Column[int]]:
    """What each part computes, sends and holds, beside what was measured."""
    prediction, measured = report.prediction, report.measurement
    batches, devices = prediction.batches, report.machine.devices

    def seconds(values: Float64) -> Callable[[int], float]:
        return lambda part: float(values[part]) / batches

    def share(part: int) -> float:
        return float(prediction.busy[part] / (prediction.busy[part] + prediction.idle[part]))

    def sums(axis: int) -> Callable[[int], int]:
        return lambda part: int(prediction.sent_bytes.sum(axis)[part]) // batches

    def offloaded(part: int) -> int:
        """Bytes that it writes to slower memory and reads from there."""
        return int(prediction.offloaded_bytes[part]) // batches

    offloads = bool(prediction.offloaded_bytes.any())
    columns: list[Column[int]] = [
        Column("part", value=lambda part: part),
        Column("device", value=lambda part: devices[part].kind),
        Column("", "part", value=lambda part: f"{part} ({devices[part].kind})"),
        Column("busy_seconds", "busy", "", "ms", seconds(np.asarray(prediction.busy))),
        Column("idle_seconds", "idle", "", "ms", seconds(np.asarray(prediction.idle))),
        Column("", "busy", "", "%", share, decimals=1),
        Column("sent_bytes", "sends", "", BYTES, sums(1)),
        Column("received_bytes", "receives", "", BYTES, sums(0)),
        Column("peak_bytes", "holds", "", BYTES, prediction.peak_bytes.__getitem__),
        Column("offloaded_bytes", "offloads" * offloads, "", BYTES, offloaded),
    ]
    if measured is not None:

        def busy(part: int) -> float:
            return measured.totals.timings[part].busy / measured.steps

        columns.insert(6, Column("measured_busy_seconds", "measured busy", "", "ms", busy))
    return columns


def prediction_json(report: PredictionReport) -> str:
    """All figures as a JSON object, a line for each key and part; of a batch, in seconds."""
    prediction, measured = report.prediction, report.measurement
    k, columns = prediction.schedule.k, prediction_columns(report)
    fields: dict[str, Any] = {
        "model": report.model,
        "k": k,
        "machine": report.machine.name,
        "times": sources(report.machine, report.times),
        "cautions": report.cautions,
        "batch_size": prediction.batch_size,
        **schedule_fields(report.scheduling),
        "simulated_seconds": report.seconds,
        "simulated_seconds_alone": prediction.seconds / prediction.batches,
        "simulated_samples_per_second": prediction.samples_per_second,
        "simulated_bubble": prediction.bubble,
        "update_seconds": prediction.update_seconds,
        "sent_bytes": int(prediction.sent_bytes.sum()) // prediction.batches,
    }
    if measured is not None:
        fields |= {
            "measured_steps": measured.steps,
            "measured_seconds": report.measured_seconds,
            "measured_samples_per_second": measured.samples_per_second,
            "measured_bubble": measured.bubble,
            "error": report.error,
        }
    return report_json({**fields, "parts": [fields_of(columns, part) for part in range(k)]})


def prediction_answer(report: PredictionReport) -> str:
    """What a step should take: one line."""
    return (
        f"{1000 * report.seconds:,.1f} ms a step, "
        f"{report.prediction.samples_per_second:,.1f} samples/s (simulated)"
    )


def prediction_notes(report: PredictionReport) -> Iterator[str]:
    """What is known against it; one step alone; how far it is from what was measured."""
    yield from report.cautions
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
