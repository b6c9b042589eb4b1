"""Report -> the figures of parts, of the plan beside a cut between layers, and of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from hgpart.arrays import Int64
from hgpart.files.columns import BYTES, Column
from hgpart.hypergraph.metrics import Evaluation
from hgpart.report.partition.record import Report, samples_of, work_scale


def per(report: Report) -> str:
    """When the volume travels, and of how many samples."""
    when = "each way per training step" if report.each_way else "per forward pass"
    return f"{when} of {samples_of(report)}"


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

    over, balance = "Over the part with least.", "1 is a perfect balance."
    imbalance = "How far the busiest part is above its share of the work."
    return [
        Column("", "plan", value=lambda plan: _name(report, plan)),
        Column("max_work", "max", f"Busiest part, in {of}.", unit, work("max_load"), size),
        Column("min_work", "min", f"Least busy part, in {of}.", unit, work("min_load"), size),
        Column("average_work", "average", f"In {of}.", unit, work("average_load"), size),
        Column("max_over_min_work", "max/min", over, "", attrgetter("max_over_min"), decimals=3),
        Column(
            "max_over_average_work",
            "max/avg",
            balance,
            "",
            attrgetter("max_over_average"),
            decimals=3,
        ),
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
    average = attrgetter("average_part_volume")
    return [
        Column("", "plan", value=lambda plan: _name(report, plan)),
        Column("volume_bytes", "volume", volume, BYTES, attrgetter("volume")),
        Column("", "at least", least, BYTES, bound),
        Column(
            "max_part_volume_bytes",
            "max sends",
            "The part that sends most.",
            BYTES,
            value=attrgetter("max_part_volume"),
        ),
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
    total = max(1, int(evaluation.loads.sum()))
    sent, received = evaluation.messages.sum(axis=1), evaluation.messages.sum(axis=0)

    def of(values: Sequence[int] | Int64) -> Callable[[int], int]:
        return lambda part: int(values[part])

    def work(part: int) -> float:
        return in_units(int(evaluation.loads[part]))

    def share(part: int) -> float:
        return int(evaluation.loads[part]) / total

    of_work, parameters = f"In {work_scale(report)[0]}.", "Weights, biases and the like."
    columns: list[Column[int]] = [
        Column("part", "part", value=lambda part: part),
        Column("work", "work", of_work, unit, work, size),
        Column("work_share", "share", "Of the work of all parts.", "%", share, decimals=1),
        Column("parameters", "parameters", parameters, value=of(shares.parameters)),
        Column(
            "activation_bytes",
            "maps",
            "Feature maps made or received.",
            BYTES,
            value=of(shares.activation_bytes),
        ),
        Column("send_bytes", "sends", f"To other parts, {when}.", BYTES, of(evaluation.sent)),
        Column(
            "receive_bytes",
            "receives",
            f"From other parts, {when}.",
            BYTES,
            of(evaluation.received),
        ),
        Column("messages_sent", "messages sent", when, value=of(sent), detail=True),
        Column("messages_received", "messages received", when, value=of(received), detail=True),
    ]
    if report.each_way:
        for name, flow in report.flows.items():
            columns.append(Column(f"{key(name)}_sent", value=of(flow.sent)))
            columns.append(Column(f"{key(name)}_received", value=of(flow.received)))
    if report.partition.problem.memory is not None and report.partition.memory_bytes is not None:
        needed, limits = (
            report.partition.memory_bytes.tolist(),
            report.partition.problem.memory.bytes,
        )
        columns.append(Column("memory_bytes", "memory", "Needed.", BYTES, of(needed)))
        columns.append(Column("memory_limit_bytes", "limit", "Allowed.", BYTES, of(limits)))
    if (speeds := report.partition.problem.speeds) is not None:

        def target(part: int) -> float:
            return speeds[part] / sum(speeds)

        columns.insert(3, Column("target_share", "target", "By speed.", "%", target, decimals=1))
    return columns


def key(flow: str) -> str:
    """The name of a flow in JSON and CSV."""
    return f"{flow.replace(' ', '_')}_bytes"
