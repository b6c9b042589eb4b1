"""Placement, Schedule, Machine, LayerTimes -> Prediction: seconds of a step, without running it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Float64, Int64
from hgpart.errors import ArgumentError, PlanError, RunError
from hgpart.execution.outlines import check_fits
from hgpart.execution.weights.copies import Travelling
from hgpart.machines.machine import Machine, Slowdown
from hgpart.placement import Placement
from hgpart.placement.accounting import known_step_bytes
from hgpart.prediction.actions import Planned, jobs_of
from hgpart.prediction.jobs import Job, Sharing, Span
from hgpart.prediction.measured_costs import MeasuredCosts, Overheads, Weights
from hgpart.prediction.simulation import simulate
from hgpart.prediction.steps import part_steps
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.schedule import Schedule
from hgpart.work.layer_times import LayerTimes

STEPS = 3  # in a row, by which the period is found: the first one finds all parts idle


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a step should take, by a simulation.

    Attributes
    ----------
    seconds : float
        From its begin to its end, of all parts; of a stream, of all its batches.
    period : float
        From one step's end to the next one's, where steps follow each other, without the optimizer:
        less than `seconds` where parts that are done can begin the next one. Of a stream the same.
    batch_size : int
    schedule : Schedule
        With the weights that travel (see `hgpart.schedules.lowering`).
    spans : tuple of Span
        When each action of the schedule's order begins and ends.
    busy : float64 array, shape (k,)
        Seconds in which each part computes.
    update_seconds : float
        Of the optimizer behind the step, in the part that takes longest; in a stream 0, as its
        updates are actions.
    peak_bytes : tuple of int or None
        The most that each part holds for what it has still to do, as of `hgpart.peak_bytes`; None
        where that can't be known.
    step_bytes : tuple of int or None
        The most that each part takes at any time, as `hgpart.placement.accounting.StepBytes` says
        it. Weights, their gradients and what an optimizer keeps are in neither.
    sent_bytes : int64 array, shape (k, k)
        From the part of the row to the part of the column.
    """

    seconds: float
    period: float
    batch_size: int
    schedule: Schedule
    spans: tuple[Span, ...]
    busy: Float64
    update_seconds: float
    peak_bytes: tuple[int | None, ...]
    step_bytes: tuple[int | None, ...]
    sent_bytes: Int64

    @property
    def batches(self) -> int:
        """Of what was simulated: of a stream, several."""
        return 1 if self.schedule.in_flight is None else self.schedule.micro_batches

    @property
    def batch_seconds(self) -> float:
        """Of a batch, with the optimizer's, where one follows another."""
        return self.period / self.batches + self.update_seconds

    @property
    def idle(self) -> Float64:
        """Seconds in which each part does nothing, or waits."""
        return np.maximum(0.0, self.seconds - self.busy)

    @property
    def samples_per_second(self) -> float:
        """Throughput of steps that follow each other, without the optimizer."""
        return self.batches * self.batch_size / self.period if self.period else np.inf

    @property
    def bubble(self) -> float:
        """Share of all parts' time in which they do not compute."""
        return float(self.idle.sum() / (self.seconds * len(self.busy))) if self.seconds else 0.0


def predict(
    placement: Placement,
    schedule: Schedule,
    machine: Machine,
    times: LayerTimes,
    batch_size: int | None = None,
    overheads: Overheads | None = None,
) -> Prediction:
    """Simulate a step of a placement, in its present mode, on a machine.

    Parameters
    ----------
    placement : Placement
        All its parts in this process; on the meta device, too.
    schedule : Schedule
        Of this placement.
    machine : Machine
        Of as many devices as there are parts, or more: part p is on device p.
    times : LayerTimes
        Of the model's layers on such a device.
    batch_size : int, optional
        Of a step, or of each batch of a stream; the plan's when left out.
    overheads : Overheads, optional
        What steps of programs and messages cost besides; the usual ones when left out.

    Raises
    ------
    ArgumentError
        If the machine has fewer devices, or there are fewer samples than micro-batches.
    PlanError
        If the schedule is for another placement, or the times are of another model, or of inputs
        of other sizes than the placement's present ones.
    RunError
        If this process does not hold all parts.
    """
    k = placement.k
    if (held := len(placement.programs.parts)) != k:
        raise RunError(f"this process holds {held} of {k} parts: accepted is all of them")
    if machine.k < k:
        raise ArgumentError(
            f"a machine of {machine.k} devices for {k} parts: accepted are {k} or more"
        )
    layers = len(placement.programs.blueprint.graph.layers)
    if len(times.layers) != layers:
        raise PlanError(
            f"times of {len(times.layers)} layers: accepted are those of the model's {layers}"
        )
    if not placement.forms.is_as_placed:
        now, first = placement.forms.present, placement.forms.first
        raise PlanError(
            f"a placement at inputs of {now.said_beside(first)}: accepted is one at "
            f"{first.said_beside(now)}, which it was placed for, and times are of"
        )
    check_fits(schedule, placement.programs.parts, k)
    size = placement.programs.partition.modelling.batch_size if batch_size is None else batch_size
    count, is_stream = schedule.micro_batches, schedule.in_flight is not None
    sizes = (size,) * count if is_stream else micro_batch_sizes(size, count)
    again = [outline.recomputed for outline in schedule.outlines]
    steps = part_steps(placement)
    lowered, weights = with_weights(placement, schedule)
    facts = sizes, again, times, machine, overheads or Overheads(), is_stream, weights
    costs = MeasuredCosts(steps, *facts)
    products = {part: costs.products(part) for part in range(k) if schedule.backward}
    late = {part: job for part, job in products.items() if job.seconds}
    planned = jobs_of(lowered, costs, costs.job, late)
    sharing = sharing_of(machine, k, times)
    found = simulate(planned.jobs, planned.journeys, sharing)
    known = known_step_bytes(placement, schedule, size)
    return Prediction(
        seconds=found.end,
        period=found.end if is_stream else period(planned, sharing),
        batch_size=size,
        schedule=lowered,
        spans=tuple(planned.times(found)),
        busy=np.array([sum(end - begin for begin, end in of_part) for of_part in found.jobs]),
        update_seconds=0.0 if is_stream else max(costs.update(part) for part in range(k)),
        peak_bytes=tuple(None if one is None else one.held for one in known),
        step_bytes=tuple(None if one is None else one.taken for one in known),
        sent_bytes=_sent(placement, sizes, schedule.backward),
    )


def with_weights(
    placement: Placement, schedule: Schedule
) -> tuple[Schedule, tuple[Weights | None, ...]]:
    """A schedule with all that travels of weights in its order, and what each of them comes to.

    Parameters
    ----------
    placement : Placement
        All its parts in this process.
    schedule : Schedule
        As a rule makes it.
    """
    if len(placement.programs.shares) == 1:
        return schedule, ()
    copies = placement.copies.present
    weights = tuple(
        None if one.owner == one.holder else Weights(copies.nbytes(one), len(one.elements) > 1)
        for one in copies.weights
    )
    travelling = Travelling(copies, copies.weights)
    return placement.runtime.lowered(schedule, travelling), weights


def period(planned: Planned, sharing: Sharing) -> float:
    """Seconds from one step's end to the next one's: the mean of the last of `STEPS` in a row."""
    count = len(planned.journeys)

    def later(job: Job, step: int) -> Job:
        awaits, sends = ([one + step * count for one in some] for some in (job.awaits, job.sends))
        return job._replace(awaits=tuple(awaits), sends=tuple(sends))

    jobs = [[later(job, step) for step in range(STEPS) for job in own] for own in planned.jobs]
    found = simulate(jobs, [*planned.journeys] * STEPS, sharing)
    ends = [
        max((own[step * len(own) // STEPS - 1].end for own in found.jobs if own), default=0.0)
        for step in range(1, STEPS + 1)
    ]
    return (ends[-1] - ends[0]) / (STEPS - 1)


def sharing_of(machine: Machine, k: int, times: LayerTimes) -> Sharing:
    """What the first k devices of a machine share: processors by node, and each its cable.

    Where devices of a node slow each other down, steps of the model do so as much as was measured
    of them at least.
    """
    slowdown = Slowdown(machine.together)
    memory_bound = machine.memory_bound or slowdown
    if len(machine.together) > 1:
        slowdown, memory_bound = (
            Slowdown(
                tuple(max(one.of(n), times.together(n)) for n in range(1, max(machine.nodes) + 1))
            )
            for one in (slowdown, memory_bound)
        )
    return Sharing(machine.node_of[:k], slowdown, memory_bound, queues=True)


def _sent(placement: Placement, sizes: tuple[int, ...], backward: bool) -> Int64:
    planned = placement.programs.expected_traffic(sizes, backward)
    return planned.forward_bytes + planned.backward_bytes
