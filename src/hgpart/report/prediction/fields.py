"""PredictionReport -> JSON: all figures, for programs."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

from hgpart.report.prediction.record import PredictionReport
from hgpart.report.running import schedule_fields


def prediction_json(report: PredictionReport) -> str:
    """All figures as a JSON object, a line for each key and part; of a batch, in seconds."""
    prediction, batches = report.prediction, report.prediction.batches
    fields: dict[str, Any] = {
        "hgpart_version": version("hgpart"),
        "model": report.model,
        "k": prediction.schedule.k,
        "machine": report.machine.name,
        "times": report.times,
        "batch_size": prediction.batch_size,
        "micro_batches": report.scheduling.micro_batches,
        **schedule_fields(report.scheduling),
        "recompute": report.scheduling.recompute,
        "simulated_seconds": report.seconds,
        "simulated_seconds_alone": prediction.seconds / batches,
        "simulated_samples_per_second": prediction.samples_per_second,
        "simulated_bubble": prediction.bubble,
        "update_seconds": prediction.update_seconds,
        "sent_bytes": int(prediction.sent_bytes.sum()) // batches,
    }
    if report.measurement is not None:
        fields |= {
            "measured_steps": report.measurement.steps,
            "measured_seconds": report.measured_seconds,
            "measured_samples_per_second": report.measurement.samples_per_second,
            "measured_bubble": report.measurement.bubble,
            "error": report.error,
        }
    parts = []
    for part in range(prediction.schedule.k):
        of_part: dict[str, Any] = {
            "part": part,
            "device": report.machine.devices[part].kind,
            "busy_seconds": float(prediction.busy[part]) / batches,
            "idle_seconds": float(prediction.idle[part]) / batches,
            "sent_bytes": int(prediction.sent_bytes[part].sum()) // batches,
            "received_bytes": int(prediction.sent_bytes[:, part].sum()) // batches,
            "peak_bytes": prediction.peak_bytes[part],
        }
        if report.measurement is not None:
            timing = report.measurement.totals.timings[part]
            of_part["measured_busy_seconds"] = timing.busy / report.measurement.steps
        parts.append(of_part)
    lines = [f'  "{name}": {json.dumps(value)}' for name, value in fields.items()]
    listed = ",\n".join(f"    {json.dumps(part)}" for part in parts)
    return "{\n" + ",\n".join(lines) + f',\n  "parts": [\n{listed}\n  ]\n}}\n'
