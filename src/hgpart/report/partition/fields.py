"""Report -> JSON, CSV: a partition of a model, for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hgpart.files.columns import fields_of
from hgpart.files.fields import csv_text, report_json
from hgpart.report.partition.columns import both, key, load_columns, part_columns, volume_columns
from hgpart.report.partition.record import Report
from hgpart.report.partition.slice_shares import SliceShares


def as_json(report: Report) -> str:
    """All figures as a JSON object, a line for each key, part and layer.

    Bytes are those of a forward pass of a batch, or of each way of a training step where slices of
    the batch share parameters; work is in ``work_unit`` (multiply-accumulates of one sample, or
    measured seconds of a batch). What has no number, such as maximum over minimum where a part has
    no work, is null.
    """
    modelling, seconds = report.partition.modelling, report.step_seconds
    columns = [*load_columns(report), *volume_columns(report)]
    plan, cut = (fields_of(columns, row) for row in both(report))
    parts = part_columns(report)
    return report_json(
        {
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
            **plan,
            "lower_bound_bytes": report.partition.lower_bound,
            "gap": report.partition.gap,
            "step_bytes": report.step["in all"].volume,
            **{key(name): flow.volume for name, flow in report.flows.items()},
            **{f"layerwise_{name}": value for name, value in cut.items()},
            "vertices": report.partition.model.vertices,
            "nets": len(report.partition.model.nets.costs),
            "pins": int(report.partition.model.nets.sizes().sum()),
            "parts": [fields_of(parts, part) for part in range(report.partition.k)],
            "layers": _layer_fields(report),
            "seconds": {stage: round(seconds, 4) for stage, seconds in report.seconds.items()},
        }
    )


def as_csv(report: Report) -> str:
    """What each part holds and sends: a header and one row a part, with the fields of the JSON."""
    columns = part_columns(report)
    rows = [fields_of(columns, part) for part in range(report.partition.k)]
    return csv_text([*rows[0]], rows)


def _layer_fields(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "layer": layer.name,
            "kind": layer.kind,
            "tasks_by_part": tasks.tolist(),
            "work_by_part": [
                value if report.work_units == 1 else value / report.work_units
                for value in work.tolist()
            ],
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


def _bytes_per_element(report: Report) -> int | None:
    """The size that was asked for, or that of all maps; None where they differ."""
    sizes = {
        layer.bytes_per_element for layer in report.partition.problem.graph.layers if layer.channels
    }
    own = sizes.pop() if len(sizes) == 1 else None
    return report.partition.modelling.bytes_per_element or own
