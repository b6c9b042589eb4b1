"""Report -> the figures of parts, of the plan beside a cut between layers, and of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hgpart.arrays import Int64
from hgpart.compare.step_traffic import Flow
from hgpart.files.columns import BYTES, Column
from hgpart.hypergraph.metrics import Evaluation
from hgpart.report.partition.record import Report, samples_of, work_scale

Named = tuple[str, Evaluation]


def per(report: Report) -> str:
    """When the volume travels, and of how many samples."""
    when = "each way per training step" if report.each_way else "per forward pass"
    return f"{when} of {samples_of(report)}"


def _work(report: Report) -> tuple[str, float, Callable[[float], float]]:
    """The unit of work, what makes one of it, and what turns loads into figures of files."""
    text, size = work_scale(report)
    units = report.work_units
    return text.split()[0], size / units, lambda load: load if units == 1 else load / units


def both(report: Report) -> tuple[Named, Named]:
    """The plan, and the best cut between layers."""
    return ("partition", report.evaluation), ("layer cut", report.layerwise)


def load_columns(report: Report) -> list[Column[Named]]:
    """How evenly work is divided."""
    unit, size, in_units = _work(report)
    of = work_scale(report)[0]

    def work(name: str) -> Callable[[Named], float]:
        return lambda row: in_units(getattr(row[1], name))

    def ratio(name: str) -> Callable[[Named], float]:
        return lambda row: float(getattr(row[1], name))

    over, balance = "Over the part with least.", "1 is a perfect balance."
    imbalance = "How far the busiest part is above its share of the work."
    return [
        Column("", "plan", value=lambda row: row[0]),
        Column("max_work", "max", f"Busiest part, in {of}.", unit, work("max_load"), size),
        Column("min_work", "min", f"Least busy part, in {of}.", unit, work("min_load"), size),
        Column("average_work", "average", f"In {of}.", unit, work("average_load"), size),
        Column("max_over_min_work", "max/min", over, "", ratio("max_over_min"), 1, 3),
        Column("max_over_average_work", "max/avg", balance, "", ratio("max_over_average"), 1, 3),
        Column("imbalance", "imbalance", imbalance, "", ratio("imbalance"), 1, 3),
    ]


def volume_columns(report: Report) -> list[Column[Named]]:
    """What travels between parts."""
    when = per(report)

    def of(name: str) -> Callable[[Named], int]:
        return lambda row: int(getattr(row[1], name))

    def ratio(row: Named) -> float:
        return row[1].max_over_average_part_volume

    def average(row: Named) -> float:
        return row[1].average_part_volume

    def bound(row: Named) -> int | None:
        is_known = row[1] is report.evaluation and not report.says_little
        return report.lower_bound if is_known else None

    least = "No partition within eps sends less."
    return [
        Column("", "plan", value=lambda row: row[0]),
        Column("volume_bytes", "volume", f"Of all parts, {when}.", BYTES, of("volume")),
        Column("", "at least", least, BYTES, bound),
        Column("max_part_volume_bytes", "max sends", "One part.", BYTES, of("max_part_volume")),
        Column("average_part_volume_bytes", "average", "Of all parts.", BYTES, average),
        Column("max_over_average_part_volume", "max/avg", "Of parts.", "", ratio, 1, 3),
        Column("cut_net_bytes", value=of("cut_net")),
        Column("messages", "messages", f"Of all parts, {when}.", value=of("message_count")),
    ]


def step_columns() -> list[Column[tuple[str, Flow]]]:
    """What a training step sends at each time."""

    def of(name: str) -> Callable[[tuple[str, Flow]], int]:
        return lambda row: int(getattr(row[1], name))

    both = "The most that one part sends and receives."
    return [
        Column("", "step", value=lambda row: row[0]),
        Column("volume", "volume", "What all parts send.", BYTES, of("volume")),
        Column("most_sent", "max sends", "The most that one part sends.", BYTES, of("most_sent")),
        Column(
            *("most_received", "max receives", "The most that one part receives.", BYTES),
            value=of("most_received"),
        ),
        Column("most", "max both", both, BYTES, of("most")),
        Column("messages", "messages", "Of all parts.", value=of("messages")),
    ]


def part_columns(report: Report) -> list[Column[int]]:
    """What each part computes, holds, sends and receives."""
    found, shares, when = report.evaluation, report.shares, per(report)
    unit, size, in_units = _work(report)
    total = max(1, int(found.loads.sum()))
    sent, received = found.messages.sum(axis=1), found.messages.sum(axis=0)

    def of(values: Sequence[int] | Int64) -> Callable[[int], int]:
        return lambda part: int(values[part])

    def work(part: int) -> float:
        return in_units(int(found.loads[part]))

    def share(part: int) -> float:
        return int(found.loads[part]) / total

    of_work, parameters = f"In {work_scale(report)[0]}.", "Weights, biases and the like."
    columns: list[Column[int]] = [
        Column("part", "part", value=lambda part: part),
        Column("work", "work", of_work, unit, work, size),
        Column("work_share", "share", "Of the work of all parts.", "%", share, decimals=1),
        Column("parameters", "parameters", parameters, value=of(shares.parameters)),
        Column(
            *("activation_bytes", "maps", "Feature maps made or received.", BYTES),
            value=of(shares.activation_bytes),
        ),
        Column("send_bytes", "sends", f"To other parts, {when}.", BYTES, of(found.sent)),
        Column(
            "receive_bytes", "receives", f"From other parts, {when}.", BYTES, of(found.received)
        ),
        Column("messages_sent", "messages sent", when, value=of(sent), detail=True),
        Column("messages_received", "messages received", when, value=of(received), detail=True),
    ]
    if report.each_way:
        for name, flow in report.flows.items():
            columns.append(Column(f"{key(name)}_sent", value=of(flow.sent)))
            columns.append(Column(f"{key(name)}_received", value=of(flow.received)))
    if report.memory is not None and report.memory_bytes is not None:
        needed, limits = report.memory_bytes.tolist(), report.memory.bytes
        columns.append(Column("memory_bytes", "memory", "Needed.", BYTES, of(needed)))
        columns.append(Column("memory_limit_bytes", "limit", "Allowed.", BYTES, of(limits)))
    if (speeds := report.speeds) is not None:

        def target(part: int) -> float:
            return speeds[part] / sum(speeds)

        columns.insert(3, Column("target_share", "target", "By speed.", "%", target, decimals=1))
    return columns


def key(flow: str) -> str:
    """The name of a flow in JSON and CSV."""
    return f"{flow.replace(' ', '_')}_bytes"
