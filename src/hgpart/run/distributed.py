"""Placement + Connection -> DistributedModel: one process's part of a placed model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from itertools import chain
from operator import add
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hgpart.errors import ArgumentError, RunError
from hgpart.execution.as_function import inputs_with_gradients, results_of
from hgpart.execution.autocast import autocast_type
from hgpart.execution.program import PartProgram
from hgpart.execution.runtime import Placed, RunningPass, Runtime
from hgpart.execution.step_run import Score
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement import Placement, place
from hgpart.placement.batches.micro_batches import schedule_for_mode
from hgpart.placement.batches.streams import StreamedBatches, check_modules_of_stream
from hgpart.plan import Plan, PlanFile
from hgpart.run.elsewhere import Elsewhere
from hgpart.run.processes.begun import JointCall
from hgpart.run.processes.connection import Connection
from hgpart.run.processes.rank import Rank
from hgpart.run.rank_call import RankCall
from hgpart.run.together import Together, check_size, joint
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.schedule import Schedule
from hgpart.tracing.arguments import Inputs, as_called


class DistributedModel(nn.Module):
    """A placed model of which this process holds its rank's part.

    All processes make the same calls, in the same order. They must be seeded alike where the model
    draws random numbers (dropout): each draws the whole masks, as the model itself would.

    Parameters
    ----------
    model : nn.Module
        A placement that holds at least the part of this rank; or the model itself, with a plan or
        an example, by which this rank's part is placed on its device.
    plan : Plan, PlanFile or PartitionedModel, optional
        The same on all ranks; see `hgpart.place`.
    example : tensor, sequence or mapping, optional
        Inputs of the model, without a plan: `hgpart.partition_model` then makes one.

    Raises
    ------
    RunError
        If there are more or fewer processes than parts.
    ArgumentError, PlanError
        If there is not one of a placement, a plan and an example; see `hgpart.place`.
    PlacementError
        If not exactly one process holds each element of the model's parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        connection: Connection,
        plan: Plan | PlanFile | PartitionedModel | None = None,
        *,
        example: Inputs | None = None,
    ) -> None:
        super().__init__()
        placement: Any = model
        if not hasattr(model, "programs"):
            k, here = connection.k if plan is None else None, [connection.rank]
            placement = place(model, plan, connection.device, k=k, example=example, parts=here)
        elif plan is not None or example is not None:
            raise ArgumentError(
                "a placement with a plan or an example: accepted is a placement alone, or the model"
            )
        if placement.k != connection.k:
            raise RunError(
                f"the placement has k={placement.k}, there are {connection.k} processes: accepted "
                "is one for each part"
            )
        own = [held for held, _ in placement.held(connection.rank)]
        placement.held_state.check_coverage(chain.from_iterable(connection.gather(own)))
        self._begin(placement, connection)

    def _begin(self, placement: Placement, connection: Connection) -> None:
        self.placement, self.connection = placement, connection
        self._together, self._transport = Together(placement, connection), Rank(connection)
        self._results: tuple[ref[Tensor], ...] = ()  # stand-ins of the last pass in grad mode
        self._types: dict[tuple[Placed, torch.dtype | None], list[torch.dtype]] = {}
        self._input_gradients = False  # in the last pass
        self._runtimes: WeakKeyDictionary[Placed, Runtime] = WeakKeyDictionary()

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedModel:
        """A copy with parameters of its own, e.g. for averaged weights, on the same connection."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        nn.Module.__init__(copied)
        copied._begin(copy.deepcopy(self.placement, memo), self.connection)
        copied.training = self.training
        return copied

    @property
    def runtime(self) -> Runtime:
        """Runs this rank's part, in the present form; its `last` says what travelled."""
        return self._runtime_of(self.placement.placed_with(self._input_gradients))

    def _runtime_of(self, placed: Placed) -> Runtime:
        if placed not in self._runtimes:
            self._runtimes[placed] = Runtime(placed, self._transport)
        return self._runtimes[placed]

    @property
    def program(self) -> PartProgram:
        """The program of this rank, in the present mode."""
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
        """Whether this rank gets the result, or that of some samples if the batch is in slices."""
        return self.connection.rank in self.placement.programs.output_parts

    @joint(JointCall.FORWARD)
    def forward(self, *inputs: Any, batch_size: int | None = None, **named: Any) -> Any:
        """Compute a batch with all ranks, as the model does.

        Parameters
        ----------
        inputs, named
            The arguments of the model, which may be another model's result. In place of tensors, a
            rank that does not read them may have None, tensors on the meta device, or nothing at
            all. With a batch size, other ranks may have tensors of only their own samples: see
            `Programs.samples_needed` and `Programs.samples_read`.
        batch_size : int, optional
            Number of all ranks' samples. It is required if no input says it, and if the batch is in
            slices, because inputs may hold only this rank's samples. A model's own argument of this
            name is given by position.

        Returns
        -------
        Any
            The model's result. On ranks that do not make it, its tensors are stand-ins
            (`hgpart.run.elsewhere`): the same lines compute a loss from them, and
            `loss.backward()`, on all ranks, adds to the gradients of all parts. `value` tells their
            numbers. If the batch is in slices, several ranks may have results, each
            for its own samples (see `Programs.samples_of_result`), and the loss of the batch is the
            sum of theirs.

        Raises
        ------
        ArgumentError
            If the batch size is not known, or ranks call something else, or the inputs do not fit
            the model, as for a `Placement`.
        RunError
            If another rank is gone, or refuses to begin.
        """
        given = self.placement.programs.arguments.tensors_here(inputs, named)
        self._together.follow_settings()
        called = self._together.begin_call(given, batch_size)
        self.for_batch(called.samples)
        self.placement.passes.check_alike((called.samples,))
        here = called.inputs if called.with_gradients else self._here(called.inputs)
        self._input_gradients = called.with_gradients
        has_graph, grad_mode = called.learns or called.with_gradients, torch.is_grad_enabled()
        rank, programs = self.connection.rank, self.placement.programs
        with self._together.whole_pass():
            (values,) = self.placement.passes.batches(here, (called.samples,), rank)
            with programs.batch(), torch.set_grad_enabled(has_graph):
                begun = self.runtime.forward(values, called.samples, grad_mode)
        elsewhere = self._elsewhere(called.samples, begun)
        wanted = programs.inputs_of_shares(called.samples) if called.with_gradients else {}
        call = RankCall(begun, self._together, elsewhere, wanted)
        if not has_graph:
            return self._own_result(call.taken_results())
        result = self._own_result(results_of(call, inputs_with_gradients(values)))
        leaves = pytree.tree_leaves(result) if elsewhere else ()
        self._results = tuple(ref(leaf) for leaf in leaves if isinstance(leaf, Tensor))
        return result

    def _elsewhere(self, samples: int, begun: RunningPass) -> list[Elsewhere]:
        """Stand-ins for the results, if this rank makes none."""
        programs, device = self.placement.programs, self.connection.device
        if self.makes_result and autocast_type(device) is None:
            return []
        without_data = programs.results_without_data(self.connection.rank, samples)
        types = [like.dtype for like in without_data]
        key = self.placement.placed_with(self._input_gradients), autocast_type(device)
        if key[1] is not None:  # which may give results other types
            if key not in self._types:
                self._types[key] = self._together.types_of_results(begun, types)
            types = self._types[key]
        if self.makes_result:
            return []
        makers = sorted({*programs.output_parts})
        pairs = zip(without_data, types, strict=True)
        typed = (torch.empty_like(like, dtype=dtype) for like, dtype in pairs)
        return [Elsewhere(like, device, makers) for like in typed]

    def backward(self, loss: Tensor | None = None) -> None:
        """Add to the gradients of all parts, by a loss that only ranks with results have.

        It is for losses that go by the values of results, such as a detector's; for all others
        there is ``loss.backward()``.

        Parameters
        ----------
        loss : Tensor or None
            None on ranks without results, which go back through their last pass in grad mode.

        Raises
        ------
        ArgumentError
            If a rank that has results has no loss; see also ``forward``.
        RunError
            If there was no forward pass in grad mode before, or another rank is gone.
        """
        if loss is not None:
            self._results = ()
            loss.backward()  # type: ignore[no-untyped-call]
            return
        last, self._results = [result() for result in self._results], ()
        results = [result for result in last if result is not None and result.requires_grad]
        with self._together.whole_pass():
            if self.makes_result:
                raise ArgumentError(
                    f"rank {self.connection.rank} got no loss: accepted is one on each rank that "
                    "has results, and None on others"
                )
            if not results:
                raise RunError(
                    "backward without the results of a pass in grad mode: accepted is one such "
                    "pass before it, whose results are kept"
                )
        torch.autograd.backward(results, [torch.ones_like(result) for result in results])

    def value(self, tensor: Tensor) -> Tensor:
        """The values of a tensor that was computed from results, on all ranks, which all call it.

        Parameters
        ----------
        tensor : Tensor
            A loss, a count or a result: a stand-in on ranks without results.

        Returns
        -------
        Tensor
            Its values, without a graph; if several ranks have results, the sum of theirs.

        Raises
        ------
        ArgumentError
            If it is no tensor or, where several ranks have results, has more than one element.
        RunError
            If a rank with results has a stand-in, too, as for a loss of two models' results.
        """
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"value of a {type(tensor).__name__}: accepted is a tensor")
        own = tensor.detach()
        if own.numel() != 1 and len({*self.placement.programs.output_parts}) > 1:
            raise ArgumentError(
                f"value of shape {tuple(own.shape)}, of which ranks have their own samples: "
                "accepted is one number, which is added up"
            )
        if isinstance(own, Elsewhere) and self.makes_result:
            raise RunError(
                f"rank {self.connection.rank} has not all values of this tensor, which is also "
                "computed from results of other ranks: accepted are the values of each one's part"
            )
        here = own.cpu() if self.makes_result else None
        gathered = self.connection.gather(here, JointCall.VALUE)
        total: Tensor = reduce(add, (values for values in gathered if values is not None))
        return total.to(own.device)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context for passes whose gradients add up, as that of DDP; it has nothing to do."""
        yield

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> NoReturn:
        """Refuse to be wrapped: torch's DDP asks for this first, and takes parts for copies."""
        raise RunError(
            "DistributedDataParallel of a DistributedModel: accepted is the model alone, as its "
            "processes have parts and not copies (with accelerate, leave it out of prepare)"
        )

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the steps of this rank's part; see `Placement.compile`."""
        self.placement.compile(*args, **kwargs)

    @joint(JointCall.STEP)
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
            See `Placement.step`; in place of tensors, see `forward`.
        targets : tensors in any structure, optional
            Read by the ranks that make the result; for the whole batch, or for only their own
            samples: see `Programs.samples_needed` and `Programs.samples_of_result`.
        loss_fn : callable, optional
            See `Placement.step`; called once more per micro-batch if it returns (sum, count). It
            must be the same on all ranks.
        schedule : Schedule, optional
            A schedule of `hgpart.run.scheduling.schedule`, the same on all ranks. Default: see
            `Placement.step`.
        batch_size : int, optional
            Number of all ranks' samples. It is required if no input says it, and if the batch is in
            slices, because inputs may hold only this rank's samples.

        Returns
        -------
        Tensor or list
            The result of `Placement.step` on the rank that makes the result, None on the others.

        Raises
        ------
        ArgumentError
            For the reasons of `forward` and `Placement.step`.
        RunError
            If another rank is gone, or refuses to begin.
        PlanError
            If the schedule is for another placement, or for the other mode.
        """
        self._input_gradients = False
        if schedule is not None:
            schedule = schedule_for_mode(schedule, loss_fn is not None)
        given, rank = self._given(inputs), self.connection.rank
        self._together.follow_settings()
        micro_batches = 1 if schedule is None else schedule.micro_batches
        own = self._together.beginning(
            JointCall.STEP, micro_batches, torch.is_grad_enabled(), loss_fn
        )
        batch = self._together.agreed_size(given, batch_size, own)
        self.for_batch(batch)
        if schedule is None:
            with self._together.whole_pass():
                asked = self.runtime.whole_batch, batch, loss_fn, self.connection.gather
                schedule = self.placement.usual_schedule(self.placement, *asked)
            schedule = schedule_for_mode(schedule, loss_fn is not None)
        sizes = micro_batch_sizes(batch, schedule.micro_batches)
        here = self._here(given)
        self.placement.passes.check_alike(sizes)
        programs = self.placement.programs
        with self._together.whole_pass():
            batches = self.placement.passes.divided(here, sizes, rank)
            made: dict[int, Score] = {}
            if self.makes_result:  # now, so that all ranks do what they do together in one order
                scoring = targets, loss_fn, sizes, rank
                made[rank] = programs.score(*scoring, alone=True, total=self._together.total)
            elif own.counts_classes:
                self._together.total((0.0, 0.0))
            with programs.batch():
                scores = self.runtime.step(schedule, batches, made.__getitem__, sizes)
            self._together.agreement.settle()
        if not self.makes_result:
            return None
        if loss_fn is None:
            return [programs.whole_result(by_share) for by_share in scores[rank]]
        return reduce(add, scores[rank])

    def gathered_state_dict(self) -> dict[str, Tensor] | None:
        """The model's own state_dict, whole, on the CPU of the first process; all call it.

        Returns
        -------
        dict of str to Tensor, or None
            The state as in `Placement.state_dict` on rank 0, None on the others.

        Raises
        ------
        RunError
            If another rank is gone.
        """
        placement, rank = self.placement, self.connection.rank
        own_held = [(held, tensor.detach().cpu()) for held, tensor in placement.held(rank)]
        parts = self.connection.collect(own_held, JointCall.STATE)
        return None if parts is None else placement.held_state.whole(chain.from_iterable(parts))

    def load_state_dict(  # type: ignore[override]  # tensors are always copied, never assigned
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load the model's own state_dict, from which this rank takes its slices; all call it.

        Raises
        ------
        PlacementError
            For the reasons of `Placement.load_state_dict`.
        """
        return self.placement.load_state_dict(state_dict, strict)

    def _own_result(self, results: Sequence[Tensor]) -> Any:
        """The model's result, for the samples whose result is on this rank, or a stand-in."""
        here = len(self.placement.programs.shares_of_result(self.connection.rank)) or 1
        per_share = len(results) // here
        by_share = [results[at * per_share : (at + 1) * per_share] for at in range(here)]
        return self.placement.programs.whole_result(by_share)

    @joint(JointCall.STREAM)
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
            Inputs as for `step`; targets are read by the ranks that make the result.
        update : callable
            Called with this rank when it is to change its parameters by their `grad`.
        schedule : Schedule
            A schedule of `hgpart.run.scheduling.schedule`, the same on all ranks.
        batch_size : int
            Number of samples in every batch. With a plan over slices, inputs may hold only this
            rank's samples, so a smaller last batch can't be noticed: the loader needs
            ``drop_last=True``.
        on_loss : callable
            Called after this rank's update for each batch: with its loss on the rank that makes
            the result (or its part of it if several do), with None on the others.

        Returns
        -------
        list of Tensor or None
            The losses, on the ranks that make the result; they add up.

        Raises
        ------
        RunError
            If another rank is gone.
        ArgumentError, PlanError, PlacementError
            For the reasons of `Placement.stream`, or if a batch has another size.
        """
        placement, self._input_gradients = self.placement, False
        several = len(placement.programs.shares) > 1 and not schedule.turns
        placement.programs.check_stream(schedule, stash)
        check_size(batch_size)
        with self._together.whole_pass():
            self._together.check_same(
                batch_size,
                self._together.beginning(JointCall.STREAM, schedule.micro_batches, learns=True),
            )
        self.for_batch(batch_size)
        losses: list[Tensor] = []

        def tell(_: int, loss: Tensor | None) -> None:
            if loss is not None:
                losses.append(loss)
            on_loss(loss)

        rank = self.connection.rank
        turns = placement.forms.turns if schedule.turns else (placement.programs,)
        makes = [rank in programs.output_parts for programs in turns]
        total = None if several else self._together.total  # a call of all ranks

        def begun(
            number: int, inputs: Inputs, targets: Any
        ) -> tuple[Mapping[str, Any], Callable[[int], Score]]:
            given, programs = self._given(inputs), turns[number % len(turns)]
            size = None if several else programs.arguments.batch_size(given)
            if size not in (None, batch_size):
                raise ArgumentError(f"a batch of {size}: accepted are batches of {batch_size}")
            here = given if schedule.turns else self._here(given)
            (values,) = placement.passes.divided(here, (batch_size,), rank, programs)
            of_batch = targets, loss_fn, (batch_size,)
            return values, partial(programs.score, *of_batch, alone=True, total=total)

        makes_result = any(makes)
        source = StreamedBatches(
            batches, schedule.micro_batches, begun, lambda at: int(makes[at % len(makes)])
        )
        in_flight = placement.copies.in_flight(
            placement.parameters(), in_turns=bool(schedule.turns)
        )
        with self._together.whole_pass(), in_flight:
            check_modules_of_stream([self.program.module])
            streaming = schedule, source.values(), source.score, update, tell, stash
            runtime = self.runtime
            if schedule.turns:
                runtime = self._runtime_of(placement.placed_in_turns)
            runtime.stream(*streaming, batch_size)
            self.runtime.last = runtime.last
            self._together.agreement.settle()
        return losses if makes_result else None

    def for_inputs(self, inputs: Inputs = ()) -> DistributedModel:
        """Switch all ranks to inputs of other sizes; see `Placement.for_inputs`.

        Parameters
        ----------
        inputs : tensor, sequence or mapping
            Inputs as for `step`; only their sizes matter. A rank that has none may leave them out.

        Raises
        ------
        ArgumentError
            If no rank has a tensor for an input, or ranks have it in different sizes.
        PlacementError
            For the reasons of `Placement.for_inputs`; if it fails on a rank, all stay as they were.
        """
        own = [None if value is None else tuple(value.shape[1:]) for value in self._given(inputs)]
        self._together.switch(self._together.agreed_sizes(own), None)
        return self

    def for_batch(self, batch_size: int) -> DistributedModel:
        """Switch all ranks to a batch of `batch_size` samples; see `Placement.for_batch`.

        Raises
        ------
        PlacementError
            For the reasons of `Placement.for_batch`; if it fails on a rank, all stay as they were.
        """
        if not self.placement.forms.takes(batch_size):  # as all ranks find
            self._together.switch(self.placement.forms.present.sizes, batch_size)
        return self

    def _given(self, inputs: Inputs) -> list[Tensor | None]:
        """The tensors among the inputs, with None where a tensor is left out."""
        return self.placement.programs.arguments.tensors_here(*as_called(inputs))

    def _here(self, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The inputs whose values are needed and present on this rank."""
        reads = self.reads_inputs
        return [None if not reads or value is None or value.is_meta else value for value in inputs]


def in_processes(model: nn.Module) -> DistributedModel | None:
    """The model itself if it is one of several processes.

    Raises
    ------
    ArgumentError
        If such a model is within it: what goes over all of its parameters would miss those of other
        processes.
    """
    if isinstance(model, DistributedModel):
        return model
    if any(isinstance(module, DistributedModel) for module in model.modules()):
        raise ArgumentError(
            f"a {type(model).__name__} with a DistributedModel in it: accepted is that model"
        )
    return None
