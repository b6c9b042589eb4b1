"""Recommendation -> JSON: all figures, for programs."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

from hgpart.recommendation.ranking import Ranked, Recommendation
from hgpart.report.running import schedule_fields


def recommendation_json(found: Recommendation) -> str:
    """All figures as a JSON object, a line for each key and way; of a batch, in seconds."""
    fields: dict[str, Any] = {
        "hgpart_version": version("hgpart"),
        "model": found.model,
        "devices": found.devices,
        "machine": found.machine.name,
        "times": found.times,
        "batch_size": found.batch_size,
        "goal": found.goal,
        "notes": list(found.notes),
        "simulated_ways": found.simulated,
        "left_out": found.left_out,
        "interrupted": found.interrupted,
        "splits": found.is_split,
        "one_device": _fields(found, found.one_device),
        "measured_besides": dict(found.measured),
    }
    lines = [f'  "{name}": {json.dumps(value)}' for name, value in fields.items()]
    ways = ",\n".join(f"    {json.dumps(_fields(found, one))}" for one in found.ranked)
    dropped = ",\n".join(
        f"    {json.dumps({'way': one.what, 'why': one.why})}" for one in found.dropped
    )
    lines += [f'  "ways": [\n{ways}\n  ]', f'  "dropped": [\n{dropped}\n  ]']
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _fields(found: Recommendation, one: Ranked) -> dict[str, Any]:
    return {
        "way": one.division.text,
        "k": one.division.k,
        "micro_batches": one.scheduling.micro_batches,
        **schedule_fields(one.scheduling),
        "recompute": one.scheduling.recompute,
        "simulated_seconds": one.simulated_seconds,
        "measured_seconds": one.measured_seconds,
        "speed_up": found.speed_up(one),
        "computing_seconds": one.computing_seconds,
        "waiting_seconds": one.waiting_seconds,
        "update_seconds": one.prediction.update_seconds,
        "link_seconds": one.link_seconds,
        "sent_bytes": one.sent_bytes,
        "needed_bytes": list(one.needed_bytes),
    }
