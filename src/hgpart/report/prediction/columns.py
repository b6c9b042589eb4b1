"""PredictionReport -> the figures of each part, of a batch, in seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hgpart.arrays import Float64
from hgpart.files.columns import BYTES, Column
from hgpart.report.prediction.record import PredictionReport


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
    ]
    if measured is not None:

        def busy(part: int) -> float:
            return measured.totals.timings[part].busy / measured.steps

        columns.insert(6, Column("measured_busy_seconds", "measured busy", "", "ms", busy))
    return columns
