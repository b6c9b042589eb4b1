"""RunReport -> table, JSON: what a run of a placed model took and sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hgpart.arrays import Int64
from hgpart.execution.records.totals import Timing
from hgpart.report.tables import UNITS, counted, even_decimals, in_unit, print_table, ruled_table
from hgpart.run.measuring import Measurement
from hgpart.schedule_wanted import Scheduling

if TYPE_CHECKING:
    from hgpart.placement import Placement

TELLING = 0.1  # of all time, or of a part's: more than that is no chance
STALE = "stale: updates of its part that a forward pass was without, in the mean and at most"


@dataclass(frozen=True, eq=False)
class RunReport:
    """All that is said about a run.

    Attributes
    ----------
    model : str
    devices : tuple of str
        Of each part.
    transport : str
        What carried the messages: gloo, nccl or threads (of one process).
    measurement : Measurement
    planned_forward, planned_backward : int64 arrays, shape (k, k)
        Bytes of a step by the plan, from the part of the row to the part of the column.
    scheduling : Scheduling
    norms : str
        What updates running statistics, ``micro-batch`` or ``batch``.
    work_shares : tuple of float
        What each part has of the multiply-accumulates; none where work was measured.
    """

    model: str
    devices: tuple[str, ...]
    transport: str
    measurement: Measurement
    planned_forward: Int64
    planned_backward: Int64
    scheduling: Scheduling = field(default_factory=Scheduling)
    norms: str = "micro-batch"
    work_shares: tuple[float, ...] = ()

    def difference(self) -> str | None:
        """Say where other bytes travelled than the plan says, if any did."""
        found, steps = self.measurement.totals.traffic, self.measurement.steps
        ways = [("forward", found.forward_bytes, self.planned_forward)]
        if self.measurement.backward:
            ways.append(("backward", found.backward_bytes, self.planned_backward))
        for way, travelled, planned in ways:
            for (sender, receiver), sent in _entries(travelled):
                if sent != planned[sender, receiver] * steps:
                    return (
                        f"{way}, part {sender} sent {sent:,} bytes to part {receiver} in {steps} "
                        f"steps, by the plan {planned[sender, receiver]:,} in each"
                    )
        return None


def _entries(matrix: Int64) -> list[tuple[tuple[int, int], int]]:
    k = len(matrix)
    return [((row, column), int(matrix[row, column])) for row in range(k) for column in range(k)]


def run_json(report: RunReport) -> str:
    """All figures as a JSON object, a line for each key and part; bytes are of all steps."""
    measured = report.measurement
    traffic = measured.totals.traffic
    fields: dict[str, Any] = {
        "hgpart_version": version("hgpart"),
        "model": report.model,
        "k": len(report.devices),
        "backend": report.transport,
        "batch_size": measured.batch_size,
        "micro_batches": report.scheduling.micro_batches,
        **schedule_fields(report.scheduling),
        "norms": report.norms,
        "recompute": report.scheduling.recompute,
        "steps": measured.steps,
        "backward": measured.backward,
        "seconds": measured.seconds,
        "samples_per_second": measured.samples_per_second,
        "forward_bytes": int(traffic.forward_bytes.sum()),
        "backward_bytes": int(traffic.backward_bytes.sum()),
        "uncounted_bytes": int(traffic.uncounted_bytes.sum()),
        "planned_forward_bytes": int(report.planned_forward.sum()) * measured.steps,
        "planned_backward_bytes": int(report.planned_backward.sum())
        * measured.steps
        * measured.backward,
        "as_planned": report.difference() is None,
        "busiest_share": measured.busiest,
        "most_samples_per_second": measured.samples_per_second / measured.busiest,
        "bubble": measured.bubble,
        "simulated_bubble": measured.simulated_bubble,
    }
    parts = [
        {
            "part": part,
            "device": report.devices[part],
            **vars(timing),
            **_shares(timing, measured.seconds),
            **staleness_fields(measured.staleness, part),
            "sent_forward_bytes": int(traffic.forward_bytes[part].sum()),
            "received_forward_bytes": int(traffic.forward_bytes[:, part].sum()),
            "sent_backward_bytes": int(traffic.backward_bytes[part].sum()),
            "received_backward_bytes": int(traffic.backward_bytes[:, part].sum()),
            "messages_sent": int(
                traffic.forward_messages[part].sum() + traffic.backward_messages[part].sum()
            ),
            "peak_bytes": measured.peak_bytes[part],
            "planned_peak_bytes": measured.planned_peak_bytes[part],
        }
        for part, timing in enumerate(measured.totals.timings)
    ]
    lines = [f'  "{name}": {json.dumps(value)}' for name, value in fields.items()]
    listed = ",\n".join(f"    {json.dumps(part)}" for part in parts)
    return "{\n" + ",\n".join(lines) + f',\n  "parts": [\n{listed}\n  ]\n}}\n'


def run_answer(report: RunReport) -> str:
    """Say what a run came to."""
    measured = report.measurement
    milliseconds = 1000 * measured.seconds / measured.steps
    return f"{measured.samples_per_second:,.1f} samples/s, {milliseconds:,.1f} ms a step"


def print_run(report: RunReport, console: Console, unit: str) -> None:
    """Print the throughput first, then what each part did and sent in a step.

    Parameters
    ----------
    report : RunReport
    console : Console
    unit : str
        What bytes are printed in, one of `UNITS`.
    """
    measured, k = report.measurement, len(report.devices)
    console.print(run_answer(report), style="bold")
    passes = "forward and backward" if measured.backward else "forward"
    several = f"{k} processes, {report.transport}"
    divided = in_micro_batches(report.scheduling, report.norms)
    processes = "one process" if report.transport == "threads" else several
    console.print(
        f"{report.model} on {counted(k, 'device')} ({processes}), "
        f"{counted(measured.steps, 'step')} of {counted(measured.batch_size, 'sample')}{divided}, "
        f"{passes}"
    )
    console.print()
    _print_parts(report, console, unit)
    console.print()
    if k > 1:
        most = measured.samples_per_second / measured.busiest
        console.print(
            f"The busiest device works {100 * measured.busiest:.1f} % of the time: without waiting "
            f"it would do {most:,.1f} samples/s, which no schedule of this plan exceeds"
        )
        console.print(
            f"Bubble, the share of all devices' time without work: {100 * measured.bubble:.1f} %, "
            f"{100 * measured.simulated_bubble:.1f} % by the schedule's own costs (simulated)"
        )
    busy = [timing.busy for timing in measured.totals.timings]
    print_contradiction(console, report.model, report.work_shares, busy)
    steps, traffic = measured.steps, measured.totals.traffic
    sizes = [traffic.forward_bytes.sum() / steps, traffic.backward_bytes.sum() / steps]
    forward, backward = even_decimals([size / UNITS[unit] for size in sizes])
    back = f" and {backward} {unit} backward" if measured.backward else ""
    planned = "not as the plan says" if report.difference() else "to the byte as the plan says"
    console.print(f"Between devices: {forward} {unit} forward{back} in a step, {planned}")


def contradicted(shares: Sequence[float], busy: Sequence[float]) -> str | None:
    """Say where a part takes another share of the time than it has of the work, if one does.

    Parameters
    ----------
    shares : sequence of float
        Of the work, by multiply-accumulates; none where it is measured.
    busy : sequence of float
        Seconds of each part.

    >>> contradicted([0.5, 0.5], [1.0, 1.1]), contradicted([], [1.0, 3.0])
    (None, None)
    >>> print(contradicted([0.5, 0.5], [1.0, 3.0]))
    Part 1 has 50 % of the multiply-accumulates, and takes 75 % of the busy time
    """
    total = sum(busy)
    if not shares or not total:
        return None
    found = [seconds / total for seconds in busy]
    part = max(range(len(shares)), key=lambda at: found[at] - shares[at])
    if found[part] < shares[part] + TELLING or found[part] * len(found) < 1 + TELLING:
        return None
    return (
        f"Part {part} has {100 * shares[part]:.0f} % of the multiply-accumulates, and takes "
        f"{100 * found[part]:.0f} % of the busy time"
    )


def shares_of_work(placement: Placement) -> tuple[float, ...]:
    """What each part has of the work, where that is counted and not measured."""
    loads = placement.programs.partition.evaluation.loads
    counted = placement.programs.work.unit != "s" and loads.sum()
    return tuple((loads / loads.sum()).tolist()) if counted else ()


def print_contradiction(
    console: Console, model: str, shares: Sequence[float], busy: Sequence[float]
) -> None:
    """Print it, with what divides the model by measured time."""
    said = contradicted(shares, busy)
    if said is not None:
        console.print(
            f"{said}: to divide by time, hgpart profile {model} -o times.json, and hgpart "
            "partition with --work times.json"
        )


def schedule_fields(scheduling: Scheduling) -> dict[str, Any]:
    """How batches went through the parts, for JSON.

    >>> schedule_fields(Scheduling("async", in_flight=4))
    {'schedule': 'async', 'in_flight': 4, 'stash': True}
    """
    fields: dict[str, Any] = {"schedule": scheduling.name}
    if scheduling.is_stream:
        fields |= {"in_flight": scheduling.most_in_flight, "stash": scheduling.stash}
    return fields


def staleness_fields(staleness: Sequence[Sequence[int]], part: int) -> dict[str, float]:
    """Updates that a part's forward passes were without, for JSON; nothing if they had all.

    >>> staleness_fields([[0, 1, 1, 2], [0, 0, 0, 0]], part=0)
    {'mean_staleness': 1.0, 'most_staleness': 2}
    """
    if not staleness:
        return {}
    of_part = staleness[part]
    return {"mean_staleness": sum(of_part) / len(of_part), "most_staleness": max(of_part)}


def staleness_columns(staleness: Sequence[Sequence[int]]) -> tuple[list[str], list[list[str]]]:
    """The same for tables: headings, and a column for each.

    >>> staleness_columns([[0, 1, 1, 2], [0, 0, 0, 0]])
    (['stale', 'most'], [['1.00', '0.00'], ['2', '0']])
    """
    if not staleness:
        return [], []
    each = [staleness_fields(staleness, part) for part in range(len(staleness))]
    means = [f"{fields['mean_staleness']:.2f}" for fields in each]
    return ["stale", "most"], [means, [f"{fields['most_staleness']}" for fields in each]]


def in_micro_batches(scheduling: Scheduling, norms: str = "micro-batch") -> str:
    """Say how a batch is divided, if it is, and whether others are in flight.

    >>> in_micro_batches(Scheduling("gpipe", 4)), in_micro_batches(Scheduling("gpipe"))
    (' in 4 micro-batches (gpipe)', '')
    >>> in_micro_batches(Scheduling("async", stash=False))
    ', 2 in flight (async, no stash)'
    """
    again = " with maps recomputed" * scheduling.recompute
    if scheduling.is_stream:
        stash = ", no stash" * (not scheduling.stash)
        return f", {scheduling.most_in_flight} in flight ({scheduling.rule}{stash}){again}"
    count = scheduling.micro_batches
    of_batch = ", norms of the batch" if norms == "batch" else ""
    divided = f" in {count} micro-batches ({scheduling.name}{of_batch})" if count > 1 else ""
    return divided + again


def _shares(timing: Timing, seconds: float) -> dict[str, float]:
    """What a part did with the time of all steps; idle is what is neither.

    >>> _shares(Timing(forward_busy=3.0, backward_waiting=0.5), seconds=4.0)
    {'busy_share': 0.75, 'waiting_share': 0.125, 'idle_share': 0.125}
    """
    busy, waiting = timing.busy / seconds, timing.waiting / seconds
    return {
        "busy_share": busy,
        "waiting_share": waiting,
        "idle_share": max(0.0, 1 - busy - waiting),
    }


def _print_parts(report: RunReport, console: Console, unit: str) -> None:
    measured, k = report.measurement, len(report.devices)
    steps, traffic = measured.steps, measured.totals.traffic
    timings = measured.totals.timings
    shares = [_shares(timing, measured.seconds) for timing in timings]
    headings = ["part", "busy ms", "waiting ms", "busy %", "waiting %", "idle %"]
    columns = [
        [f"{part} ({report.devices[part]})" for part in range(k)],
        even_decimals([1000 * timing.busy / steps for timing in timings]),
        even_decimals([1000 * timing.waiting / steps for timing in timings]),
        *zip(*([f"{100 * share:.1f}" for share in each.values()] for each in shares), strict=True),
    ]
    more_headings, more_columns = staleness_columns(measured.staleness)
    headings += more_headings
    columns += more_columns
    counted, planned = traffic.forward_bytes / steps, report.planned_forward
    if measured.backward:
        counted = counted + traffic.backward_bytes / steps
        planned = planned + report.planned_backward
    for heading, axis in ((f"sends {unit}", 1), (f"receives {unit}", 0)):
        both = [*counted.sum(axis), *planned.sum(axis)]
        texts = even_decimals([size / UNITS[unit] for size in both])
        headings += [heading, "by the plan"]
        columns += [texts[:k], texts[k:]]
    peaks = [*measured.peak_bytes, *measured.planned_peak_bytes]
    texts = in_unit(peaks, unit)
    headings += [f"holds {unit}", "by the schedule"]
    columns += [texts[:k], texts[k:]]
    table = ruled_table(headings)
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    print_table(console, "Parts, in a step", table)
    if measured.staleness:
        console.print(STALE)
