"""Placement + Connection -> DistributedModel: one process's part of a placed model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from numbers import Integral
from operator import add
from time import perf_counter_ns
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from hgpart.errors import ArgumentError, PlacementError, RunError
from hgpart.execution.events import Doing, Event
from hgpart.execution.instructions import uses_of_steps
from hgpart.execution.outlines import check_fits, outline
from hgpart.execution.program import PartProgram
from hgpart.execution.step_run import Score, StepRun
from hgpart.execution.totals import Timing, Traffic
from hgpart.execution.weights.versions import Versions
from hgpart.placement import Placement
from hgpart.placement.loss_counts import class_loss
from hgpart.placement.micro_batches import (
    Counts,
    StreamedBatches,
    check_loss,
    check_modules_of_stream,
    schedule_for_mode,
)
from hgpart.placement.shares.in_flight import CopiesInFlight
from hgpart.run.pass_results import guarded
from hgpart.run.processes.agreement import Agreement, Batch
from hgpart.run.processes.connection import Connection
from hgpart.run.processes.post import MicroBatchWire, Post
from hgpart.run.processes.state_post import StatePost
from hgpart.run.processes.stream_post import StreamPost
from hgpart.schedules import make_schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.mail import mail
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.schedule import Direction, Schedule
from hgpart.tracing.arguments import Inputs, as_called
from hgpart.tracing.forms import Sizes, said_of


@dataclass(frozen=True, eq=False)
class _Pass:
    """A forward pass, of which a backward pass is to go on.

    Attributes
    ----------
    step : StepRun
    wires : list of MicroBatchWire
        The part's, a new post for each way.
    schedule : Schedule
        Of the backward pass.
    batch_size : int
    state : StatePost or None
        Of the copies that it has begun with, if there are some.
    program : PartProgram
        Of the mode that it has begun in, as what follows.
    result_ranks : tuple of int
        Those that make results.
    """

    step: StepRun
    wires: list[MicroBatchWire]
    schedule: Schedule
    batch_size: int
    state: StatePost | None
    program: PartProgram
    result_ranks: tuple[int, ...]


class DistributedModel(nn.Module):
    """A placed model of which this process holds its rank's part.

    All processes make the same calls, in the same order. They must be seeded alike where the model
    draws random numbers (dropout): each draws the whole masks, as the model itself would.

    Parameters
    ----------
    placement : Placement
        Holds at least the part of this rank.
    connection : Connection

    Raises
    ------
    RunError
        If there are more or fewer processes than parts.
    PlacementError
        If not exactly one process holds each element of the model's parameters.

    Attributes
    ----------
    traffic : Traffic
        What this rank sent in the last run, forward and backward.
    timing : Timing
        Of the last run.
    events : list of Event
        What this rank did when in the last run.
    peak_bytes : tuple of int
        The most that this rank held in the last `step`, if it was
        `hgpart.execution.held_memory.memory_counted`.
    """

    def __init__(self, placement: Placement, connection: Connection) -> None:
        super().__init__()
        if placement.k != connection.k:
            raise RunError(
                f"the placement has k={placement.k}, there are {connection.k} processes: accepted "
                "is one for each part"
            )
        own = [held for held, _ in placement.held(connection.rank)]
        placement.check_coverage(chain.from_iterable(connection.gather(own)))
        self._begin(placement, connection)

    def _begin(self, placement: Placement, connection: Connection) -> None:
        self.placement, self.connection = placement, connection
        self._agreement = Agreement(connection)
        self.traffic, self.timing = Traffic.none(connection.k), Timing()
        self.events: list[Event] = []
        self.peak_bytes: tuple[int, ...] = ()
        self._pass: _Pass | None = None  # the last one in grad mode, until its backward
        self._going_back: StepRun | None = None  # whose results get their gradients now
        self._is_passing = False
        self._plain: WeakKeyDictionary[PartProgram, Schedule] = WeakKeyDictionary()
        self._fitting: WeakKeyDictionary[PartProgram, WeakSet[Schedule]] = WeakKeyDictionary()
        self._uses: WeakKeyDictionary[
            PartProgram, WeakKeyDictionary[Schedule, Mapping[nn.Module, int]]
        ] = WeakKeyDictionary()
        self._failed = False

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedModel:
        """A copy with parameters of its own, as of averaged weights, over the same connection."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        nn.Module.__init__(copied)
        copied._begin(copy.deepcopy(self.placement, memo), self.connection)
        copied.training = self.training
        return copied

    @property
    def program(self) -> PartProgram:
        """What this rank does, in the present mode."""
        return self.placement.programs.parts[self.connection.rank]

    @property
    def reads_inputs(self) -> bool:
        """Whether this rank needs the values of the inputs."""
        placeholders = self.program.module.graph.find_nodes(op="placeholder")
        return not {node.target for node in placeholders}.isdisjoint(
            self.placement.programs.operands
        )

    @property
    def makes_result(self) -> bool:
        """Whether this rank gets the result, or some samples' where the batch is in slices."""
        return self.connection.rank in self.placement.programs.output_parts

    def forward(self, *inputs: Any, batch_size: int | None = None, **named: Any) -> Any:
        """Compute this rank's share of one batch.

        Parameters
        ----------
        inputs, named
            As the model takes them. In place of tensors, a rank that does not read them may have
            None, or tensors on the meta device, or nothing at all; with a batch size, others may
            have them of their own samples alone: see `Programs.samples_needed` and
            `Programs.samples_read`.
        batch_size : int, optional
            Of all ranks' samples. Where no input says it, and where the batch is in slices: inputs
            may be of this rank's own samples alone. A model's own argument of this name is given by
            position.

        Returns
        -------
        Any
            What the model returns on the rank that makes the result, None on the others. In grad
            mode a loss is computed from it, for `backward`, which comes before the next pass in
            grad mode (over slices, before any other): `loss.backward()` raises a RunError. Where
            the batch is in slices, several ranks may have results, each of its own samples: see
            `Programs.samples_of_result`.

        Raises
        ------
        ArgumentError
            If the batch size is not known, or not the same on all ranks, or the inputs are not the
            model's, as where a `Placement` is called.
        RunError
            If another rank is gone, or is refused what it begins.
        """
        self._forget_pass()
        given = self.placement.programs.arguments.tensors_here(inputs, named)
        rank = self.connection.rank
        batch = self._agreed_size(given, batch_size, self._beginning(1, learns=False))
        self.for_batch(batch)
        here = self._here(given)
        self.placement.check_alike((batch,))
        schedule = self._whole_batch()
        there = schedule.forward_only
        with self._whole_pass():
            batches = self.placement.batches(here, (batch,), rank)
            state = self._begun_state()
            post = self._post(there, (batch,))
            wires = post.wires()
            step = self._begun(wires, batches, state=state)
            with self.placement.programs.batch():
                step.run(there.sequences[rank])
            self._finish(post, "forward", None if state is None else state.finish)
        if torch.is_grad_enabled():
            result_ranks = (*sorted({*self.placement.programs.output_parts}),)
            self._pass = _Pass(
                step, wires, schedule.backward_only, batch, state, self.program, result_ranks
            )
        if not self.makes_result:
            return None
        return self._own_result(guarded(step.results[0], partial(self._check_gradient, step)))

    def backward(self, loss: Tensor | None = None) -> None:
        """Add to the gradients of this rank's parameters; all ranks call it.

        Parameters
        ----------
        loss : Tensor or None
            A number computed from what the last `forward` in grad mode returned, and from no other
            pass's result; None on the other ranks. Where several
            ranks have results, each has its part of the loss: what they add up to is the batch's.

        Raises
        ------
        ArgumentError
            If the loss is no tensor of one element that is computed from the result.
        RunError
            If there was no forward pass in grad mode before, the loss is computed from the result
            of an earlier one, too, or another rank is gone.
        """
        if self._pass is None:  # on no rank, as all have begun in one grad mode
            raise RunError(
                "backward without a forward pass in grad mode before it: accepted is one for each "
                "such pass, before the next begins; over slices, before any other pass"
            )
        begun, self._pass = self._pass, None
        with self._whole_pass():
            rank, makers = self.connection.rank, begun.result_ranks
            if (rank in makers) != (loss is not None):
                said = f"rank{'s' * (len(makers) > 1)} {' and '.join(map(str, makers))}"
                raise ArgumentError(
                    f"rank {rank} got {'no' if loss is None else 'a'} loss: accepted is one on "
                    f"{said}, where results are, and None on the others"
                )
            self._note(begun.step)
            if begun.state is not None:
                begun.state.begin_backward(self._uses_of(begun.schedule, begun.program))
            post = self._post(begun.schedule, (begun.batch_size,), begun.program)
            for wire in begun.wires:
                wire.post = post
            if loss is not None:
                self._begin_backward(loss, begun.step)
            begun.step.run(begun.schedule.sequences[rank])
            end = None if begun.state is None else begun.state.end_backward
            self._finish(post, "backward", end)

    def step(
        self,
        inputs: Inputs,
        targets: Any = None,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        schedule: Schedule | None = None,
        *,
        batch_size: int | None = None,
    ) -> Any:
        """Run this rank's share of a step; see `Placement.step`.

        Parameters
        ----------
        inputs : tensor, sequence or mapping
            As in `Placement.step`, and in place of tensors as in `forward`.
        targets : tensors in any structure, optional
            Looked at by the ranks that make the result; of the whole batch, or of their own samples
            alone: see `Programs.samples_needed` and `Programs.samples_of_result`.
        loss_fn : callable, optional
            As in `Placement.step`, also called once more for each micro-batch if it returns
            (sum, count); the same on all ranks.
        schedule : Schedule, optional
            The same on all ranks, as of `hgpart.run.scheduling.schedule`; the whole batch at
            once when left out.
        batch_size : int, optional
            Of all ranks' samples. Where no input says it, and where the batch is in slices: inputs
            may be of this rank's own samples alone.

        Returns
        -------
        Tensor or list
            As `Placement.step` on the rank that makes the result, None on the others.

        Raises
        ------
        ArgumentError
            As in `forward`, and in `Placement.step`.
        RunError
            If another rank is gone, or is refused what it begins.
        PlanError
            If the schedule is for another placement, or for its other mode.
        """
        self._forget_pass()
        if schedule is not None:
            schedule = schedule_for_mode(schedule, loss_fn is not None)
        given, rank = self._given(inputs), self.connection.rank
        micro_batches = 1 if schedule is None else schedule.micro_batches
        own = self._beginning(micro_batches, torch.is_grad_enabled(), loss_fn)
        batch = self._agreed_size(given, batch_size, own)
        self.for_batch(batch)
        if schedule is None:
            schedule = schedule_for_mode(self._whole_batch(), loss_fn is not None)
        sizes = micro_batch_sizes(batch, micro_batches)
        here = self._here(given)
        self.placement.check_alike(sizes)
        with self._whole_pass():
            batches, score = self.placement.divided(here, sizes, rank), None
            if self.makes_result:
                score = self.placement.programs.score(
                    targets, loss_fn, sizes, rank, alone=True, total=self._total
                )
            elif own.counts_classes:
                self._total((0.0, 0.0))
            state, end = self._begun_state(), None
            if state is not None and schedule.backward:
                state.begin_backward(self._uses_of(schedule, self.program))
            post = self._post(schedule, sizes)
            again = schedule.outlines[self.connection.rank].again
            step = self._begun(post.wires(), batches, score, again, state=state)
            with self.placement.programs.batch():
                step.run(schedule.sequences[self.connection.rank])
            self.peak_bytes = step.peak_bytes
            if state is not None:
                end = state.end_backward if schedule.backward else state.finish
            self._finish(post, "backward" if schedule.backward else "forward", end)
        if not self.makes_result:
            return None
        scores = [step.scores[micro_batch] for micro_batch in range(len(sizes))]
        if loss_fn is None:
            return [self.placement.programs.whole_result(by_share) for by_share in scores]
        return reduce(add, scores)

    def gathered_state_dict(self) -> dict[str, Tensor] | None:
        """The model's own state_dict, whole, on the CPU of the first process; all call it.

        Returns
        -------
        dict of str to Tensor, or None
            On rank 0, as `Placement.state_dict`; None on the others.

        Raises
        ------
        RunError
            If another rank is gone.
        """
        placement, rank = self.placement, self.connection.rank
        mine = [(held, tensor.detach().cpu()) for held, tensor in placement.held(rank)]
        every = self.connection.collect(mine)
        return None if every is None else placement.whole_state(chain.from_iterable(every))

    def load_state_dict(  # type: ignore[override]  # tensors are always copied, never assigned
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load the model's own state_dict, of which this rank takes its slices; all call it.

        Raises
        ------
        PlacementError
            As `Placement.load_state_dict`.
        """
        return self.placement.load_state_dict(state_dict, strict)

    def _forget_pass(self) -> None:
        """Begin something else; a pass without gradients leaves what others need as it is.

        Not over slices, where it may bring copies of running statistics that a graph has kept.
        """
        if torch.is_grad_enabled() or len(self.placement.programs.shares) > 1:
            self._pass = None

    def _begin_backward(self, loss: Tensor, step: StepRun) -> None:
        """Give the results of a forward pass their gradients."""
        learns = any(result.requires_grad for result in step.results[0])
        check_loss(loss, learns)
        self._going_back = step
        try:
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
        finally:
            self._going_back = None

    def _check_gradient(self, step: StepRun) -> None:
        """Raise a RunError if a forward pass's results get gradients that others know nothing of.

        They go on to the other ranks in its own backward alone, of which there is one.
        """
        if step is self._going_back:
            return
        if self._is_passing:
            raise RunError(
                "a loss of what an earlier forward pass returned: accepted is one of the last pass "
                "in grad mode alone, whose backward comes before the next pass, or of one pass of "
                "both batches"
            )
        with self._whole_pass():
            raise RunError(
                "loss.backward() of what a DistributedModel returned, of which other ranks do not "
                "hear: accepted is model.backward(loss), in all processes"
            )

    def _own_result(self, results: Sequence[Tensor]) -> Any:
        """What the model returns, of the samples whose result is here."""
        here = len(self.placement.programs.shares_of_result(self.connection.rank))
        each = len(results) // here
        by_share = [results[at * each : (at + 1) * each] for at in range(here)]
        return self.placement.programs.whole_result(by_share)

    def _begun_state(self) -> StatePost | None:
        """Begin a pass: copies of the model's state are to be like it, if there are some."""
        if len(self.placement.programs.shares) == 1:
            return None
        placement, connection = self.placement, self.connection
        if not placement.shares_state:
            holdings = connection.gather(placement.holding(connection.rank))
            placement.share_state(dict(enumerate(holdings)))
        sent = Traffic.none(connection.k)
        state = StatePost(connection, placement.copies, sent)
        state.begin(placement.copies_by_form.due(placement.form))
        return state

    def _uses_of(self, schedule: Schedule, program: PartProgram) -> Mapping[nn.Module, int]:
        """How often steps of this rank add to gradients."""
        known = self._uses.setdefault(program, WeakKeyDictionary())
        if schedule not in known:
            later = (Direction.BACKWARD, Direction.WEIGHTS)
            actions = schedule.sequences[self.connection.rank]
            chunks = (action.chunk for action in actions if action.direction in later)
            known[schedule] = uses_of_steps(program, chunks)
        return known[schedule]

    @contextmanager
    def _whole_pass(self) -> Iterator[None]:
        """Between begin and end of what all ranks take part in, which has to come to its end.

        If it does not, here, the others are told why, and wait no longer: also if this rank alone
        finds that it can't begin. What was sent by then would be taken for what a later pass gets.
        """
        if self._failed:
            raise RunError(
                f"rank {self.connection.rank} begins a pass after one that has failed, which "
                "has ended its connections: accepted are new processes"
            )
        self._is_passing = True
        try:
            yield
        except BaseException as error:
            self._failed = True
            if len(self.placement.programs.shares) > 1 and self.placement.shares_state:
                self.placement.copies.clear()
            self.connection.fail(error)
            raise
        finally:
            self._is_passing = False

    def stream(
        self,
        batches: Iterable[tuple[Inputs, Any]],
        loss_fn: Callable[[Any, Any], Tensor],
        update: Callable[[int], object],
        schedule: Schedule,
        batch_size: int,
        *,
        stash: bool = True,
        on_loss: Callable[[Tensor | None], object] = lambda loss: None,
    ) -> list[Tensor] | None:
        """Run this rank's share of a stream of batches; see `Placement.stream`.

        Parameters
        ----------
        batches : iterable of (inputs, targets)
            Inputs as in `step`; targets are looked at by the ranks that make the result.
        loss_fn : callable
        update : callable
            Told this rank when it is to change its parameters by their `grad`.
        schedule : Schedule
            The same on all ranks, as of `hgpart.run.scheduling.schedule`.
        batch_size : int
            Of every batch. By a plan over slices, where inputs may be of this rank's samples alone,
            a smaller last batch can't be told from these: a loader has to have ``drop_last=True``.
        stash : bool
        on_loss : callable
            Told of each batch after this rank's update: its loss on the rank that makes the result,
            or its part of it where several do, None on the others.

        Returns
        -------
        list of Tensor or None
            The losses, on the ranks that make the result; they add up.

        Raises
        ------
        RunError
            If another rank is gone.
        ArgumentError, PlanError, PlacementError
            As `Placement.stream`; and if a batch is of another size, or by a plan over slices the
            transport is nccl.
        """
        self._forget_pass()
        placement = self.placement
        several = len(placement.programs.shares) > 1
        placement.check_stream(schedule, stash, self.connection.nccl)
        _check_size(batch_size)
        with self._whole_pass():
            self._check_same(batch_size, self._beginning(schedule.micro_batches, learns=True))
        self.for_batch(batch_size)
        losses: list[Tensor] = []

        def tell(loss: Tensor | None) -> None:
            if loss is not None:
                losses.append(loss)
            on_loss(loss)

        def begun(inputs: Inputs, targets: Any) -> tuple[Mapping[str, Any], Callable[[int], Score]]:
            given = self._given(inputs)
            size = None if several else placement.programs.arguments.batch_size(given)
            if size not in (None, batch_size):
                raise ArgumentError(f"a batch of {size}: accepted are batches of {batch_size}")
            (values,) = placement.divided(self._here(given), (batch_size,), rank)
            options: dict[str, Any] = {"alone": True, "total": None if several else self._total}
            return values, partial(
                placement.programs.score, targets, loss_fn, (batch_size,), **options
            )

        rank, makes_result = self.connection.rank, self.makes_result
        source = StreamedBatches(batches, schedule.micro_batches, begun, int(makes_result))
        with self._whole_pass(), ExitStack() as copies:
            check_modules_of_stream([self.program.module])
            shared: CopiesInFlight | None = None
            wire: StreamPost | None = None
            if several:
                state = self._begun_state()
                assert state is not None
                state.finish()
                wire = StreamPost(self.connection, placement.copies, schedule)
                shared = CopiesInFlight(placement.copies, rank, schedule, wire, state.sent)
                copies.enter_context(placement.copies_in_flight())
            post = self._post(schedule, (batch_size,) * schedule.micro_batches)
            step = self._begun(
                *(post.wires(), source.values(), source.score(rank) if makes_result else None),
                schedule.outlines[rank].again,
                versions=Versions(self.program.module, partial(update, rank), stash, shared),
                on_update=tell,
            )
            if shared is not None:
                step.traffic = self.traffic = shared.sent
            step.run(schedule.sequences[rank])
            self.peak_bytes = step.peak_bytes
            self._finish(post, "backward")
            if shared is not None and wire is not None:
                shared.finish()
                wire.finish()
        return losses if makes_result else None

    def for_inputs(self, inputs: Inputs = ()) -> DistributedModel:
        """Switch all ranks to inputs of other sizes; see `Placement.for_inputs`.

        Parameters
        ----------
        inputs : tensor, sequence or mapping
            As in `step`; only their sizes matter. A rank that has none may leave them out.

        Raises
        ------
        ArgumentError
            If no rank has a tensor of the inputs, or two have it of different sizes.
        PlacementError
            As `Placement.for_inputs`; if it can't be on one rank, all stay as they were.
        """
        own = [None if one is None else tuple(one.shape[1:]) for one in self._given(inputs)]
        by_input = zip(*self.connection.gather(own), strict=True)
        sizes = []
        for name, found in zip(self.placement.programs.arguments.names, by_input, strict=True):
            known = {*found} - {None}
            if len(known) != 1:
                said = " and ".join(sorted(said_of([one]) for one in known)) or "no size"
                raise ArgumentError(f"{name} has {said} on the ranks: accepted is one size")
            sizes.append(known.pop())
        return self._for_sizes(tuple(sizes), None)

    def for_batch(self, batch_size: int) -> DistributedModel:
        """Switch all ranks to a batch of so many samples; see `Placement.for_batch`.

        Raises
        ------
        PlacementError
            As `Placement.for_batch`; if it can't be on one rank, all stay as they were.
        """
        if self.placement.takes(batch_size):  # as all ranks find
            return self
        return self._for_sizes(self.placement.form.sizes, batch_size)

    def _for_sizes(self, sizes: Sizes, batch_size: int | None) -> DistributedModel:
        before = self.placement.form
        failed: Exception | None = None
        try:
            self.placement.for_sizes(sizes, batch_size)
        except Exception as error:
            failed = error
        reasons = self.connection.gather(failed and str(failed))
        if failed is not None:
            raise failed
        for rank, reason in enumerate(reasons):
            if reason is not None:
                self.placement.for_sizes(before.sizes, before.batch_size)
                raise PlacementError(f"rank {rank} can't have a batch of these sizes: {reason}")
        return self

    def _given(self, inputs: Inputs) -> list[Tensor | None]:
        """The tensors among the inputs, None where there is none in the place of one."""
        return self.placement.programs.arguments.tensors_here(*as_called(inputs))

    def _beginning(
        self, micro_batches: int, learns: bool, loss_fn: Callable[[Any, Any], Tensor] | None = None
    ) -> Batch:
        """What this rank begins, in the present modes; of how many samples is still to be known."""
        return Batch(
            samples=0,
            micro_batches=micro_batches,
            learns=learns,
            grad_mode=torch.is_grad_enabled(),
            training=self.placement.training,
            counts_classes=len({*self.placement.programs.output_parts}) > 1
            and class_loss(loss_fn) is not None,
        )

    def _agreed_size(
        self, inputs: Sequence[Tensor | None], batch_size: int | None, own: Batch
    ) -> int:
        """Samples of the batch that all ranks begin now.

        What is wrong with the batch size alone, all find alike: nobody has to be told.
        """
        if batch_size is not None:
            _check_size(batch_size)
        elif len(self.placement.programs.shares) > 1:
            raise ArgumentError(
                "no batch size, and inputs by a plan over slices may be of this process alone: "
                "accepted is that of all, as in batch_size=32"
            )
        with self._whole_pass():
            if torch.is_grad_enabled() and any(
                one.requires_grad for one in inputs if one is not None
            ):
                raise PlacementError(
                    "an input requires a gradient, as what another model returned does, which "
                    "processes do not compute: accepted are inputs without, as of detach()"
                )
            size = (
                self.placement.programs.arguments.batch_size(inputs)
                if batch_size is None
                else batch_size
            )
            if size is None:
                raise ArgumentError(
                    f"neither inputs nor a batch size on rank {self.connection.rank}: accepted is "
                    "one of them, as in batch_size=32; another model's result is on one rank alone"
                )
            self._check_same(size, own)
        return size

    def _check_same(self, batch_size: int, own: Batch) -> None:
        """Raise an ArgumentError if other ranks begin another batch, or in another way.

        Before anything that all do together, where one in another mode may have more to do.
        """
        _check_size(batch_size)
        own = own._replace(samples=batch_size)
        if len(self.placement.programs.shares) > 1:  # where a rank may send nothing
            self._agreement.check_among_all(own)
            return
        ways = [(one.sender, one.receiver, one) for one in self.program.transfers.values()]
        if own.learns:
            ways += [
                (receiver, sender, one) for sender, receiver, one in ways if one.differentiable
            ]
        rank = self.connection.rank
        senders = dict.fromkeys(sender for sender, receiver, _ in ways if receiver == rank)
        receivers = dict.fromkeys(receiver for sender, receiver, _ in ways if sender == rank)
        self._agreement.check(own, [*senders], [*receivers])

    def _here(self, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The inputs whose values are here, and needed."""
        reads = self.reads_inputs
        return [None if not reads or value is None or value.is_meta else value for value in inputs]

    def _whole_batch(self) -> Schedule:
        """What all ranks do with a batch at once, in the present mode."""
        program = self.program
        if program not in self._plain:
            outlines = self.connection.gather(outline(program, {}))
            self._plain[program] = make_schedule(outlines, "sequential", 1, Costs())
        return self._plain[program]

    def _post(
        self, schedule: Schedule, sizes: tuple[int, ...], program: PartProgram | None = None
    ) -> Post:
        program = program or self.program
        rank = self.connection.rank
        fitting = self._fitting.setdefault(program, WeakSet())
        if schedule not in fitting:
            check_fits(schedule, {rank: program}, self.connection.k)
            fitting.add(schedule)
        return Post(self.connection, program.transfers, mail(schedule, rank), sizes)

    def _begun(
        self,
        wires: Sequence[MicroBatchWire],
        batches: Iterable[Mapping[str, Any]],
        score: Score | None = None,
        again: Sequence[int] = (),
        versions: Versions | None = None,
        on_update: Callable[[Any], None] = lambda score: None,
        state: StatePost | None = None,
    ) -> StepRun:
        connection = self.connection
        step = StepRun(
            self.program,
            connection.device,
            connection.k,
            wires,
            batches,
            score=score,
            again=again,
            versions=versions,
            on_update=on_update,
        )
        if state is not None:
            step.traffic, step.before_step = state.sent, state.arrive
            step.on_used = partial(state.used, complete=step.complete)
        self._note(step)
        return step

    def _total(self, counts: Counts) -> Counts:
        """Add up what targets count on all ranks, where several have some."""
        if len({*self.placement.programs.output_parts}) == 1:
            return counts
        first, second = zip(*self.connection.numbers(counts, torch.float64), strict=True)
        return sum(first), sum(second)

    def _note(self, step: StepRun) -> None:
        """Have the figures of the last run be those of this one."""
        self.traffic, self.timing, self.events = step.traffic, step.timing, step.events

    def _finish(
        self, post: Post, direction: str, end_copies: Callable[[], None] | None = None
    ) -> None:
        begin = perf_counter_ns()
        post.finish()
        self._agreement.settle()
        if end_copies is not None:
            end_copies()
        end = perf_counter_ns()
        self.events.append(Event(self.events[-1].action, Doing.WAIT, begin, end))
        seconds = (end - begin) / 1e9
        self.timing.add(direction, seconds, seconds)


def _check_size(batch_size: object) -> None:
    """Raise an ArgumentError for what is no number of samples."""
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise ArgumentError(f"batch size {batch_size!r}: accepted are whole numbers from 1 on")
