"""Report -> figures of parts, of a plan beside a cut between layers, of a step; JSON and CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from hgpart.arrays import Int64
from hgpart.files.columns import BYTES, Column, fields_of
from hgpart.files.fields import csv_text, report_json
from hgpart.hypergraph.metrics import Evaluation
from hgpart.report.partition.record import Report, work_scale
from hgpart.report.partition.slice_shares import SliceShares
from hgpart.report.tables import counted


def per(report: Report) -> str:
    """When the volume travels, and of how many samples."""
    when = "each way per training step" if report.each_way else "per forward pass"
    return f"{when} of {counted(report.partition.modelling.batch_size, 'sample')}"


def _work(report: Report) -> tuple[str, float, Callable[[float], float]]:
    """The unit of work, what makes one of it, and what turns loads into figures of files."""
    text, size = work_scale(report)
    unit, units = text.split()[0], report.work_units
    own = 1 if unit in ("ms", "us") else size / units  # columns make these of seconds themselves
    return unit, own, lambda load: load if units == 1 else load / units


def both(report: Report) -> tuple[Evaluation, Evaluation]:
    """The partition, and the best cut between layers."""
    return report.partition.evaluation, report.layerwise


def load_columns(report: Report) -> list[Column[Evaluation]]:
    """How evenly work is divided."""
    unit, size, in_units = _work(report)
    of = work_scale(report)[0]

    def work(name: str) -> Callable[[Evaluation], float]:
        return lambda plan: in_units(getattr(plan, name))

    of_average = attrgetter("max_over_average")
    over, balance = "Over the part with least.", "1 is a perfect balance."
    imbalance = "How far the busiest part is above its share of the work."
    return [
        Column("", "plan", value=lambda plan: _name(report, plan)),
        Column("max_work", "max", f"Busiest part, in {of}.", unit, work("max_load"), size),
        Column("min_work", "min", f"Least busy part, in {of}.", unit, work("min_load"), size),
        Column("average_work", "average", f"In {of}.", unit, work("average_load"), size),
        Column("max_over_min_work", "max/min", over, "", attrgetter("max_over_min"), decimals=3),
        Column("max_over_average_work", "max/avg", balance, "", of_average, decimals=3),
        Column("imbalance", "imbalance", imbalance, decimals=3),
    ]


def _name(report: Report, plan: Evaluation) -> str:
    return "layer cut" if plan is report.layerwise else "partition"


def volume_columns(report: Report) -> list[Column[Evaluation]]:
    """What travels between parts."""
    when = per(report)

    def bound(plan: Evaluation) -> int | None:
        is_known = plan is report.partition.evaluation and not report.says_little
        return report.partition.lower_bound if is_known else None

    least, volume = "No partition within eps sends less.", f"Of all parts, {when}."
    most, average = attrgetter("max_part_volume"), attrgetter("average_part_volume")
    return [
        Column("", "plan", value=lambda plan: _name(report, plan)),
        Column("volume_bytes", "volume", volume, BYTES, attrgetter("volume")),
        Column("", "at least", least, BYTES, bound),
        Column("max_part_volume_bytes", "max sends", "The part that sends most.", BYTES, most),
        Column("average_part_volume_bytes", "average", "Of all parts.", BYTES, average),
        Column("max_over_average_part_volume", "max/avg", "Of parts.", decimals=3),
        Column("cut_net_bytes", value=attrgetter("cut_net")),
        Column("messages", "messages", volume, value=attrgetter("message_count")),
    ]


def step_columns(report: Report) -> list[Column[str]]:
    """What a training step sends at each time, by its name."""

    def of(figure: str) -> Callable[[str], int]:
        return lambda name: int(getattr(report.step[name], figure))

    received = "The most that one part receives."
    return [
        Column("", "step", value=lambda name: name),
        Column("volume", "volume", "What all parts send.", BYTES, of("volume")),
        Column("most_sent", "max sends", "The most that one part sends.", BYTES, of("most_sent")),
        Column("most_received", "max receives", received, BYTES, of("most_received")),
        Column("most", "max both", "The most of one part both ways.", BYTES, of("most")),
        Column("messages", "messages", "Of all parts.", value=of("messages")),
    ]


def part_columns(report: Report) -> list[Column[int]]:
    """What each part computes, holds, sends and receives."""
    evaluation, shares, when = report.partition.evaluation, report.partition.shares, per(report)
    unit, size, in_units = _work(report)
    problem = report.partition.problem
    total = max(1, int(evaluation.loads.sum()))
    sent, received = evaluation.messages.sum(axis=1), evaluation.messages.sum(axis=0)

    def of(values: Sequence[int] | Int64) -> Callable[[int], int]:
        return lambda part: int(values[part])

    def work(part: int) -> float:
        return in_units(int(evaluation.loads[part]))

    def share(part: int) -> float:
        return int(evaluation.loads[part]) / total

    maps, arrives = "Feature maps made or received.", f"From other parts, {when}."
    of_work, parameters = f"In {work_scale(report)[0]}.", "Weights, biases and the like."
    columns: list[Column[int]] = [
        Column("part", "part", value=lambda part: part),
        Column("work", "work", of_work, unit, work, size),
        Column("work_share", "share", "Of the work of all parts.", "%", share, decimals=1),
        Column("parameters", "parameters", parameters, value=of(shares.parameters)),
        Column("activation_bytes", "maps", maps, BYTES, of(shares.activation_bytes)),
        Column("send_bytes", "sends", f"To other parts, {when}.", BYTES, of(evaluation.sent)),
        Column("receive_bytes", "receives", arrives, BYTES, of(evaluation.received)),
        Column("messages_sent", "messages sent", when, value=of(sent), detail=True),
        Column("messages_received", "messages received", when, value=of(received), detail=True),
    ]
    if report.each_way:
        for name, flow in report.flows.items():
            columns.append(Column(f"{key(name)}_sent", value=of(flow.sent)))
            columns.append(Column(f"{key(name)}_received", value=of(flow.received)))
    if problem.memory is not None and (needed := report.partition.memory_bytes) is not None:
        limits = of(problem.memory.bytes)
        columns.append(Column("memory_bytes", "memory", "Needed.", BYTES, of(needed)))
        columns.append(Column("memory_limit_bytes", "limit", "Allowed.", BYTES, limits))
    if (speeds := problem.speeds) is not None:

        def target(part: int) -> float:
            return speeds[part] / sum(speeds)

        columns.insert(3, Column("target_share", "target", "By speed.", "%", target, decimals=1))
    return columns


def key(flow: str) -> str:
    """The name of a flow in JSON and CSV."""
    return f"{flow.replace(' ', '_')}_bytes"


def as_json(report: Report) -> str:
    """All figures as a JSON object, a line for each key, part and layer.

    Bytes are those of a forward pass of a batch, or of each way of a training step where slices of
    the batch or bands of rows share parameters; work is in ``work_unit`` (multiply-accumulates of
    one sample, or measured seconds of a batch). What has no number, such as maximum over minimum
    where a part has no work, is null.
    """
    partition, seconds = report.partition, report.step_seconds
    modelling, problem, model = partition.modelling, partition.problem, partition.model
    columns = [*load_columns(report), *volume_columns(report)]
    plan, cut = (fields_of(columns, row) for row in both(report))
    parts = part_columns(report)
    return report_json(
        {
            "model": report.model,
            "input_shape": report.input_shape,
            "grain": modelling.grain,
            "linear": modelling.linear,
            "k": partition.k,
            "eps": problem.eps,
            "speeds": problem.speeds,
            "seed": report.made_by and partition.seed,
            "backend": report.made_by and partition.backend,
            "start": report.made_by and partition.start,
            "batch_size": modelling.batch_size,
            "slices": modelling.slices,
            "bands": modelling.bands,
            "training": modelling.training,
            "norms": modelling.norms,
            "bytes_per_element": _bytes_per_element(report),
            "input_vertex": modelling.input_vertex,
            "output_vertex": modelling.output_vertex,
            "work_unit": problem.work.unit,
            "work_source": problem.work.source,
            "objective": problem.objective.name,
            "objective_value": partition.objective_value,
            "memory_copies": problem.memory and problem.memory.copies,
            "memory_in_flight": problem.memory and problem.memory.in_flight,
            "estimated": seconds and seconds.record(),
            "constraints": problem.constraints.record() or None,
            "broken": partition.broken,
            "moved_bytes": report.moved,
            "feasible": partition.feasible,
            "interrupted": partition.interrupted,
            **plan,
            "lower_bound_bytes": partition.lower_bound,
            "gap": partition.gap,
            "step_bytes": report.step["in all"].volume,
            **{key(name): flow.volume for name, flow in report.flows.items()},
            "border_bytes": report.border_bytes,
            **{f"layerwise_{name}": value for name, value in cut.items()},
            "vertices": model.vertices,
            "nets": len(model.nets.costs),
            "pins": int(model.nets.sizes().sum()),
            "parts": [fields_of(parts, part) for part in range(partition.k)],
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
    partition, in_units = report.partition, _work(report)[2]
    shares = partition.shares
    layers = zip(
        partition.model.views,
        shares.layer_tasks,
        shares.layer_work,
        report.slices_of_layers,
        strict=True,
    )
    fields = []
    for view, tasks, work, groups in layers:
        own: dict[str, Any] = {
            "layer": view.layer.name,
            "kind": view.layer.kind,
            "tasks_by_part": tasks.tolist(),
            "work_by_part": [*map(in_units, work.tolist())],
        }
        if partition.modelling.bands > 1:
            own["row_cuts"] = view.cell_cuts
            own["tiles"] = [_slices_field(group, "tiles") for group in groups]
        elif partition.modelling.slices > 1:
            own["slices"] = [_slices_field(group, "slices") for group in groups]
        fields.append(own)
    return fields


def _slices_field(group: SliceShares, name: str) -> dict[str, Any]:
    """The slices that lie alike, and the tasks that each part finishes in one of them."""
    tasks = {str(part): count for part, count in zip(group.parts, group.tasks, strict=True)}
    return {name: group.slices, "tasks": tasks}


def _bytes_per_element(report: Report) -> int | None:
    """The size that was asked for, or that of all maps; None where they differ."""
    layers = report.partition.problem.graph.layers
    sizes = {layer.bytes_per_element for layer in layers if layer.channels}
    own = sizes.pop() if len(sizes) == 1 else None
    return report.partition.modelling.bytes_per_element or own
