"""PredictionReport -> JSON: all figures, for programs."""

from __future__ import annotations

from typing import Any

from hgpart.files.columns import fields_of
from hgpart.files.fields import report_json
from hgpart.report.prediction.columns import prediction_columns
from hgpart.report.prediction.record import PredictionReport
from hgpart.report.running import schedule_fields


def prediction_json(report: PredictionReport) -> str:
    """All figures as a JSON object, a line for each key and part; of a batch, in seconds."""
    prediction, measured = report.prediction, report.measurement
    k, columns = prediction.schedule.k, prediction_columns(report)
    fields: dict[str, Any] = {
        "model": report.model,
        "k": k,
        "machine": report.machine.name,
        "times": report.times,
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
