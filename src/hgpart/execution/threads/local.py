"""Programs of all parts + inputs -> results, in one process: one thread per part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter, perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from hgpart.errors import PlacementError
from hgpart.execution.engine import placeholder_values
from hgpart.execution.held_memory import (
    Counter,
    copied,
    is_memory_counted,
    kept_by_graph,
    of_weights,
)
from hgpart.execution.records.events import Doing, Event
from hgpart.execution.records.totals import Timing, Traffic
from hgpart.execution.runtime import Placed, RunRecord, Runtime
from hgpart.execution.step_run import Score, backward_from
from hgpart.execution.threads.crew import Crew
from hgpart.execution.threads.local_call import called
from hgpart.schedules.schedule import Action, Direction, Schedule


class LocalRuntime(Runtime):
    """Runs all parts of a placement in this process, each on its device.

    Several parts have a thread each. A single part runs in the caller's thread and is ordinary
    autograd.

    Parameters
    ----------
    crew : Crew
        The parts' threads.

    Raises
    ------
    PlacementError
        If a part's program or device is missing.
    """

    def __init__(self, placed: Placed, crew: Crew) -> None:
        if not placed.k == len(placed.programs) == len(crew.parts):
            raise PlacementError(
                f"{len(placed.programs)} programs and {len(crew.parts)} devices for "
                f"{placed.k} parts: in one process each part needs both"
            )
        super().__init__(placed, crew)

    def run(self, values: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Run one batch.

        The results take part in the caller's autograd: their backward, once per run if there are
        several parts, adds to the `.grad` of the parameters and returns gradients of the inputs.

        Parameters
        ----------
        values : mapping
            Values of all placeholders of all parts, by name, on any device.

        Returns
        -------
        tuple of Tensor
            Results of the model, on the device of the output part; those of each share in turn.

        Raises
        ------
        Exception
            Whatever a part raises, unchanged; the runtime can be used again.
        """
        return self._run_alone(values) if self.k == 1 else called(self, values)

    def step(
        self,
        schedule: Schedule,
        batches: Sequence[Mapping[str, Any]],
        score: Callable[[int], Score],
        sizes: Sequence[int] = (),
    ) -> dict[int, list[Any]]:
        """Run a step like any `Runtime`; a single part goes through the micro-batches in turn."""
        if self.k > 1:
            return super().step(schedule, batches, score, sizes)
        self._check(schedule)
        scores: list[Any] = []
        self._run_in_turn(schedule, batches, score(0), scores.append)
        return {0: scores}

    def stream(
        self,
        schedule: Schedule,
        batches: Iterator[Mapping[str, Any]],
        score: Callable[[int], Score],
        update: Callable[[int], object],
        on_score: Callable[[int, Any], None],
        stash: bool,
        samples: int = 0,
    ) -> None:
        """Run a stream like any `Runtime`; a single part goes through the batches in turn."""
        if self.k > 1:
            super().stream(schedule, batches, score, update, on_score, stash, samples)
            return
        self._check(schedule)
        module = self.programs[0].module
        module.zero_grad()

        def finish(result: Any) -> None:
            update(0)
            module.zero_grad()
            on_score(0, result)

        self._run_in_turn(schedule, batches, score(0), finish)

    def _run_in_turn(
        self,
        schedule: Schedule,
        batches: Iterable[Mapping[str, Any]],
        score: Score,
        finish: Callable[[Any], None],
    ) -> None:
        """Run one micro-batch after the other, whatever the schedule says."""
        timing, events, peak = Timing(), list[Event](), 0
        for micro_batch, values in enumerate(batches):
            begin = perf_counter_ns()
            with torch.set_grad_enabled(schedule.backward):
                results = self._run_alone(copied(values) if is_memory_counted() else values)
                if is_memory_counted() and schedule.backward:
                    peak = max(peak, Counter()(_OnlyPart(self.programs[0].module, results)))
                scored = score(micro_batch, results)
            events.append(_event(Direction.FORWARD, micro_batch, begin))
            begin = perf_counter_ns()
            if schedule.backward:
                scored = backward_from(scored, results)
                events.append(_event(Direction.BACKWARD, micro_batch, begin))
            begin = perf_counter_ns()
            finish(scored)
            if schedule.in_flight is not None:
                events.append(_event(Direction.UPDATE, micro_batch, begin))
            timing += self.last.timing[0]
        counted = (peak,) if is_memory_counted() else ()
        self.last = RunRecord((Traffic.none(1),), (timing,), (events,), counted)

    def _run_alone(self, values: Mapping[str, Any]) -> tuple[Tensor, ...]:
        program, device = self.programs[0], self.devices[0]
        timing = Timing()
        started = perf_counter()
        inputs = placeholder_values(program, device, values)
        results: tuple[Tensor, ...] = program.module(*inputs)
        timing.forward_busy = perf_counter() - started
        _time_backward(results, timing)
        self.last = RunRecord((Traffic.none(1),), (timing,))
        return results


class _OnlyPart:
    """The only part, between forward and backward."""

    def __init__(self, module: nn.Module, results: Sequence[Tensor]) -> None:
        edges = [get_gradient_edge(result) for result in results if result.requires_grad]
        self.weights, self.held = of_weights(module), [[*results], [*kept_by_graph(edges)]]


def _event(direction: Direction, micro_batch: int, begin: int) -> Event:
    """All that the only part does with a micro-batch in a direction, as one event up to now."""
    return Event(Action(0, direction, micro_batch, 0), Doing.RUN, begin, perf_counter_ns())


def _time_backward(results: Sequence[Tensor], timing: Timing) -> None:
    """Time autograd's pass from the first gradient of a result to its end."""
    under_way = False

    def begin(_: Any) -> None:
        nonlocal under_way
        if under_way:
            return
        under_way = True
        started = perf_counter()

        def end() -> None:
            nonlocal under_way
            under_way = False
            timing.backward_busy += perf_counter() - started

        Variable._execution_engine.queue_callback(end)

    for result in results:
        if result.grad_fn is not None:
            result.grad_fn.register_prehook(begin)
