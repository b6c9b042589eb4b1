"""RunReport -> table, JSON: what a run of a placed model took and sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from shlex import quote
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from hgpart.arrays import Int64
from hgpart.execution.records.totals import Timing, Traffic
from hgpart.files.columns import BYTES, UNITS, Column, fields_of
from hgpart.files.fields import report_json
from hgpart.report.tables import counted, even_decimals, print_columns
from hgpart.run.measuring import Measurement
from hgpart.schedule_wanted import Recompute, Scheduling

if TYPE_CHECKING:
    from hgpart.placement import Placement

TELLING = 0.1  # share of all time, or of a part's, that is more than chance
STALE = (
    "stale: mean number of updates that a forward pass of the part was without; most: the largest"
)
STALE_PUSHES = "stale: mean number of updates that what was pushed was without; most: the largest"


@dataclass(frozen=True, eq=False)
class RunReport:
    """All that is said about a run.

    Attributes
    ----------
    devices : tuple of str
        Device of each part.
    transport : str
        What carried the messages: gloo, nccl or threads (of one process).
    planned : Traffic
        Traffic of all steps, by the plan.
    norms : str
        What updates running statistics, ``micro-batch`` or ``batch``.
    work_shares : tuple of float
        Each part's share of the multiply-accumulates; empty where work was measured.
    """

    model: str
    devices: tuple[str, ...]
    transport: str
    measurement: Measurement
    planned: Traffic
    scheduling: Scheduling = field(default_factory=Scheduling)
    norms: str = "micro-batch"
    work_shares: tuple[float, ...] = ()

    def difference(self) -> str | None:
        """Where other bytes travelled than the plan says, if any did."""
        steps = self.measurement.steps
        for direction in ("forward", "backward"):
            travelled, planned = (
                getattr(traffic, f"{direction}_bytes")
                for traffic in (self.measurement.totals.traffic, self.planned)
            )
            for sender, receiver in np.argwhere(travelled != planned).tolist():
                return (
                    f"{direction}, part {sender} sent {travelled[sender, receiver]:,} bytes to "
                    f"part {receiver} in {steps} steps, by the plan {planned[sender, receiver]:,}"
                )
        return None


def run_columns(report: RunReport) -> list[Column[int]]:
    """What each part did; tables are of a step, files of all steps."""
    measured, steps = report.measurement, report.measurement.steps
    traffic, planned = measured.totals.traffic, report.planned

    def share(name: str) -> Callable[[int], float]:
        return lambda part: getattr(measured.totals.timings[part], name) / measured.seconds

    def idle(part: int) -> float:
        return max(0.0, 1 - share("busy")(part) - share("waiting")(part))

    def sums(axis: int, *matrices: Int64, steps: int = 1) -> Callable[[int], float]:
        return lambda part: sum(int(matrix.sum(axis)[part]) for matrix in matrices) / steps

    def totals(axis: int, *matrices: Int64) -> Callable[[int], int]:
        return lambda part: int(sums(axis, *matrices)(part))

    forward, back = traffic.forward_bytes, traffic.backward_bytes
    planned_peaks = measured.planned_peak_bytes
    both = planned.forward_bytes, planned.backward_bytes
    messages = totals(1, traffic.forward_messages, traffic.backward_messages)
    return [
        *timing_columns(report.devices, measured.totals.timings, steps),
        Column("busy_share", "busy", "", "%", share("busy"), decimals=1),
        Column("waiting_share", "waiting", "", "%", share("waiting"), decimals=1),
        Column("idle_share", "idle", "", "%", idle, decimals=1),
        *staleness_columns(measured.staleness),
        Column("", "sends", "", BYTES, sums(1, forward, back, steps=steps)),
        Column("", "planned", "", BYTES, sums(1, *both, steps=steps)),
        Column("", "receives", "", BYTES, sums(0, forward, back, steps=steps)),
        Column("", "planned", "", BYTES, sums(0, *both, steps=steps)),
        Column("sent_forward_bytes", value=totals(1, forward)),
        Column("received_forward_bytes", value=totals(0, forward)),
        Column("sent_backward_bytes", value=totals(1, back)),
        Column("received_backward_bytes", value=totals(0, back)),
        Column("messages_sent", value=messages),
        Column("peak_bytes", "holds", "", BYTES, measured.peak_bytes.__getitem__),
        Column("planned_peak_bytes", "planned", "", BYTES, planned_peaks.__getitem__),
    ]


def timing_columns(
    devices: Sequence[str],
    timings: Sequence[Timing],
    steps: int | None = None,
    what: str = "part",
) -> list[Column[int]]:
    """What each part is, and its seconds; tables have milliseconds of a step if steps are given."""
    unit, divisor = ("s", 1) if steps is None else ("ms", steps)

    def seconds(name: str, steps: int = 1) -> Callable[[int], float]:
        return lambda part: getattr(timings[part], name) / steps

    return [
        Column("part", value=lambda part: part),
        Column("device", value=devices.__getitem__),
        Column("", what, value=lambda part: f"{part} ({devices[part]})"),
        Column("", "busy", "", unit, seconds("busy", divisor)),
        Column("", "waiting", "", unit, seconds("waiting", divisor)),
        *(Column(field.name, value=seconds(field.name)) for field in fields(Timing)),
    ]


def staleness_columns(staleness: Sequence[Sequence[int]]) -> list[Column[int]]:
    """Updates that each part's forward passes were without; no columns if they had all.

    A parameter server has no figures.

    >>> mean, most = staleness_columns([[0, 1, 1, 2], [0, 0, 0, 0]])
    >>> mean.figure(0), most.figure(0), staleness_columns([])
    (1.0, 2, [])
    """
    if not staleness:
        return []

    def mean(part: int) -> float | None:
        return fmean(staleness[part]) if staleness[part] else None

    def most(part: int) -> int | None:
        return max(staleness[part], default=None)

    return [
        Column("mean_staleness", "stale", value=mean, decimals=2),
        Column("most_staleness", "most", value=most),
    ]


def run_json(report: RunReport) -> str:
    """All figures as a JSON object, a line for each key and part; bytes are those of all steps."""
    measured = report.measurement
    traffic, columns = measured.totals.traffic, run_columns(report)
    return report_json(
        {
            "model": report.model,
            "k": len(report.devices),
            "backend": report.transport,
            "batch_size": measured.batch_size,
            **schedule_fields(report.scheduling),
            "norms": report.norms,
            "steps": measured.steps,
            "backward": measured.backward,
            "seconds": measured.seconds,
            "samples_per_second": measured.samples_per_second,
            "disturbed": measured.disturbed,
            **traffic_fields(traffic),
            "planned_forward_bytes": int(report.planned.forward_bytes.sum()),
            "planned_backward_bytes": int(report.planned.backward_bytes.sum()),
            "as_planned": report.difference() is None,
            "busiest_share": measured.busiest,
            "most_samples_per_second": measured.samples_per_second / measured.busiest,
            "bubble": measured.bubble,
            "simulated_bubble": measured.simulated_bubble,
            "parts": [fields_of(columns, part) for part in range(len(report.devices))],
        }
    )


def traffic_fields(traffic: Traffic) -> dict[str, int]:
    """Bytes of all parts, for JSON."""
    names = ("forward_bytes", "backward_bytes", "uncounted_bytes")
    return {name: int(getattr(traffic, name).sum()) for name in names}


def run_answer(report: RunReport) -> str:
    """The throughput of a run: one line."""
    measured = report.measurement
    milliseconds = 1000 * measured.seconds / measured.steps
    return f"{measured.samples_per_second:,.1f} samples/s, {milliseconds:,.1f} ms a step"


def print_run(report: RunReport, console: Console, unit: str) -> None:
    """Print the throughput first, then what each part did and sent in a step.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    """
    measured, k = report.measurement, len(report.devices)
    console.print(run_answer(report), style="bold")
    if measured.caution:
        console.print(measured.caution, style="bold")
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
    print_columns(console, "Parts, in a step", run_columns(report), range(k), unit)
    if measured.staleness:
        console.print(STALE)
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
    """Where a part takes a larger share of the time than it has of the work, if one does.

    Parameters
    ----------
    shares : sequence of float
        Each part's share of the multiply-accumulates; empty where work is measured.
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
    taken = [seconds / total for seconds in busy]
    part = max(range(len(shares)), key=lambda at: taken[at] - shares[at])
    if taken[part] < shares[part] + TELLING or taken[part] * len(taken) < 1 + TELLING:
        return None
    return (
        f"Part {part} has {100 * shares[part]:.0f} % of the multiply-accumulates, and takes "
        f"{100 * taken[part]:.0f} % of the busy time"
    )


def shares_of_work(placement: Placement) -> tuple[float, ...]:
    """Each part's share of the work, where that is counted and not measured."""
    loads = placement.programs.partition.evaluation.loads
    counted = placement.programs.work.unit != "s" and loads.sum()
    return tuple((loads / loads.sum()).tolist()) if counted else ()


def print_contradiction(
    console: Console, model: str, shares: Sequence[float], busy: Sequence[float]
) -> None:
    """Print where shares of time contradict those of work, and how to divide by measured time."""
    contradiction = contradicted(shares, busy)
    if contradiction is not None:
        console.print(f"{contradiction}. To divide by time, partition with --work times.json, from")
        console.print(f"  hgpart profile {quote(model)} -o times.json", soft_wrap=True)


def schedule_fields(scheduling: Scheduling) -> dict[str, Any]:
    """How batches go through the parts, for JSON.

    >>> schedule_fields(Scheduling("async", in_flight=4))
    {'micro_batches': 1, 'schedule': 'async', 'in_flight': 4, 'stash': True, 'recompute': False}
    """
    stream = {"in_flight": scheduling.most_in_flight, "stash": scheduling.stash}
    return {
        "micro_batches": scheduling.micro_batches,
        "schedule": scheduling.name,
        **(stream if scheduling.is_stream else {}),
        "recompute": scheduling.recompute_field,
    }


def dropped_lines(recompute: Recompute) -> Iterator[str]:
    r"""A line for what each part recomputes, and one for what it offloads.

    There are none where any chunk may be recomputed.

    >>> from hgpart.schedules.outline import Stretch
    >>> own = Stretch(("a",)), Stretch(("c", "d", "e")), Stretch(("f",), offloaded=True)
    >>> print(*dropped_lines((own, ())), sep="\n")
    part 0 recomputes 4 steps in 2 stretches: a; c to e
    part 0 offloads 1 step in 1 stretch: f
    >>> [*dropped_lines(True)]
    []
    """
    if isinstance(recompute, bool):
        return
    for part, stretches in enumerate(recompute):
        for does, offloaded in (("recomputes", False), ("offloads", True)):
            own = [stretch.steps for stretch in stretches if stretch.offloaded == offloaded]
            if own:
                steps, count = sum(map(len, own)), len(own)
                said = f"{steps} step{'s' * (steps > 1)} in {count} stretch{'es' * (count > 1)}"
                yield f"part {part} {does} {said}: {'; '.join(map(_ends, own))}"


def _ends(steps: Sequence[str]) -> str:
    return steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"


def in_micro_batches(scheduling: Scheduling, norms: str = "micro-batch") -> str:
    """How a batch is divided, if it is, and whether others are in flight.

    >>> in_micro_batches(Scheduling("gpipe", 4)), in_micro_batches(Scheduling("gpipe"))
    (' in 4 micro-batches (gpipe)', '')
    >>> in_micro_batches(Scheduling("async", stash=False))
    ', 2 in flight (async, no stash)'
    """
    dropped = "".join(f" with {words}" for words in scheduling.dropped_words)
    if scheduling.is_stream:
        stash = ", no stash" * (not scheduling.stash)
        return f", {scheduling.most_in_flight} in flight ({scheduling.rule}{stash}){dropped}"
    count = scheduling.micro_batches
    of_batch = ", norms of the batch" if norms == "batch" else ""
    divided = f" in {count} micro-batches ({scheduling.name}{of_batch})" if count > 1 else ""
    return divided + dropped
