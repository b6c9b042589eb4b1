"""Report -> JSON, CSV: a partition of a model, for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from hgpart.report.partition.record import Report
from hgpart.report.partition.slice_shares import (
    SliceShares,
)


def as_json(report: Report) -> str:
    """All figures as a JSON object, a line for each key, part and layer.

    Bytes are of one forward pass of a batch, or each way of a training step where slices of it
    share parameters; work is in ``work_unit`` (multiply-accumulates of
    one sample, or measured seconds of a batch). What has no number, such as maximum over minimum
    where a part has no work, is null.
    """
    lines = [
        f'  "{name}": ' + (_listed(value) if name in ("parts", "layers") else _json(value))
        for name, value in _fields(report).items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_csv(report: Report) -> str:
    """What each part holds and sends: a header and one row a part, with the fields of the JSON."""
    text = io.StringIO()
    rows = _part_fields(report)
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _fields(report: Report) -> dict[str, Any]:
    found, layerwise, modelling = (
        report.partition.evaluation,
        report.layerwise,
        report.partition.modelling,
    )
    seconds = report.step_seconds
    return {
        "hgpart_version": version("hgpart"),
        "model": report.model,
        "input_shape": report.input_shape,
        "grain": modelling.grain,
        "linear": modelling.linear,
        "k": report.partition.k,
        "eps": report.partition.problem.eps,
        "speeds": report.partition.problem.speeds,
        "seed": report.made_by and report.partition.seed,
        "backend": report.made_by and report.partition.backend,
        "start": report.made_by and report.partition.start,
        "batch_size": modelling.batch_size,
        "slices": modelling.slices,
        "training": modelling.training,
        "norms": modelling.norms,
        "bytes_per_element": _bytes_per_element(report),
        "input_vertex": modelling.input_vertex,
        "output_vertex": modelling.output_vertex,
        "work_unit": report.partition.problem.work.unit,
        "work_source": report.partition.problem.work.source,
        "objective": report.partition.problem.objective.name,
        "objective_value": report.partition.objective_value,
        "memory_copies": None
        if report.partition.problem.memory is None
        else report.partition.problem.memory.copies,
        "memory_in_flight": None
        if report.partition.problem.memory is None
        else report.partition.problem.memory.in_flight,
        "estimated": seconds and asdict(seconds),
        "feasible": report.partition.feasible,
        "interrupted": report.partition.interrupted,
        "imbalance": found.imbalance,
        "max_work": _in_units(report, found.max_load),
        "min_work": _in_units(report, found.min_load),
        "average_work": found.average_load / report.work_units,
        "max_over_min_work": found.max_over_min,
        "max_over_average_work": found.max_over_average,
        "volume_bytes": found.volume,
        "lower_bound_bytes": report.partition.lower_bound,
        "gap": report.partition.gap,
        "step_bytes": report.step["in all"].volume,
        **{_key(name): flow.volume for name, flow in report.flows.items()},
        "max_part_volume_bytes": found.max_part_volume,
        "average_part_volume_bytes": found.average_part_volume,
        "max_over_average_part_volume": found.max_over_average_part_volume,
        "cut_net_bytes": found.cut_net,
        "messages": found.message_count,
        "layerwise_imbalance": layerwise.imbalance,
        "layerwise_max_work": _in_units(report, layerwise.max_load),
        "layerwise_volume_bytes": layerwise.volume,
        "layerwise_messages": layerwise.message_count,
        "vertices": report.partition.model.vertices,
        "nets": len(report.partition.model.nets.costs),
        "pins": int(report.partition.model.nets.sizes().sum()),
        "parts": _part_fields(report),
        "layers": _layer_fields(report),
        "seconds": {stage: round(seconds, 4) for stage, seconds in report.seconds.items()},
    }


def _part_fields(report: Report) -> list[dict[str, int | float]]:
    found, shares = report.partition.evaluation, report.partition.shares
    total = max(1, int(found.loads.sum()))
    sent, received = found.messages.sum(axis=1), found.messages.sum(axis=0)
    fields = [
        {
            "part": part,
            "work": _in_units(report, int(found.loads[part])),
            "work_share": int(found.loads[part]) / total,
            "parameters": int(shares.parameters[part]),
            "activation_bytes": int(shares.activation_bytes[part]),
            "send_bytes": int(found.sent[part]),
            "receive_bytes": int(found.received[part]),
            "messages_sent": int(sent[part]),
            "messages_received": int(received[part]),
        }
        for part in range(report.partition.k)
    ]
    if report.each_way:
        for part, own in enumerate(fields):
            for name, flow in report.flows.items():
                own[f"{_key(name)}_sent"] = int(flow.sent[part])
                own[f"{_key(name)}_received"] = int(flow.received[part])
    if report.partition.problem.memory is not None and report.partition.memory_bytes is not None:
        for own, needed, limit in zip(
            fields,
            report.partition.memory_bytes.tolist(),
            report.partition.problem.memory.bytes,
            strict=True,
        ):
            own |= {"memory_bytes": needed, "memory_limit_bytes": limit}
    return fields


def _layer_fields(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "layer": layer.name,
            "kind": layer.kind,
            "tasks_by_part": tasks.tolist(),
            "work_by_part": [_in_units(report, value) for value in work.tolist()],
            **(
                {"slices": [_slices_field(group) for group in groups]}
                if report.partition.modelling.slices > 1
                else {}
            ),
        }
        for layer, tasks, work, groups in zip(
            report.partition.problem.graph.layers,
            report.partition.shares.layer_tasks,
            report.partition.shares.layer_work,
            report.slices_of_layers,
            strict=True,
        )
    ]


def _slices_field(group: SliceShares) -> dict[str, Any]:
    """The slices that lie alike, and the tasks that each part finishes in one of them."""
    tasks = {str(part): count for part, count in zip(group.parts, group.tasks, strict=True)}
    return {"slices": group.slices, "tasks": tasks}


def _key(flow: str) -> str:
    return f"{flow.replace(' ', '_')}_bytes"


def _in_units(report: Report, value: int) -> int | float:
    return value if report.work_units == 1 else value / report.work_units


def _bytes_per_element(report: Report) -> int | None:
    """What was asked for, or what all maps have; None where they differ."""
    sizes = {
        layer.bytes_per_element for layer in report.partition.problem.graph.layers if layer.channels
    }
    own = sizes.pop() if len(sizes) == 1 else None
    return report.partition.modelling.bytes_per_element or own


def _listed(items: Iterable[Any]) -> str:
    return "[\n" + ",\n".join(f"    {_json(item)}" for item in items) + "\n  ]"


def _json(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    return json.dumps(value, allow_nan=False)
