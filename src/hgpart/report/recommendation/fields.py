"""Recommendation -> JSON: all figures, for programs."""

from __future__ import annotations

from typing import Any

from hgpart.files.columns import fields_of
from hgpart.files.fields import report_json
from hgpart.recommendation.ranking import Ranked, Recommendation
from hgpart.report.recommendation.columns import ranked_columns
from hgpart.report.running import schedule_fields


def recommendation_json(recommendation: Recommendation) -> str:
    """All figures as a JSON object, a line for each key and way; of a batch, in seconds."""
    columns = ranked_columns(recommendation)

    def fields(way: Ranked) -> dict[str, Any]:
        return {
            **fields_of(columns, way),
            **schedule_fields(way.scheduling),
            "needed_bytes": way.needed_bytes,
        }

    return report_json(
        {
            "model": recommendation.model,
            "devices": recommendation.devices,
            "machine": recommendation.machine.name,
            "times": recommendation.times,
            "batch_size": recommendation.batch_size,
            "goal": recommendation.goal,
            "notes": recommendation.notes,
            "simulated_ways": recommendation.simulated,
            "left_out": recommendation.left_out,
            "interrupted": recommendation.interrupted,
            "splits": recommendation.is_split,
            "one_device": fields(recommendation.one_device),
            "measured_besides": recommendation.measured,
            "ways": [*map(fields, recommendation.ranked)],
            "dropped": [
                {"way": dropped.what, "why": dropped.why} for dropped in recommendation.dropped
            ],
        }
    )
