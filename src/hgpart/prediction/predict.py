"""Placement, Schedule, Machine, LayerTimes -> Prediction: seconds of a step, without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from hgpart.arrays import Float64, Int64
from hgpart.errors import ArgumentError, PlanError, RunError
from hgpart.execution.outlines import check_fits
from hgpart.execution.weights.copies import Travelling, travels_of
from hgpart.machines.machine import Device, Machine, Slowdown
from hgpart.placement import Placement
from hgpart.placement.accounting import known_step_bytes, part_step_bytes
from hgpart.placement.ordering.ordered import from_one
from hgpart.prediction.actions import Planned, jobs_of
from hgpart.prediction.device_times import Times, timed_devices
from hgpart.prediction.jobs import Sharing, Span, TimedStep
from hgpart.prediction.measured_costs import MeasuredCosts, Overheads, SentWeights
from hgpart.prediction.simulation import simulated
from hgpart.prediction.steps import part_steps
from hgpart.schedules.dynamic.simulated import as_ready
from hgpart.schedules.lowering import lower_turns
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.outline import Stretch
from hgpart.schedules.schedule import Action, Direction, Schedule

STEPS = 3  # consecutive steps from which the period is found; the first finds all parts idle


@dataclass(frozen=True, eq=False)
class Prediction:
    """The simulated time of a step.

    Attributes
    ----------
    seconds : float
        Seconds from the beginning of the step to the end of its last part; for a stream, of all its
        batches.
    period : float
        Seconds from one step's end to the next one's when steps follow each other, without the
        optimizer: less than `seconds` where parts that are done can begin the next step. For a
        stream, what its batches would take without those that fill and empty the pipeline.
    schedule : Schedule
        The schedule, including the weights that travel (see `hgpart.schedules.lowering`).
    spans : tuple of Span
        When each action of the schedule's order begins and ends.
    busy : float64 array, shape (k,)
        Seconds in which each part computes.
    update_seconds : float
        Seconds of the optimizer after the step, in the part that takes longest; 0 without backward
        passes, and for a stream, whose updates are actions.
    peak_bytes : tuple of int or None
        Most bytes that each part holds for work it still has to do, as `hgpart.peak_bytes`
        counts; None where that can't be known.
    step_bytes : tuple of int or None
        Most bytes that each part takes at any time, as `hgpart.placement.accounting.StepBytes`
        counts. Weights, their gradients and the optimizer's state are in neither.
    offloaded_bytes : int64 array, shape (k,)
        Bytes that each part writes to slower memory and reads from there.
    sent_bytes : int64 array, shape (k, k)
        Bytes from the part of the row to the part of the column.
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
    offloaded_bytes: Int64
    sent_bytes: Int64

    @property
    def batches(self) -> int:
        """Number of batches that were simulated: 1, or several for a stream."""
        return 1 if self.schedule.in_flight is None else self.schedule.micro_batches

    @property
    def batch_seconds(self) -> float:
        """Seconds of a batch, including the optimizer, when batches follow each other."""
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
        """Fraction of all parts' time in which they do not compute."""
        return float(self.idle.sum() / (self.seconds * len(self.busy))) if self.seconds else 0.0


def predict(
    placement: Placement,
    schedule: Schedule,
    machine: Machine,
    times: Times,
    batch_size: int | None = None,
    overheads: Overheads | None = None,
) -> Prediction:
    """Simulate a step of a placement, in its present mode, on a machine.

    Parameters
    ----------
    placement : Placement
        The placement, with all its parts in this process; it may be on the meta device.
    schedule : Schedule
        A schedule of this placement.
    machine : Machine
        A machine with at least as many devices as there are parts; of more, the fastest are taken.
        Part p is on the p-th of these.
    times : LayerTimes, or mapping of str to LayerTimes
        Times of the model's layers on a device of speed 1, or on each kind of device.
    batch_size : int, optional
        Samples in a step, or in each batch of a stream. Default: the plan's batch size.
    overheads : Overheads, optional
        Costs of steps and messages in Python. Default: `Overheads()`.

    Raises
    ------
    ArgumentError
        If the machine has fewer devices than parts, a kind of device has no times, the batch has
        fewer samples than micro-batches, or a part offloads to a device without room for that.
    PlacementError
        If a part offloads whose memory can't be counted.
    PlanError
        If the schedule is for another placement, or the times are for another model, or for inputs
        of other sizes than the placement's present ones (the batch's size apart).
    RunError
        If this process does not hold all parts.
    """
    k = placement.k
    if (held := len(placement.programs.parts)) != k:
        raise RunError(f"this process holds {held} of {k} parts: accepted is all of them")
    machine = machine.of_fastest(k)
    layers = len(placement.programs.blueprint.graph.layers)
    for timed in timed_devices(machine, times):
        if len(timed.times.layers) != layers:
            raise PlanError(
                f"times of {len(timed.times.layers)} layers: accepted are those of the model's "
                f"{layers}"
            )
    if not placement.forms.has_layers_as_placed:
        now, first = placement.forms.present, placement.forms.first
        raise PlanError(
            f"a placement for inputs of {now.said_beside(first)}: accepted is one for "
            f"{first.said_beside(now)}, as it was placed and times were measured"
        )
    turns = placement.forms.turns if schedule.turns else (placement.programs,)
    for turn, programs in enumerate(turns):
        check_fits(schedule, programs.parts, k, turn)
    size = placement.programs.partition.modelling.batch_size if batch_size is None else batch_size
    count, is_stream = schedule.micro_batches, schedule.in_flight is not None
    sizes = (size,) * count if is_stream else micro_batch_sizes(size, count)
    dropped = [outline.dropped for outline in schedule.outlines]
    known = known_step_bytes(placement, schedule, size)
    for part, (device, stretches) in enumerate(zip(machine.devices, dropped, strict=True)):
        if any(stretch.offloaded for stretch in stretches):
            # What can't be counted is refused here.
            step = known[part] or part_step_bytes(placement, part, schedule, size)
            _check_slower(machine.name, device, part, step.elsewhere)
    offloaded = Counter[Action]()  # by whole chunks, as weights that travel cut them into pieces
    for action, nbytes in chain.from_iterable(own.offloaded.items() for own in known if own):
        offloaded[action._replace(piece=None)] += nbytes
    steps = [part_steps(placement, programs) for programs in turns]
    lowered, weights = with_weights(placement, schedule)
    facts = sizes, dropped, times, machine, overheads or Overheads(), is_stream, weights
    costs = MeasuredCosts(steps, *facts, offloaded)
    if schedule.is_dynamic:
        lowered = replace(lowered, order=tuple(as_ready(lowered, costs)))
    products = {part: costs.products(part) for part in range(k) if schedule.backward}
    late = {part: job for part, job in products.items() if job.seconds}
    planned = jobs_of(lowered, costs, costs.job, late)
    sharing = sharing_of(machine, k, times)
    spans = simulated(planned.step, sharing)
    of_actions = planned.times(spans)
    return Prediction(
        seconds=spans.end,
        period=_of_stream(lowered, of_actions) if is_stream else period(planned, sharing),
        batch_size=size,
        schedule=lowered,
        spans=tuple(of_actions),
        busy=spans.busy,
        update_seconds=_update_seconds(costs, schedule),
        peak_bytes=tuple(None if nbytes is None else nbytes.held for nbytes in known),
        step_bytes=tuple(None if nbytes is None else nbytes.taken for nbytes in known),
        offloaded_bytes=np.array(
            [0 if own is None else sum(own.offloaded.values()) for own in known], dtype=np.int64
        ),
        sent_bytes=_sent(placement, lowered, costs),
    )


def forward_seconds(
    placement: Placement, machine: Machine, times: Times, samples: int
) -> tuple[dict[str, float], ...]:
    """Seconds of a forward pass of each part's steps, by name, for so many samples.

    Parameters
    ----------
    placement : Placement
        The placement, with all its parts in this process.
    machine : Machine
        The machine, as `predict` takes it.
    """
    steps = part_steps(placement)
    dropped: list[tuple[Stretch, ...]] = [()] * placement.k
    on = machine.of_fastest(placement.k)
    costs = MeasuredCosts([steps], (samples,), dropped, times, on)
    return tuple(
        {
            name: costs.seconds_of(part, name)
            for chunk in steps[part].forward
            for name in chunk.names
        }
        for part in range(placement.k)
    )


def _check_slower(machine: str, device: Device, part: int, nbytes: int) -> None:
    """Raise an ArgumentError if a device has no room for what its part offloads."""
    if device.slower is None:
        raise ArgumentError(
            f"part {part} offloads, and device {part} of machine {machine} has no slower memory: "
            'accepted is a machine file with "slower": {"bandwidth": ...} for it'
        )
    if device.slower.memory is not None and nbytes > device.slower.memory:
        raise ArgumentError(
            f"part {part} offloads {nbytes} bytes, and device {part} of machine {machine} has "
            f"{device.slower.memory} bytes of slower memory: accepted is one with room for them"
        )


def _of_stream(schedule: Schedule, spans: Sequence[Span]) -> float:
    """Seconds of a stream's batches at the pace of those in its middle.

    The pace is the time between the updates of a part. The first and the last batches don't count:
    as many as may be in flight less one, at each end. Where batches take turns, whole rounds count.
    """
    assert schedule.in_flight is not None
    fill, batches = schedule.in_flight - 1, schedule.micro_batches
    ends: list[list[float]] = [[] for _ in range(schedule.k)]
    for action, span in zip(schedule.order, spans, strict=True):
        if action.direction is Direction.UPDATE:
            ends[action.part].append(span.end)
    rounds = max(1, len(schedule.turns))
    last = fill + (batches - 1 - 2 * fill) // rounds * rounds
    middle = [of_part[fill : last + 1] for of_part in ends]
    if last <= fill:
        return max(span.end for span in spans)
    paces = ((of_part[-1] - of_part[0]) / (len(of_part) - 1) for of_part in middle)
    return batches * max(paces)


def with_weights(
    placement: Placement, schedule: Schedule
) -> tuple[Schedule, tuple[SentWeights | None, ...]]:
    """A schedule with the weights that travel in its order, and the size of each of them.

    Parameters
    ----------
    placement : Placement
        The placement, with all its parts in this process.
    schedule : Schedule
        The schedule as a rule makes it.
    """
    if not placement.programs.has_copies:
        return schedule, ()
    if schedule.turns:
        copies = placement.copies.in_turns(from_one)
        of_turns = [*map(travels_of, copies.of_turns)]
        lowered = lower_turns(schedule, travels_of(copies.weights), of_turns)
    else:
        copies = placement.copies.present
        lowered = placement.runtime.lowered(schedule, Travelling(copies, copies.weights))
    weights = tuple(
        None
        if copy.owner == copy.holder
        else SentWeights(copies.nbytes(copy), len(copy.elements) > 1)
        for copy in (*copies.weights, *chain.from_iterable(copies.of_turns))
    )
    return lowered, weights


def period(planned: Planned, sharing: Sharing) -> float:
    """Seconds from one step's end to the next one's: the mean over the last of `STEPS` steps."""
    return period_of(planned.step, sharing)


def period_of(step: TimedStep, sharing: Sharing) -> float:
    """The same of jobs and messages in arrays."""
    ends = simulated(step, sharing, STEPS).ends
    return float(ends[-1] - ends[0]) / (STEPS - 1)


def sharing_of(machine: Machine, k: int, times: Times) -> Sharing:
    """What the first k devices of a machine share: processors of a node; each has its own cable.

    Where devices of a node slow each other down, the slow-down is at least the one measured for
    steps of the model.
    """
    slowdown = Slowdown(machine.together)
    memory_bound = machine.memory_bound or slowdown
    measured = {id(timed.times): timed.times for timed in timed_devices(machine, times)}.values()
    if len(machine.together) > 1:
        slowdown, memory_bound = (
            Slowdown(
                tuple(
                    max(factors.of(count), *(own.together(count) for own in measured))
                    for count in range(1, max(machine.nodes) + 1)
                )
            )
            for factors in (slowdown, memory_bound)
        )
    return Sharing(machine.node_of[:k], slowdown, memory_bound, queues=True)


def _update_seconds(costs: MeasuredCosts, schedule: Schedule) -> float:
    if not schedule.backward or schedule.in_flight is not None:
        return 0.0
    return max(costs.update(part) for part in range(schedule.k))


def _sent(placement: Placement, schedule: Schedule, costs: MeasuredCosts) -> Int64:
    if not schedule.turns:
        planned = placement.programs.expected_traffic(costs.sizes, schedule.backward)
        return planned.forward_bytes + planned.backward_bytes
    sent = np.zeros((schedule.k, schedule.k), dtype=np.int64)
    for action in schedule.order:
        for receiver in schedule.sends(action):
            sent[action.part, receiver] += costs.sent(action, schedule.chunk(action), receiver)
    return sent
