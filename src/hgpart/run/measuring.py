"""Placement + inputs -> Measurement: passes of a placed model, timed and counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hgpart.errors import ArgumentError, RunError
from hgpart.execution.held_memory import memory_counted
from hgpart.execution.records.events import Event, Timeline
from hgpart.execution.records.totals import Totals
from hgpart.operators.calls import has_gradients
from hgpart.placement import Placement
from hgpart.placement.ordering.ordered import costs_of
from hgpart.run.distributed import DistributedModel
from hgpart.run.learner import timeline_of
from hgpart.run.placed_model import PlacedModel
from hgpart.run.processes.connection import Connection
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import LONGEST
from hgpart.schedules.simulation import bubble
from hgpart.tracing.arguments import Inputs
from hgpart.work.watching import Watch, caution


@dataclass(frozen=True, eq=False)
class Measurement:
    """The time of some steps on equal batches, and what was sent in them.

    Attributes
    ----------
    backward : bool
        Whether a step is a forward and a backward pass, or a forward pass only.
    seconds : float
        Seconds of all steps.
    totals : Totals
        Totals of all parts, in all steps.
    simulated_bubble : float
        The `bubble` by the schedule's own costs.
    timeline : Timeline
        Timeline of the steps, if it was wanted; else empty. A stream counts as one step.
    planned : tuple of Event
        What should have been done in the last step and when, by the schedule's own costs.
    staleness : tuple of tuple of int
        For each part, and each batch of the first stream, the number of updates that its forward
        pass lacks.
    peak_bytes : tuple of int
        Most bytes that each part held for work it still had to do, counted in an extra step or
        stream; see `hgpart.execution.held_memory`.
    planned_peak_bytes : tuple of int or None
        The same bytes computed from the schedule, where possible.
    disturbed : str
        What disturbed the measurement, as `hgpart.work.watching` says it; empty where nothing did.
    """

    steps: int
    batch_size: int
    backward: bool
    seconds: float
    totals: Totals
    simulated_bubble: float = 0.0
    timeline: Timeline = ()
    planned: tuple[Event, ...] = ()
    staleness: tuple[tuple[int, ...], ...] = ()
    peak_bytes: tuple[int, ...] = ()
    planned_peak_bytes: tuple[int | None, ...] = ()
    disturbed: str = ""

    @property
    def caution(self) -> str:
        """Why its seconds can't be trusted; empty where nothing is known against them."""
        return caution("The measured seconds", self.disturbed)

    @property
    def samples_per_second(self) -> float:
        """Throughput of the steps."""
        return self.steps * self.batch_size / self.seconds

    @property
    def busiest(self) -> float:
        """Fraction of the time in which the busiest part works."""
        return max(timing.busy for timing in self.totals.timings) / self.seconds

    @property
    def bubble(self) -> float:
        """Fraction of all parts' time in which they did not work: they waited, or had no step."""
        timings = self.totals.timings
        return 1 - sum(timing.busy for timing in timings) / (self.seconds * len(timings))


def measure(
    placement: Placement,
    inputs: Inputs,
    steps: int,
    *,
    backward: bool = False,
    connection: Connection | None = None,
    scheduling: Scheduling | None = None,
    timeline: bool = False,
    on_step: Callable[[int], None] = lambda done: None,
) -> Measurement:
    """Run a step whose memory is counted, then `steps` steps whose time is measured.

    If other programs disturb these steps, they are measured once more.

    Called in every process of a `connection`, with the same arguments and its part of the
    placement; without a connection, the placement runs in this process.

    Parameters
    ----------
    placement : Placement
        It is left in training mode if there are backward passes, else in evaluation.
    inputs : tensor, sequence or mapping
        A batch, as `Placement.step` takes it.
    backward : bool
        Whether a step has a backward pass as well, from the mean square of what the model returns.
        An update of a stream changes nothing, but batches in flight keep weights as if it did.
    scheduling : Scheduling, optional
        Default: the whole batch at once. With the rule ``async`` or ``dynamic`` the steps are
        streams of at most `LONGEST`, which begin and end with no batch in flight.
    timeline : bool
        Whether to keep what each part did and when.
    on_step : callable
        Called with the number of steps done.
    """
    if steps < 1:
        raise ArgumentError(f"{steps} steps: accepted is 1 or more")
    placement.train(backward)
    model = placement if connection is None else DistributedModel(placement, connection)
    learner = PlacedModel(model, scheduling)
    batch_size = placement.programs.batch_size_of(placement.programs.tensors_of(inputs))
    wanted = learner.scheduling
    if wanted.is_stream and not backward:
        raise ArgumentError(f"{wanted.rule} without backward passes: it needs them")
    at_once = min(steps, LONGEST) if wanted.is_stream else 1
    with torch.set_grad_enabled(backward):
        with memory_counted():  # the first step also starts threads and makes connections
            _run(learner, inputs, batch_size, wanted.sample_batches)
        peak = learner.counted_peak()
        planned = learner.schedule(at_once, batch_size)

        stale: list[Sequence[Sequence[int]]] = []

        def timed() -> tuple[float, Totals, list[tuple[Event, ...]]]:
            learner.count_anew()
            started, events = _now(learner), list[tuple[Event, ...]]()
            for done in range(0, steps, at_once):
                count = min(at_once, steps - done)
                stale.append(_run(learner, inputs, batch_size, count))
                if timeline:
                    events.append(tuple(learner.events))
                on_step(done + count)
            return _now(learner) - started, learner.totals(), events

        watch = Watch(learner.gather)
        seconds, totals, events = watch.measure(timed)
        planned_peak = learner.peak_bytes(batch_size)
        last = learner.planned(steps % at_once or at_once, batch_size) if timeline else ()
    return Measurement(
        steps,
        batch_size,
        backward,
        seconds,
        totals,
        bubble(planned, costs_of(placement, wanted.micro_batches, batch_size)),
        timeline_of(learner, events),
        last,
        tuple(map(tuple, stale[0])),
        peak,
        planned_peak,
        watch.disturbed,
    )


def _run(
    learner: PlacedModel, inputs: Inputs, batch_size: int, count: int
) -> Sequence[Sequence[int]]:
    """Run a pass or two; or a stream of `count` batches, with updates that change nothing.

    Returns what `PlacedModel.learn` does.
    """
    learner.model.zero_grad()
    learns = torch.is_grad_enabled()
    if learns:
        learner.placement.copies.let_weights_travel()  # as after an update
    if learner.scheduling.is_stream:
        batches = repeat((inputs, None), count)
        return learner.learn(batches, count, batch_size, _mean_square_of, _ignore, _ignore)
    learner.step(inputs, None, batch_size, _mean_square_of if learns else None)
    return ()


def _ignore(ignored: object) -> None:
    """For callbacks whose values do not matter: parts to update, and losses."""


def _mean_square_of(result: object, targets: None) -> Tensor:
    return mean_square(result)


def _now(learner: PlacedModel) -> float:
    """The present time, after everything that was begun is done, in all processes."""
    for device in set(learner.placement.devices):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    learner.gather(None)
    return time.perf_counter()


def mean_square(result: object) -> Tensor:
    """A loss for whatever a model returns.

    >>> mean_square({"a": torch.ones(2, 3), "b": (torch.zeros(2), torch.tensor([3 + 4j]))})
    tensor(26.)

    Raises
    ------
    RunError
        If the model returns no numbers that could have a gradient.
    """
    tensors = [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]
    squares = [
        (value * value.conj()).real.mean().cpu() for value in tensors if has_gradients(value.dtype)
    ]
    if not squares:
        raise RunError("the model returns no floating-point numbers: leave out --backward")
    return torch.stack(squares).sum()
