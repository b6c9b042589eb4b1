"""Programs of parts + Transport -> Runtime: passes, steps and streams, in threads or processes.

A `Placed` is what a runtime needs to know of a placement. A `RunningPass` is its work by a
schedule: a batch forward and then back, a step, or a stream. All that travels is in the schedule's
one order: maps and their gradients where the rule has them, weights that several parts compute with
where `hgpart.schedules.lowering` adds them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import chain
from operator import add
from threading import Lock
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from hgpart.errors import PlanError, RunError
from hgpart.execution.autocast import autocast_type
from hgpart.execution.offloading.stores import slow_store
from hgpart.execution.outlines import check_fits, outline, uses
from hgpart.execution.program import PartProgram
from hgpart.execution.records.events import Event, staleness
from hgpart.execution.records.totals import Timing, Totals, Traffic
from hgpart.execution.step_run import PartOnDevice, Score, StepRun, Updates
from hgpart.execution.transport import QueuedChannel, Transport
from hgpart.execution.weights.copies import Copies, Travelling, travels_of
from hgpart.execution.weights.versions import Versions
from hgpart.schedules import make_schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.dynamic.order import DynamicOrder
from hgpart.schedules.lowering import lower, lower_turns
from hgpart.schedules.outline import Outline, Uses
from hgpart.schedules.schedule import Action, Direction, Schedule

Gather = Callable[[Any], list[Any]]  # collects the values of all processes, in their order
Made = TypeVar("Made")
# One of the caller's threads at a time finds out which copies are out of date, and updates them.
BEGINNING = Lock()


@dataclass(frozen=True, eq=False)
class Placed:
    """What a runtime needs to know of a placement, in one form.

    Attributes
    ----------
    k : int
        Number of parts.
    programs : mapping of int to PartProgram
        Programs of the parts in this process.
    output_parts : tuple of int
        The part that has the model's results, for each share of the batch.
    copies : callable or None
        Finds the copies that parts have of each other's state; all processes call it. None if there
        are none.
    turns : sequence of mapping of int to PartProgram
        Programs of the parts in each turn, where batches take turns; `programs` are the first.
    """

    k: int
    programs: Mapping[int, PartProgram]
    output_parts: tuple[int, ...]
    copies: Callable[[Gather], Copies] | None = None
    turns: Sequence[Mapping[int, PartProgram]] = ()


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What the parts in this process sent and when; a backward pass adds to it when it runs.

    Attributes
    ----------
    sent : tuple of Traffic
        Messages that each part sent.
    timing : tuple of Timing
        Seconds that each part worked and waited.
    by_part : tuple of list of Event
        Events of each part.
    peak_bytes : tuple of int
        The most bytes that each part held, if memory was counted; see
        `hgpart.execution.held_memory.memory_counted`.
    """

    sent: tuple[Traffic, ...]
    timing: tuple[Timing, ...]
    by_part: tuple[list[Event], ...] = ()
    peak_bytes: tuple[int, ...] = ()

    @staticmethod
    def none(parts: int, k: int) -> RunRecord:
        """A record of some of k parts that have done nothing yet."""
        numbers = range(parts)
        return RunRecord(tuple(Traffic.none(k) for _ in numbers), tuple(Timing() for _ in numbers))

    @property
    def events(self) -> tuple[Event, ...]:
        """Events of all parts, one part after the other."""
        return tuple(chain.from_iterable(self.by_part))

    @property
    def staleness(self) -> tuple[tuple[int, ...], ...]:
        """The number of updates that each part's own weights lacked, for each batch of a stream."""
        return tuple(map(staleness, self.by_part))

    @property
    def traffic(self) -> Traffic:
        """Messages that all parts sent."""
        return reduce(add, self.sent)

    @property
    def totals(self) -> Totals:
        """The record as part of a run of many batches."""
        return Totals(self.timing, self.traffic)


class Runtime:
    """Runs the parts of a placement that are in this process.

    Attributes
    ----------
    last : RunRecord
        Record of the last pass, step or stream that ended well. A backward pass makes its call the
        last one again.
    """

    def __init__(self, placed: Placed, transport: Transport) -> None:
        self.k, self.output_parts = placed.k, placed.output_parts
        self.devices = {part: transport.device(part) for part in transport.parts}
        self.programs = {part: placed.programs[part] for part in transport.parts}
        self._turns = {
            part: tuple(programs[part] for programs in placed.turns or [placed.programs])
            for part in transport.parts
        }
        self.last = RunRecord.none(len(transport.parts), self.k)
        self.transport, self._copies_of = transport, placed.copies
        self._whole_batch: Schedule | None = None
        self._forget()

    def _forget(self) -> None:
        self._slower = {part: slow_store(device) for part, device in self.devices.items()}
        self._fitting: WeakSet[Schedule] = WeakSet()
        self._uses: tuple[Copies, list[Uses]] | None = None
        self._lowered: WeakKeyDictionary[Schedule, tuple[Copies, Schedule]] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles know no schedules and no record, and have stores of their own."""
        known = "_slower", "_fitting", "_uses", "_lowered"
        kept = {name: value for name, value in self.__dict__.items() if name not in known}
        return {**kept, "last": RunRecord.none(len(self.programs), self.k)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start without what a copy does not know."""
        self.__dict__.update(state)
        self._forget()

    @property
    def whole_batch(self) -> Schedule:
        """Schedule of a whole batch at once; all processes ask for it the first time."""
        if self._whole_batch is None:
            outlines: list[Outline] = self._of_all(lambda program: outline(program, {}))
            self._whole_batch = make_schedule(outlines, "sequential", 1, Costs())
        return self._whole_batch

    @cached_property
    def back_to_inputs(self) -> Schedule:
        """The backward pass of `whole_batch` with gradients of inputs only."""
        back = self.whole_batch.backward_only
        order = (action._replace(direction=Direction.MAPS) for action in back.order)
        return replace(back, order=tuple(order))

    def forward(self, values: Mapping[str, Any], samples: int, learns: bool) -> RunningPass:
        """Run a batch forward, in the caller's grad mode.

        Parameters
        ----------
        values : mapping
            Values of all placeholders of the parts in this process, by name, on any device.
        samples : int
            Samples of the batch; threads ignore it.
        learns : bool
            Whether a backward pass may follow, for which parts begin with each other's weights.

        Raises
        ------
        Exception
            Whatever a part raises, unchanged; with threads the runtime can be used again.
        """
        schedule = self.whole_batch
        sent = self._nothing_sent()
        travelling = self._begun(learns, sent)
        if learns:
            schedule = self.lowered(schedule, travelling)
        runs = self._runs(
            schedule, {part: iter([values]) for part in self.programs}, travelling, sent
        )
        begun = RunningPass(self, runs, schedule, (samples,), travelling)
        self.last = begun.run(schedule.forward_only)
        if learns and travelling is not None:
            travelling.note()
        return begun

    def step(
        self,
        schedule: Schedule,
        batches: Sequence[Mapping[str, Any]],
        score: Callable[[int], Score],
        sizes: Sequence[int] = (),
    ) -> dict[int, list[Any]]:
        """Run a step by a schedule, with backward passes if the schedule has them.

        Parameters
        ----------
        schedule : Schedule
            Schedule of a rule, without weights that travel.
        batches : sequence of mapping
            Values of each micro-batch, as `forward` takes them.
        score : callable
            Function from a part that has results to its `score`; see `StepRun`.
        sizes : sequence of int
            Samples of each micro-batch; threads ignore them.

        Returns
        -------
        dict of int to list
            Scores of each micro-batch, for each part in this process that has results.

        Raises
        ------
        PlanError
            If the schedule was made for other programs.
        Exception
            Whatever a part raises, as in `forward`.
        """
        self._check(schedule)
        with torch.set_grad_enabled(schedule.backward):
            sent = self._nothing_sent()
            travelling = self._begun(schedule.backward, sent)
            sources = {part: iter(batches) for part in self.programs}
            runs = self._runs(schedule, sources, travelling, sent, score)
            lowered = self.lowered(schedule, travelling)
            self.last = RunningPass(self, runs, lowered, sizes, travelling).run(lowered)
            if schedule.backward and travelling is not None:
                travelling.note()
        makers = sorted({*self.output_parts} & self.programs.keys())
        return {
            part: [runs[part].scores[micro_batch] for micro_batch in range(len(batches))]
            for part in makers
        }

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
        """Run a stream of batches by a schedule whose parts update their weights.

        Parameters
        ----------
        batches : iterator of mapping
            Values as `forward` takes them; taken when the first part in this process begins a
            batch.
        score : callable
            Function from a part that has results to its score of a batch; see `step`.
        update : callable
            Function that changes the parameters of a part by their `grad`.
        on_score : callable
            Function of a part and its score of a batch, None if it has no results.
        stash : bool
            Whether batches in flight keep their weights; see `Versions`.
        samples : int
            Samples of each batch; threads ignore them.

        Raises
        ------
        Exception
            Whatever a part raises, as in `step`. Some parts may then have done more updates than
            others.
        """
        self._check(schedule)
        sent = self._nothing_sent()
        travelling = self._begun(True, sent)
        if travelling is not None:
            if not schedule.turns:
                self._check_owners(schedule, travelling.copies)
            if travelling.is_due:
                self._bring(travelling, sent)  # the weights of the first batch
        source = self.transport.batches(batches, schedule.under_way)

        def finish(part: int, result: Any) -> None:
            source.end(part)
            on_score(part, result)

        def updates(part: int) -> Updates:
            modules = [program.module for program in self._turns[part]]
            own = modules, partial(update, part), stash
            begins: list[int] | None = None
            copies: Sequence[Tensor] = ()
            if travelling is not None:
                copies = travelling.copies.tensors_of(part)
                if not schedule.is_dynamic:
                    stale = schedule.staleness[part]
                    begins = [batch - lacking for batch, lacking in enumerate(stale)]
            return Updates(Versions(*own, copies, begins), partial(finish, part))

        if travelling is not None and schedule.turns:
            of_turns = travelling.copies.of_turns
            lowered = lower_turns(schedule, travelling.travels, [*map(travels_of, of_turns)])
            exchanges = (*travelling.exchanges, *chain.from_iterable(of_turns))
            travelling = replace(travelling, exchanges=exchanges)
        else:
            lowered = self.lowered(schedule, travelling)
        runs = self._runs(
            schedule,
            {part: source.of(part) for part in self.programs},
            travelling,
            sent,
            score,
            {part: updates(part) for part in self.programs},
        )
        sizes = (samples,) * schedule.micro_batches
        whole = RunningPass(self, runs, lowered, sizes, travelling)
        self.last = whole.run(lowered, source.stop)

    def lowered(self, schedule: Schedule, travelling: Travelling | None) -> Schedule:
        """The schedule with weights that travel; all processes ask for it the first time."""
        if travelling is None or not travelling.exchanges or not schedule.backward:
            return schedule
        copies = travelling.copies
        if self._uses is None or self._uses[0] is not copies:
            self._uses = copies, self._of_all(lambda program: uses(program, copies.of_step))
        known = self._lowered.get(schedule)
        if known is None or known[0] is not copies:
            lowered = lower(schedule, travelling.travels, copies.backward, self._uses[1])
            known = self._lowered[schedule] = copies, lowered
        return known[1] if travelling.is_due or schedule.in_flight else known[1].of_gradients

    def _of_all(self, make: Callable[[PartProgram], Made]) -> list[Made]:
        """What `make` returns for the program of each part, in all processes."""
        here = {part: make(program) for part, program in self.programs.items()}
        by_part = ChainMap(*self.transport.gather(here))
        return [by_part[part] for part in range(self.k)]

    def _check(self, schedule: Schedule) -> None:
        if schedule not in self._fitting:
            for turn in range(max(1, len(schedule.turns))):
                programs = {part: own[turn] for part, own in self._turns.items()}
                check_fits(schedule, programs, self.k, turn)
            self._fitting.add(schedule)

    def _check_owners(self, schedule: Schedule, copies: Copies) -> None:
        """Raise a PlanError if a stream's schedule was made for parts with other copies."""
        for part in self.programs:
            exchanges = (exchange for exchange in copies.weights if exchange.holder == part)
            owners = {exchange.owner for exchange in exchanges} - {part}
            if owners != {*dict(schedule.outlines[part].owners)}:
                raise PlanError(
                    f"the {schedule.rule} schedule is of parts that share other weights than part "
                    f"{part} does: accepted is one that was made for this placement"
                )

    def _nothing_sent(self) -> dict[int, Traffic]:
        return {part: Traffic.none(self.k) for part in self.programs}

    def _begun(self, learns: bool, sent: Mapping[int, Traffic]) -> Travelling | None:
        """Begin a pass: update what does not travel in its schedule; return what travels in it."""
        if self._copies_of is None:
            return None
        with BEGINNING:
            copies = self._copies_of(self.transport.gather)
            due = copies.due(learns, self.transport.so_on_any)
            if due.rest is not None:
                self._bring(Travelling(copies, due.rest, is_counted=False), sent)
            copies.note(learns, due)
        return Travelling(copies, copies.weights, due=due)

    def update_copies(self) -> None:
        """Make all copies equal to their originals, as before a pass without gradients."""
        self._begun(False, self._nothing_sent())

    def _bring(self, travelling: Travelling, sent: Mapping[int, Traffic]) -> None:
        """Make copies equal to their originals, before a pass begins."""
        exchanges = travelling.exchanges
        order = [
            Action(exchange.owner, Direction.SPREAD, 0, number)
            for number, exchange in enumerate(exchanges)
            if exchange.owner != exchange.holder
        ]
        order += [
            Action(exchange.holder, Direction.GATHER, 0, number)
            for number, exchange in enumerate(exchanges)
        ]
        outlines = (Outline((), ()),) * self.k
        schedule = Schedule("state", 1, outlines, (*order,), travels=travelling.travels)
        runs = self._runs(schedule, {part: iter(()) for part in self.programs}, travelling, sent)
        RunningPass(self, runs, schedule, (), travelling).run(schedule)

    def _runs(
        self,
        schedule: Schedule,
        batches: Mapping[int, Iterator[Mapping[str, Any]]],
        travelling: Travelling | None,
        sent: Mapping[int, Traffic],
        score: Callable[[int], Score] | None = None,
        updates: Mapping[int, Updates] | None = None,
    ) -> dict[int, StepRun]:
        return {
            part: StepRun(
                PartOnDevice(self._turns[part], self.devices[part], self.k, self._slower[part]),
                batches[part],
                score(part) if score is not None and part in self.output_parts else None,
                schedule.outlines[part].dropped,
                None if updates is None else updates[part],
                travelling,
                sent[part],
            )
            for part in self.programs
        }


class RunningPass:
    """A pass of the parts in this process by a schedule: forward and later back, or both in turns.

    Parameters
    ----------
    runs : mapping of int to StepRun
        Run of each part in this process, by part.
    schedule : Schedule
        The whole pass; `run` may be given some of it.
    sizes : sequence of int
        Samples of each micro-batch.
    travelling : Travelling or None
        Weights that travel in it.
    """

    def __init__(
        self,
        runtime: Runtime,
        runs: Mapping[int, StepRun],
        schedule: Schedule,
        sizes: Sequence[int],
        travelling: Travelling | None,
    ) -> None:
        self.runs = runs
        self._runtime, self._schedule, self._sizes = runtime, schedule, sizes
        self._travelling = travelling
        self._autocast = autocast_type(next(iter(runtime.devices.values())))
        self._execute, self._is_back = runtime.transport.executor(), False

    def backward(
        self, gradients: Mapping[int, Sequence[Tensor | None]], weights: bool = True
    ) -> None:
        """Run the backward pass, once.

        Parameters
        ----------
        gradients : mapping of int to sequence of Tensor or None
            Gradients of the results, for each part in this process that has some.
        weights : bool
            Whether parameters get gradients, too; inputs always do.

        Raises
        ------
        RunError
            If it is called a second time.
        """
        if self._is_back:
            raise RunError(
                "backward after backward, accepted is one forward in grad mode, then one backward, "
                "of the sum of all losses of the pass"
            )
        self._is_back = True
        for part, run in self.runs.items():
            run.begin_backward(gradients.get(part, ()), weights)
        runtime = self._runtime
        runtime.last = self.run(self._schedule.backward_only if weights else runtime.back_to_inputs)

    def run(self, schedule: Schedule, stop: Callable[[], object] = lambda: None) -> RunRecord:
        """Do what a schedule says; return the record of all that was done so far.

        If a part fails, `stop` is called, too, to wake those that wait for something else.
        """
        runtime, runs = self._runtime, self.runs
        facts = schedule, runtime.programs, self._sizes, self._travelling, self._autocast
        channel = runtime.transport.open(*facts)

        def stop_all() -> None:
            channel.stop()
            stop()

        sequences = schedule.sequences
        in_turn: dict[int, Iterator[Action]] = {}
        if schedule.is_dynamic:
            queues = cast(QueuedChannel, channel)
            for part in runs:
                order = DynamicOrder(schedule, part, queues.has)
                in_turn[part] = order.actions(queues.wait_for)
        self._execute(
            [
                partial(run.run, sequences[part], channel, in_turn.get(part))
                for part, run in runs.items()
            ],
            stop_all,
        )
        return RunRecord(
            tuple(run.traffic for run in runs.values()),
            tuple(run.timing for run in runs.values()),
            tuple(run.events for run in runs.values()),
            tuple(chain.from_iterable(run.peak_bytes for run in runs.values())),
        )
