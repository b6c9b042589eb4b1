"""Programs of all parts + inputs -> results, in one process: a thread for each part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from operator import add
from time import perf_counter, perf_counter_ns
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from hgpart.errors import PlacementError
from hgpart.execution.engine import PartRun, placeholder_values
from hgpart.execution.events import Doing, Event
from hgpart.execution.first_order import first_order
from hgpart.execution.held_memory import (
    Counter,
    copied,
    is_memory_counted,
    kept_by_graph,
    of_weights,
)
from hgpart.execution.outlines import check_fits
from hgpart.execution.program import PartProgram
from hgpart.execution.step_run import Score, StepRun, backward_from
from hgpart.execution.threads.local_wires import LocalWires
from hgpart.execution.threads.shared_batches import SharedBatches
from hgpart.execution.threads.workers import Workers
from hgpart.execution.totals import Timing, Totals, Traffic
from hgpart.execution.weights.versions import SharedWeights, Versions
from hgpart.schedules.schedule import Action, Direction, Schedule


class InFlight(SharedWeights, Protocol):
    """What a part has in common with others in a stream; it adds to what the part sent."""

    sent: Traffic


class Copies(Protocol):
    """What several parts have, which a pass has begun with; it adds to what each part sent."""

    def end(self, sent: Sequence[Traffic]) -> None:
        """End a backward pass."""

    def clear(self) -> None:
        """Forget the gradients that a backward pass has left, however it ended."""


BeginCopies = Callable[[Sequence[Traffic]], Copies]  # in the present mode and grad mode


@dataclass(frozen=True, eq=False)
class Placed:
    """What a runtime needs to know of a placement.

    Attributes
    ----------
    k : int
        Number of parts.
    devices : sequence of torch.device
        Where each part is.
    programs : mapping of int to PartProgram
        What each part does.
    output_parts : tuple of int
        The part that has the model's results, for each share of the batch.
    begin_copies : callable or None
        Begins a pass where parts have copies of each other's state.
    """

    k: int
    devices: Sequence[torch.device]
    programs: Mapping[int, PartProgram]
    output_parts: tuple[int, ...]
    begin_copies: BeginCopies | None = None


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What one batch sent and how long it took; backward adds its share when it runs.

    Attributes
    ----------
    sent : tuple of Traffic
        What each part sent.
    timing : tuple of Timing
        Of each part.
    events : tuple of Event
        Of a step: what all parts did when, one part after the other.
    peak_bytes : tuple of int
        Of a step that was `hgpart.execution.held_memory.memory_counted`: the most that each part
        held.
    """

    sent: tuple[Traffic, ...]
    timing: tuple[Timing, ...]
    events: tuple[Event, ...] = ()
    peak_bytes: tuple[int, ...] = ()

    @staticmethod
    def none(k: int) -> RunRecord:
        """Of k parts that have done nothing."""
        parts = range(k)
        return RunRecord(tuple(Traffic.none(k) for _ in parts), tuple(Timing() for _ in parts))

    @property
    def traffic(self) -> Traffic:
        """What all parts sent."""
        return reduce(add, self.sent)

    @property
    def totals(self) -> Totals:
        """The same as of a run of many batches."""
        return Totals(self.timing, self.traffic)


class LocalRuntime:
    """Runs all parts of a placement in this process, each on its device.

    Several parts have a thread each, started by the first `run`; the CPU parts share the caller's
    intra-op threads. A single part runs in the caller's thread and is ordinary autograd.

    Attributes
    ----------
    last : RunRecord
        Of the last `run` that ended well; of nothing before.

    Raises
    ------
    PlacementError
        If a part's program or device is missing.
    """

    def __init__(self, placed: Placed) -> None:
        self.k = placed.k
        self.devices = tuple(placed.devices)
        self.programs = tuple(placed.programs[part] for part in sorted(placed.programs))
        self.output_parts, self._begin_copies = placed.output_parts, placed.begin_copies
        if not self.k == len(self.programs) == len(self.devices):
            raise PlacementError(
                f"{len(self.programs)} programs and {len(self.devices)} devices for {self.k} parts:"
                " in one process each part needs both"
            )
        self.last = RunRecord.none(self.k)
        self._workers: Workers | None = None
        self._threads = 0
        self._fitting: WeakSet[Schedule] = WeakSet()

    @property
    def transfers(self) -> set[int]:
        """Numbers of all that travels."""
        return {number for program in self.programs for number in program.transfers}

    def run(self, values: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Run one batch.

        The results take part in the caller's autograd: their backward, once per run if there are
        several parts, adds to the `.grad` of the parameters and returns gradients of the inputs.

        Parameters
        ----------
        values : mapping
            Placeholder name -> value, of all placeholders of all parts, on any device.

        Returns
        -------
        tuple of Tensor
            The model's results, on the device of the output part; those of each share in turn.

        Raises
        ------
        Exception
            Whatever a part raises, as it is; the runtime can be used again.
        """
        if self.k == 1:
            return self._run_alone(values)
        batch = _Batch(self)
        if torch.is_grad_enabled() and self._learns(values):
            inputs = {
                name: value
                for name, value in values.items()
                if isinstance(value, Tensor) and value.requires_grad
            }
            start = torch.empty((), requires_grad=True)
            token = _Forward.apply(batch, values, tuple(inputs), start, *inputs.values())  # type: ignore[no-untyped-call]
            results: tuple[Tensor, ...] = _Results.apply(batch, token)  # type: ignore[no-untyped-call]
        else:
            with torch.no_grad():
                results = batch.forward(values)
        self.last = batch.record
        return results

    def begin_copies(self, sent: Sequence[Traffic]) -> Copies | None:
        """Let copies be like what they are of, if parts have some; returns them, for the end."""
        return None if self._begin_copies is None else self._begin_copies(sent)

    def step(
        self,
        schedule: Schedule,
        batches: Sequence[Mapping[str, Any]],
        score: Callable[[int], Score],
    ) -> dict[int, list[Any]]:
        """Run a step by a schedule, with its backward passes if it has some.

        Parameters
        ----------
        schedule : Schedule
        batches : sequence of mapping
            For each micro-batch the values that `run` takes.
        score : callable
            Of a part that has results, given a micro-batch and them; see `StepRun`.

        Returns
        -------
        dict of int to list
            By part that has results, what `score` returned for each micro-batch.

        Raises
        ------
        PlanError
            If the schedule is for other programs.
        Exception
            Whatever a part raises, as it is; the runtime can be used again.
        """
        self._check(schedule)
        scores: list[Any] = []
        if self.k == 1:
            self._run_in_turn(schedule, batches, score(0), scores.append)
            return {0: scores}
        wires = [LocalWires(self.devices, self.transfers) for _ in batches]
        runs = [
            StepRun(
                program,
                device,
                self.k,
                wires,
                batches,
                score=self._only(part, score),
                again=outline.again,
            )
            for part, (program, device, outline) in enumerate(
                zip(self.programs, self.devices, schedule.outlines, strict=True)
            )
        ]
        self._run_together(schedule, runs, wires)
        return {
            part: [runs[part].scores[micro_batch] for micro_batch in range(len(batches))]
            for part in sorted(set(self.output_parts))
        }

    def stream(
        self,
        schedule: Schedule,
        batches: Iterator[Mapping[str, Any]],
        score: Callable[[int], Score],
        update: Callable[[int], object],
        on_score: Callable[[int, Any], None],
        stash: bool,
        shared: Sequence[InFlight] = (),
        shared_wires: LocalWires | None = None,
    ) -> None:
        """Run a stream of batches by a schedule whose parts update their weights.

        Parameters
        ----------
        schedule : Schedule
        batches : iterator of mapping
            Gives the values that `run` takes, when the first part begins a batch.
        score : callable
            As in `step`, for batches.
        update : callable
            Told a part, whose parameters it changes by their `grad`.
        on_score : callable
            Told a part that has results and what it made of them, batch by batch.
        stash : bool
            See `Versions`.
        shared : sequence of InFlight, optional
            Of each part, what it has in common with others.
        shared_wires : LocalWires, optional
            By which that travels.

        Raises
        ------
        Exception
            As `step`. Some parts have done more updates then than others.
        """
        self._check(schedule)
        modules = [program.module for program in self.programs]
        if self.k == 1:
            modules[0].zero_grad()

            def finish_alone(found: Any) -> None:
                update(0)
                modules[0].zero_grad()
                on_score(0, found)

            self._run_in_turn(schedule, batches, score(0), finish_alone)
            return
        # What two parts send each other through one transfer goes by the order of batches.
        wires = LocalWires(self.devices, self.transfers)
        source = SharedBatches(batches, self.k, schedule.under_way)

        def finish(part: int, found: Any) -> None:
            source.end(part)
            if part in self.output_parts:
                on_score(part, found)

        runs = [
            StepRun(
                program,
                device,
                self.k,
                [wires] * schedule.micro_batches,
                source.of(part),
                score=self._only(part, score),
                again=schedule.outlines[part].again,
                versions=Versions(
                    program.module, partial(update, part), stash, shared[part] if shared else None
                ),
                on_update=partial(finish, part),
            )
            for part, (program, device) in enumerate(zip(self.programs, self.devices, strict=True))
        ]
        if shared:
            for run, one in zip(runs, shared, strict=True):
                run.traffic = one.sent
        more = () if shared_wires is None else (shared_wires,)
        self._run_together(schedule, runs, [wires, source, *more])

    def _check(self, schedule: Schedule) -> None:
        if schedule not in self._fitting:
            check_fits(schedule, dict(enumerate(self.programs)), self.k)
            self._fitting.add(schedule)

    def _run_together(
        self,
        schedule: Schedule,
        runs: Sequence[StepRun],
        shared: Sequence[LocalWires | SharedBatches],
    ) -> None:
        def stop() -> None:
            for each in shared:
                each.stop()

        record = RunRecord(tuple(run.traffic for run in runs), tuple(run.timing for run in runs))
        with torch.set_grad_enabled(schedule.backward):
            copies = self.begin_copies(record.sent)
            jobs = map(partial, (run.run for run in runs), schedule.sequences)
            in_step = schedule.in_flight is None
            with _ended(copies if schedule.backward else None, record.sent, in_step):
                self.everywhere([*jobs], streams_of(self.devices), stop)
        self.last = replace(
            record,
            events=tuple(chain.from_iterable(run.events for run in runs)),
            peak_bytes=tuple(peak for run in runs for peak in run.peak_bytes),
        )

    def _only(self, part: int, score: Callable[[int], Score]) -> Score | None:
        return score(part) if part in self.output_parts else None

    def _run_in_turn(
        self,
        schedule: Schedule,
        batches: Iterable[Mapping[str, Any]],
        score: Score,
        finish: Callable[[Any], None],
    ) -> None:
        """One micro-batch after the other, whatever the schedule."""
        timing, events, peak = Timing(), [], 0
        for micro_batch, values in enumerate(batches):
            begin = perf_counter_ns()
            with torch.set_grad_enabled(schedule.backward):
                results = self._run_alone(copied(values) if is_memory_counted() else values)
                if is_memory_counted() and schedule.backward:
                    peak = max(peak, Counter()(_Alone(self.programs[0].module, results)))
                found = score(micro_batch, results)
            events.append(_alone(Direction.FORWARD, micro_batch, begin))
            begin = perf_counter_ns()
            if schedule.backward:
                found = backward_from(found, results)
                events.append(_alone(Direction.BACKWARD, micro_batch, begin))
            finish(found)
            timing += self.last.timing[0]
        counted = (peak,) if is_memory_counted() else ()
        self.last = RunRecord((Traffic.none(1),), (timing,), tuple(events), counted)

    def everywhere(
        self,
        jobs: Sequence[Callable[[], Any]],
        streams: Sequence[Any],
        stop: Callable[[], object],
    ) -> list[Any]:
        """Run a job in each part's thread, with the caller's modes and CUDA streams."""
        modes = _Modes(self.devices)

        def run(job: Callable[[], Any], device: torch.device) -> Any:
            with modes.entered(), ExitStack() as entered:
                # The part's own device last: it is the current one then.
                for stream in sorted(streams, key=lambda stream: stream.device == device):
                    entered.enter_context(torch.cuda.stream(stream))
                return job()

        return self.workers().run(
            [partial(run, job, device) for job, device in zip(jobs, self.devices, strict=True)],
            stop=stop,
        )

    def close(self) -> None:
        """End the threads; the next run starts new ones."""
        self._workers = None

    def workers(self) -> Workers:
        """The parts' threads, with their share of the intra-op threads."""
        threads = torch.get_num_threads()
        if self._workers is None:
            self._workers = Workers(self.k)
            self._threads = 0
        if threads != self._threads:
            on_cpu = sum(device.type == "cpu" for device in self.devices)
            share = max(1, threads // max(1, on_cpu))
            self._workers.run([partial(_set_threads, share)] * self.k, stop=lambda: None)
            # It holds for the thread that calls it, but new threads begin with the latest number.
            torch.set_num_threads(threads)
            self._threads = threads
        return self._workers

    def _run_alone(self, values: Mapping[str, Any]) -> tuple[Tensor, ...]:
        (program,), (device,) = self.programs, self.devices
        timing = Timing()
        started = perf_counter()
        inputs = placeholder_values(program, device, values)
        results: tuple[Tensor, ...] = program.module(*inputs)
        timing.forward_busy = perf_counter() - started
        _time_backward(results, timing)
        self.last = RunRecord((Traffic.none(1),), (timing,))
        return results

    def _learns(self, values: Mapping[str, Any]) -> bool:
        parameters = chain.from_iterable(program.module.parameters() for program in self.programs)
        tensors = (value for value in values.values() if isinstance(value, Tensor))
        return any(tensor.requires_grad for tensor in chain(tensors, parameters))

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have no threads yet."""
        return {
            **self.__dict__,
            "_workers": None,
            "last": RunRecord.none(self.k),
            "_fitting": WeakSet(),
        }


class _Alone:
    """The only part, between forward and backward."""

    def __init__(self, module: nn.Module, results: Sequence[Tensor]) -> None:
        edges = [get_gradient_edge(result) for result in results if result.requires_grad]
        self.weights, self.held = of_weights(module), [[*results], [*kept_by_graph(edges)]]


def streams_of(devices: Sequence[torch.device]) -> list[Any]:
    """The current stream of each GPU."""
    return [
        torch.cuda.current_stream(device)
        for device in dict.fromkeys(devices)
        if device.type == "cuda"
    ]


def _alone(direction: Direction, micro_batch: int, begin: int) -> Event:
    """All that the only part does with a micro-batch in a direction, up to now."""
    return Event(Action(0, direction, micro_batch, 0), Doing.RUN, begin, perf_counter_ns())


def _set_threads(number: int) -> None:
    # A new thread takes the number that is the latest when it first asks: let that be over.
    torch.get_num_threads()
    torch.set_num_threads(number)


def _time_backward(results: Sequence[Tensor], timing: Timing) -> None:
    """Time from the first gradient of a result to the end of autograd's pass."""
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


class _Batch:
    """All parts' runs of one batch."""

    def __init__(self, runtime: LocalRuntime) -> None:
        self._runtime = runtime
        self._wires = LocalWires(runtime.devices, runtime.transfers)
        self._runs = [
            PartRun(program, self._wires, device, runtime.k)
            for program, device in zip(runtime.programs, runtime.devices, strict=True)
        ]
        # Backward runs on the streams of forward, as autograd does.
        self._streams = streams_of(runtime.devices)
        self.record = RunRecord(
            tuple(run.traffic for run in self._runs), tuple(run.timing for run in self._runs)
        )
        self._copies = runtime.begin_copies(self.record.sent)
        self.results: tuple[Tensor, ...] = ()
        self.gradients: tuple[Tensor | None, ...] = ()

    def forward(self, values: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Run all parts forward."""
        found = self._everywhere([partial(run.forward, values) for run in self._runs])
        by_part = {part: iter(results) for part, results in enumerate(found)}
        outputs = self._runtime.output_parts
        return tuple(
            next(by_part[part])
            for part in outputs
            for _ in range(len(found[part]) // outputs.count(part))
        )

    def backward(
        self, gradients: Sequence[Tensor | None], weights: bool
    ) -> dict[str, Tensor | None]:
        """Run all parts backward, for weights or not; returns the inputs' gradients."""
        outputs = self._runtime.output_parts
        each = len(gradients) // len(outputs)
        by_part: list[list[Tensor | None]] = [[] for _ in self._runs]
        for share, part in enumerate(outputs):
            by_part[part] += gradients[share * each : (share + 1) * each]
        jobs = [
            partial(run.backward, by_part[part], weights) for part, run in enumerate(self._runs)
        ]
        total: dict[str, Tensor | None] = {}
        with _ended(self._copies if weights else None, self.record.sent):
            by_job = self._everywhere(jobs)
        for name, gradient in chain.from_iterable(found.items() for found in by_job):
            so_far = total.get(name)
            if so_far is not None and gradient is not None:
                gradient = so_far + gradient.to(so_far.device)
            total[name] = so_far if gradient is None else gradient
        return total

    def _everywhere(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        return self._runtime.everywhere(jobs, self._streams, self._wires.stop)


@contextmanager
def _ended(copies: Copies | None, sent: Sequence[Traffic], in_step: bool = True) -> Iterator[None]:
    """A backward pass: then the gradients of copies go where they belong to, if it ends well.

    In a stream they have gone there batch by batch.
    """
    if copies is None:
        yield
        return
    try:
        yield
        if in_step:
            copies.end(sent)
    finally:
        copies.clear()


class _Modes:
    """What torch keeps for each thread, of the thread that makes this."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._inference = torch.is_inference_mode_enabled()
        self._grad = torch.is_grad_enabled()
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in dict.fromkeys(device.type for device in devices)
            if torch.is_autocast_enabled(kind)
        ]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Set the same for this thread."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for kind, dtype in self._autocast:
                # The cache of casts is one for all threads, and the first that ends empties it.
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            yield


# Two functions, for the sake of GPUs: autograd runs the backward of `_Results` in the thread of
# the results' device. If it waited for the parts there, their own backward could not use that
# thread. `_Forward` returns a token on the CPU, so its backward runs in the caller's thread.


class _Forward(torch.autograd.Function):
    """Inputs -> a token that stands for the results."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: _Batch,
        values: Mapping[str, Any],
        names: tuple[str, ...],
        start: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        ctx.batch, ctx.names = batch, names
        ctx.devices = [tensor.device for tensor in inputs]
        with torch.enable_grad():
            batch.results = batch.forward(values)
        return torch.zeros_like(start)

    @staticmethod
    @first_order
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:
        # `start` stands for the parameters: torch.autograd.grad of inputs leaves it out.
        weights = torch._C._will_engine_execute_node(ctx.next_functions[0][0])
        gradients = ctx.batch.backward(ctx.batch.gradients, weights)
        ctx.batch.gradients = ()
        found = (gradients.get(name) for name in ctx.names)
        pairs = zip(found, ctx.devices, strict=True)
        return (
            None,
            None,
            None,
            None,
            *(None if each is None else each.to(device) for each, device in pairs),
        )


class _Results(torch.autograd.Function):
    """A token -> the results."""

    @staticmethod
    def forward(ctx: Any, batch: _Batch, token: Tensor) -> tuple[Tensor, ...]:
        results, batch.results = batch.results, ()
        ctx.batch = batch
        ctx.set_materialize_grads(False)
        outputs = tuple(result.detach() for result in results)
        pairs = zip(results, outputs, strict=True)
        ctx.mark_non_differentiable(*(out for leaf, out in pairs if not leaf.requires_grad))
        return outputs

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, Tensor]:
        ctx.batch.gradients = gradients
        return None, torch.zeros(())
