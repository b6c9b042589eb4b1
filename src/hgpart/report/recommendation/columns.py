"""Recommendation -> the figures of each way, the most telling first."""

from __future__ import annotations

from hgpart.files.columns import BYTES, Column
from hgpart.recommendation.ranking import Ranked, Recommendation


def ranked_columns(recommendation: Recommendation) -> list[Column[Ranked]]:
    """The columns of a recommendation."""
    alone = recommendation.one_device.simulated_seconds
    step, median = "Simulated.", "Median of a step, where it was run."
    is_measured = any(way.measured_seconds is not None for way in recommendation.ranked)

    def speed_up(way: Ranked) -> float:
        return alone / way.simulated_seconds

    columns: list[Column[Ranked]] = [
        Column("way", value=lambda way: way.trial.text),
        Column("", "way", value=lambda way: way.trial.name),
        Column("k", "devices", "Number of devices.", value=lambda way: way.trial.k),
        Column("simulated_seconds", "a step", step, "ms"),
        Column("measured_seconds", "measured" * is_measured, median, "ms"),
        Column("", "speed-up", "Over one device, simulated.", value=speed_up, decimals=2),
        Column("sent_bytes", "sends", "All devices together.", BYTES),
        Column("largest_bytes", "needs", "The device that needs most memory.", BYTES),
        Column("computing_seconds", "computes", "The device that computes longest.", "ms"),
        Column("waiting_seconds", "waits", "Mean of all devices.", "ms"),
        Column("", "schedule", "Order of the step.", value=lambda way: way.scheduling.text),
        Column("speed_up", value=recommendation.speed_up),
        Column("update_seconds", value=lambda way: way.prediction.update_seconds),
        Column("link_seconds"),
    ]
    return columns
