"""Programs of parts + Transport -> Runtime: passes, steps and streams, in threads or processes.

A `Placed` is what a runtime needs to know of a placement, a `Pass` what it does by a schedule: a
batch forward and then back, a step, or a stream. Whatever travels is in the schedule's one order:
maps and their gradients as the rule has them, weights that several parts compute with as
`hgpart.schedules.lowering` adds them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import chain
from operator import add
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from hgpart.errors import PlanError, RunError
from hgpart.execution.outlines import check_fits, outline, uses
from hgpart.execution.program import PartProgram
from hgpart.execution.records.events import Event
from hgpart.execution.records.totals import Timing, Totals, Traffic
from hgpart.execution.step_run import Score, StepRun
from hgpart.execution.transport import Transport
from hgpart.execution.weights.copies import Copies, Travelling
from hgpart.execution.weights.versions import Versions
from hgpart.schedules import make_schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.lowering import lower
from hgpart.schedules.outline import Outline, Uses
from hgpart.schedules.schedule import Action, Direction, Schedule

Gather = Callable[[Any], list[Any]]  # what all processes have, in their order
Here = TypeVar("Here")
# One thread of the caller's at a time finds out what copies lack, and brings it.
BEGINNING = Lock()


@dataclass(frozen=True, eq=False)
class Placed:
    """What a runtime needs to know of a placement, in one form.

    Attributes
    ----------
    k : int
        Number of parts.
    programs : mapping of int to PartProgram
        The programs of the parts in this process.
    output_parts : tuple of int
        The part that has the model's results, for each share of the batch.
    copies : callable or None
        Finds what parts have of each other's state; None if they have nothing. All processes call
        it.
    """

    k: int
    programs: Mapping[int, PartProgram]
    output_parts: tuple[int, ...]
    copies: Callable[[Gather], Copies] | None = None


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What parts here sent, and how long it took; a backward pass adds its share when it runs.

    Attributes
    ----------
    sent : tuple of Traffic
        One for each part: what it sent.
    timing : tuple of Timing
        One for each part: how long it worked and waited.
    by_part : tuple of list of Event
        One for each part: what it did when.
    peak_bytes : tuple of int
        The most that each part held, if that was to be counted; see
        `hgpart.execution.held_memory.memory_counted`.
    """

    sent: tuple[Traffic, ...]
    timing: tuple[Timing, ...]
    by_part: tuple[list[Event], ...] = ()
    peak_bytes: tuple[int, ...] = ()

    @staticmethod
    def none(parts: int, k: int) -> RunRecord:
        """A record of some of k parts, which have done nothing."""
        every = range(parts)
        return RunRecord(tuple(Traffic.none(k) for _ in every), tuple(Timing() for _ in every))

    @property
    def events(self) -> tuple[Event, ...]:
        """What the parts did when, one part after the other."""
        return tuple(chain.from_iterable(self.by_part))

    @property
    def traffic(self) -> Traffic:
        """What they sent together."""
        return reduce(add, self.sent)

    @property
    def totals(self) -> Totals:
        """The same as of a run of many batches."""
        return Totals(self.timing, self.traffic)


class Runtime:
    """Runs the parts of a placement that are in this process.

    Attributes
    ----------
    last : RunRecord
        The record of the last pass, step or stream that ended well. A call that goes back is the
        last one again.
    """

    def __init__(self, placed: Placed, transport: Transport) -> None:
        self.k, self.output_parts = placed.k, placed.output_parts
        self.devices = {part: transport.device(part) for part in transport.parts}
        self.programs = {part: placed.programs[part] for part in transport.parts}
        self.last = RunRecord.none(len(transport.parts), self.k)
        self.transport, self._copies_of = transport, placed.copies
        self._whole_batch: Schedule | None = None
        self._forget()

    def _forget(self) -> None:
        self._fitting: WeakSet[Schedule] = WeakSet()
        self._uses: tuple[Copies, list[Uses]] | None = None
        self._lowered: WeakKeyDictionary[Schedule, tuple[Copies, Schedule]] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles know of no schedule, and have done nothing yet."""
        schedules = "_fitting", "_uses", "_lowered"
        kept = {name: value for name, value in self.__dict__.items() if name not in schedules}
        return {**kept, "last": RunRecord.none(len(self.programs), self.k)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin anew."""
        self.__dict__.update(state)
        self._forget()

    @property
    def whole_batch(self) -> Schedule:
        """What all parts do with a batch at once; the first time all processes ask for it."""
        if self._whole_batch is None:
            outlines: list[Outline] = self._of_all(lambda program: outline(program, {}))
            self._whole_batch = make_schedule(outlines, "sequential", 1, Costs())
        return self._whole_batch

    @cached_property
    def back_to_inputs(self) -> Schedule:
        """Its backward pass, which computes gradients of inputs and of no weights."""
        back = self.whole_batch.backward_only
        order = (action._replace(direction=Direction.MAPS) for action in back.order)
        return replace(back, order=tuple(order))

    def forward(self, values: Mapping[str, Any], samples: int, learns: bool) -> Pass:
        """Run a batch forward, in the present grad mode.

        Parameters
        ----------
        values : mapping
            Placeholder name -> value, of all placeholders of the parts here, on any device.
        samples : int
            How many the batch has; between threads it does not matter.
        learns : bool
            Whether parts begin with each other's weights, as a backward pass may follow.

        Raises
        ------
        Exception
            Whatever a part raises, as it is; with threads the runtime can be used again.
        """
        schedule = self.whole_batch
        sent = self._nothing_sent()
        travelling = self._begun(learns, sent)
        if learns:
            schedule = self.lowered(schedule, travelling)
        runs = self._runs({part: iter([values]) for part in self.programs}, travelling, sent)
        begun = Pass(self, runs, schedule, (samples,), travelling)
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
        """Run a step by a schedule, with its backward passes if it has some.

        Parameters
        ----------
        schedule : Schedule
            The order that a rule makes, without weights that travel.
        batches : sequence of mapping
            For each micro-batch the values that `forward` takes.
        score : callable
            Told a part that has results, returns what that part makes of them; see `StepRun`.
        sizes : sequence of int
            Samples of each micro-batch; between threads they do not matter.

        Returns
        -------
        dict of int to list
            For each part here that has results, what it made of those of each micro-batch.

        Raises
        ------
        PlanError
            If the schedule is for other programs.
        Exception
            As `forward`.
        """
        self._check(schedule)
        with torch.set_grad_enabled(schedule.backward):
            sent = self._nothing_sent()
            travelling = self._begun(schedule.backward, sent)
            sources = {part: iter(batches) for part in self.programs}
            outlines = schedule.outlines
            runs = self._runs(
                *(sources, travelling, sent, score),
                again={part: outlines[part].again for part in self.programs},
            )
            lowered = self.lowered(schedule, travelling)
            self.last = Pass(self, runs, lowered, sizes, travelling).run(lowered)
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
        schedule : Schedule
        batches : iterator of mapping
            Gives the values that `forward` takes, when the first part here begins a batch.
        score : callable
            The same as in `step`, for batches.
        update : callable
            Told a part, whose parameters it changes by their `grad`.
        on_score : callable
            Told a part and what it made of its results, None if it has none, batch by batch.
        stash : bool
            See `Versions`.
        samples : int
            How many each batch has; between threads it does not matter.

        Raises
        ------
        Exception
            As `step`. Some parts have done more updates then than others.
        """
        self._check(schedule)
        sent = self._nothing_sent()
        travelling = self._begun(True, sent)
        if travelling is not None:
            self._check_owners(schedule, travelling.copies)
            if travelling.is_due:
                self._bring(travelling, sent)  # what the first batch begins with
        source = self.transport.batches(batches, schedule.under_way)

        def finish(part: int, found: Any) -> None:
            source.end(part)
            on_score(part, found)

        def versions(part: int) -> Versions:
            own = self.programs[part].module, partial(update, part), stash
            if travelling is None:
                return Versions(*own)
            stale = schedule.staleness[part]
            begins = [batch - updates for batch, updates in enumerate(stale)]
            return Versions(*own, travelling.copies.tensors_of(part), begins)

        runs = self._runs(
            *({part: source.of(part) for part in self.programs}, travelling, sent, score),
            again={part: schedule.outlines[part].again for part in self.programs},
            versions={part: versions(part) for part in self.programs},
            on_update=finish,
        )
        lowered = self.lowered(schedule, travelling)
        sizes = (samples,) * schedule.micro_batches
        whole = Pass(self, runs, lowered, sizes, travelling)
        self.last = whole.run(lowered, source.stop)

    def lowered(self, schedule: Schedule, travelling: Travelling | None) -> Schedule:
        """The schedule with weights that travel; the first time all processes ask for it."""
        if travelling is None or not schedule.backward:
            return schedule
        copies = travelling.copies
        if self._uses is None or self._uses[0] is not copies:
            self._uses = copies, self._of_all(lambda program: uses(program, copies.of_step))
        known = self._lowered.get(schedule)
        if known is None or known[0] is not copies:
            if not travelling.exchanges:
                return schedule
            made = lower(schedule, travelling.travels, copies.backward, self._uses[1])
            known = self._lowered[schedule] = copies, made
        return known[1] if travelling.is_due or schedule.in_flight else known[1].of_gradients

    def _of_all(self, make: Callable[[PartProgram], Here]) -> list[Here]:
        """What is made of each part's program, of all parts."""
        here = {part: make(program) for part, program in self.programs.items()}
        found = ChainMap(*self.transport.gather(here))
        return [found[part] for part in range(self.k)]

    def _check(self, schedule: Schedule) -> None:
        if schedule not in self._fitting:
            check_fits(schedule, self.programs, self.k)
            self._fitting.add(schedule)

    def _check_owners(self, schedule: Schedule, copies: Copies) -> None:
        """Raise a PlanError if a stream's schedule is of parts that have other copies."""
        for part in self.programs:
            owners = {one.owner for one in copies.weights if one.holder == part} - {part}
            if owners != {*dict(schedule.outlines[part].owners)}:
                raise PlanError(
                    f"the {schedule.rule} schedule is of parts that share other weights than part "
                    f"{part} does: accepted is one that was made for this placement"
                )

    def _nothing_sent(self) -> dict[int, Traffic]:
        return {part: Traffic.none(self.k) for part in self.programs}

    def _begun(self, learns: bool, sent: Mapping[int, Traffic]) -> Travelling | None:
        """Begin a pass: what does not travel in its schedule is brought; returns what does."""
        if self._copies_of is None:
            return None
        with BEGINNING:
            copies = self._copies_of(self.transport.gather)
            due = copies.due(learns, self.transport.so_on_any)
            if due.beside is not None:
                self._bring(Travelling(copies, due.beside, is_counted=False), sent)
            copies.note(learns, due)
        return Travelling(copies, copies.weights, due=due)

    def _bring(self, travelling: Travelling, sent: Mapping[int, Traffic]) -> None:
        """Let copies be like what they are of, before a pass begins."""
        exchanges = travelling.exchanges
        order = [
            Action(one.owner, Direction.SPREAD, 0, number)
            for number, one in enumerate(exchanges)
            if one.owner != one.holder
        ]
        order += [
            Action(one.holder, Direction.GATHER, 0, number) for number, one in enumerate(exchanges)
        ]
        outlines = (Outline((), ()),) * self.k
        schedule = Schedule("state", 1, outlines, (*order,), travels=travelling.travels)
        runs = self._runs({part: iter(()) for part in self.programs}, travelling, sent)
        Pass(self, runs, schedule, (), travelling).run(schedule)

    def _runs(
        self,
        batches: Mapping[int, Iterator[Mapping[str, Any]]],
        travelling: Travelling | None,
        sent: Mapping[int, Traffic],
        score: Callable[[int], Score] | None = None,
        again: Mapping[int, Sequence[int]] | None = None,
        versions: Mapping[int, Versions] | None = None,
        on_update: Callable[[int, Any], None] = lambda part, score: None,
    ) -> dict[int, StepRun]:
        return {
            part: StepRun(
                *(program, self.devices[part], self.k, batches[part]),
                score=score(part) if score is not None and part in self.output_parts else None,
                again=() if again is None else again[part],
                versions=None if versions is None else versions[part],
                on_update=partial(on_update, part),
                travelling=travelling,
                traffic=sent[part],
            )
            for part, program in self.programs.items()
        }


class Pass:
    """What parts here do by a schedule: forward and, later, back; or both in turns.

    Parameters
    ----------
    runtime : Runtime
    runs : mapping of int to StepRun
        One for each part here, by part.
    schedule : Schedule
        The whole pass, of which `run` may be told some.
    sizes : sequence of int
        Samples of each micro-batch.
    travelling : Travelling or None
        The weights that travel in it.
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
        self._execute, self._is_back = runtime.transport.executor(), False

    def backward(
        self, gradients: Mapping[int, Sequence[Tensor | None]], weights: bool = True
    ) -> None:
        """Go back, once.

        Parameters
        ----------
        gradients : mapping of int to sequence of Tensor or None
            For each part here that has results, their gradients.
        weights : bool
            Whether parameters get gradients; inputs do in any case.

        Raises
        ------
        RunError
            If it went back before.
        """
        if self._is_back:
            raise RunError(
                "backward after backward, accepted is one forward in grad mode, then one backward"
            )
        self._is_back = True
        for part, run in self.runs.items():
            run.begin_backward(gradients.get(part, ()), weights)
        runtime = self._runtime
        runtime.last = self.run(self._schedule.backward_only if weights else runtime.back_to_inputs)

    def run(self, schedule: Schedule, stop: Callable[[], object] = lambda: None) -> RunRecord:
        """Do what a schedule says; returns the record of all that was done up to now.

        If it fails, `stop` is called besides, to wake those that wait for something else.
        """
        runtime, runs = self._runtime, self.runs
        wires = runtime.transport.open(schedule, runtime.programs, self._sizes, self._travelling)

        def stop_all() -> None:
            wires.stop()
            stop()

        sequences = schedule.sequences
        self._execute(
            [partial(run.run, sequences[part], wires) for part, run in runs.items()], stop_all
        )
        return RunRecord(
            tuple(run.traffic for run in runs.values()),
            tuple(run.timing for run in runs.values()),
            tuple(run.events for run in runs.values()),
            tuple(chain.from_iterable(run.peak_bytes for run in runs.values())),
        )
