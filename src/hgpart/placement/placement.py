"""Placement: a model in parts, each a submodule on its device."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import chain
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from hgpart.errors import PlacementError
from hgpart.execution.runtime import Placed
from hgpart.execution.step_run import Score
from hgpart.execution.threads.crew import Crew
from hgpart.execution.threads.local import LocalRuntime
from hgpart.partition.partition import MB
from hgpart.placement.as_module.listing_module import ListingModule
from hgpart.placement.as_module.original_modules import skeleton
from hgpart.placement.as_module.settings import Settings
from hgpart.placement.as_module.whole_tensors import warn_of_optimizers
from hgpart.placement.batches.micro_batches import schedule_for_mode
from hgpart.placement.batches.streams import (
    StreamedBatches,
    StreamedLosses,
    check_modules_of_stream,
    sum_of_parts,
)
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.copies_by_form import CopiesByForm
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.expected import float_type
from hgpart.placement.forms import Forms
from hgpart.placement.held_state import HeldState
from hgpart.placement.mode_programs import build_programs, owners_blueprint, with_input_gradients
from hgpart.placement.passes import Passes, gradients_wanted
from hgpart.placement.programs import Programs
from hgpart.placement.state.original_state import compared_names, hooked, original_state
from hgpart.placement.state.traced_values import check_values
from hgpart.placement.state.weight_files import opened_weights
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.schedule import Schedule
from hgpart.summary import Summary
from hgpart.tracing.arguments import Inputs
from hgpart.tracing.forms import Form, said_of, sizes_of_inputs

if TYPE_CHECKING:
    from hgpart.placement.accounting import PlacementReport


class Placement(ListingModule):
    """A model in k parts, each a torch.fx GraphModule with its slices of the weights.

    It is called, trained and saved like the model that it was made of: one process runs all parts
    (`hgpart.execution.threads`), or `hgpart.run.distributed` runs the same submodules in many
    processes. Gradients come with `.backward()`; with several parts `torch.autograd.grad` works for
    inputs, not for parameters.

    If the batch is in slices, slices with the same layout are computed as one share of it; if rows
    of maps are in bands, neighbouring bands with the same filters are computed at once. Each
    element of a parameter belongs to one part's state, chosen so that parts that share parameters
    own equal amounts of them. Other parts have copies, which are not parameters: they get the
    values when a pass with gradients begins, and send their gradients back when it ends. Norms take
    statistics over all rows of a share, and running statistics are those of the first share, with
    the first samples of a batch; if the plan has norms of the batch, statistics are over all
    shares.

    Attributes
    ----------
    devices : tuple of torch.device
        Device of each part.
    placed_for : Form
        Mode, and sizes of inputs and of the batch, that it was made for: work and layer times are
        those of the model with these.
    forms : Forms
        Programs in each form of the model; the present form is that of the next pass.
    usual_schedule : callable
        Returns the schedule of a step for which none is given; see `ordering.usual_schedule`.
    passes : Passes
        Checks and values with which passes begin.
    copies : CopiesByForm
        Copies that parts have of each other's state.
    held_state : HeldState
        Tensors of the parts.
    """

    held_state: HeldState

    def __init__(
        self,
        model: nn.Module,
        blueprints: Sequence[Blueprint],
        held: Sequence[int],
        devices: tuple[torch.device, ...],
        usual: Callable[..., Schedule],
    ) -> None:
        """Use `hgpart.place`."""
        blueprint = blueprints[0]
        traced = blueprint.traced
        bare, modes = skeleton(model), traced.outline.modes
        settings = Settings(bare, traced.training, modes, tuple(hooked(model)))
        dtype = float_type((*model.parameters(), *model.buffers(), *traced.example))
        programs = build_programs(blueprints, owners_blueprint(blueprints), held, dtype)
        programs.check_types(traced.example)  # it can be called only with floats of one type
        state = HeldState(original_state(model, blueprint.used_state))
        super().__init__(settings, state)
        self.k, self.training = blueprint.partition.k, traced.training
        self.usual_schedule = usual
        tensors = dict(model.named_buffers(remove_duplicate=False))
        tensors.update(model.named_parameters(remove_duplicate=False))
        self.forms = Forms(settings, programs, state, tensors, devices)
        if programs.has_all_parts:
            state.check_coverage()
        self.placed_for = self.forms.first
        self.passes = Passes(self.forms, settings, state)
        self.copies = CopiesByForm(self.forms, state)
        self._crew = Crew(devices)
        self._placed: dict[tuple[Form, bool], Placed] = {}
        self._placed_in_turns: dict[Form, Placed] = {}
        self._runtimes: dict[Placed, LocalRuntime] = {}
        self._learning_inputs: Programs | None = None  # if the last pass has gradients of inputs
        self._list_model(self.forms.parts)
        warn_of_optimizers(self)

    # -------------------------------------------------------------- the submodules

    @property
    def programs(self) -> Programs:
        """Programs of the parts that this process holds, in the present form."""
        return self.forms.programs

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Device of each part."""
        return self.forms.devices

    @property
    def dtype(self) -> torch.dtype:
        """Type in which floating tensors are sent."""
        return self.programs.dtype

    def report(self, batch_size: int | None = None) -> PlacementReport:
        """Figures of what each part holds, computes, sends and keeps, counted in the submodules.

        Default: at the plan's batch size; see `hgpart.placement.accounting`.
        """
        from hgpart.placement.accounting import account

        return account(self, batch_size)

    # -------------------------------------------------------------- as an nn.Module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Results of the model, called like the model itself.

        Inputs of other sizes than before switch the placement, as `for_inputs` does.

        Raises
        ------
        ArgumentError
            If the model's forward does not take these inputs, if something else stands where it was
            traced with a tensor, or if a flag or number differs from the traced one.
        PlacementError
            If `Passes.check_batch`, `for_inputs` or `Programs.divided` refuses the inputs.
        """
        tensors = self.programs.arguments.tensors_of(inputs, named)
        batch_size = self.programs.batch_size_of(tensors)
        self._for_call(tensors, "forward")
        programs = self.programs
        if programs.has_copies:
            self.held_state.check_not_replaced(programs)
        (values,) = self.passes.batches(tensors, (batch_size,))
        self._learning_inputs = programs if gradients_wanted(tensors) else None
        with programs.batch():
            results = self.runtime.run(values)
        return programs.whole_result(programs.by_share(results))

    def step(
        self,
        inputs: Inputs,
        targets: Any = None,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        schedule: Schedule | None = None,
    ) -> Any:
        """Run a batch in micro-batches; in grad mode, add to the gradients of the parameters.

        Random masks are drawn once for the whole batch. Norms take the statistics of each
        micro-batch, and update running statistics as `place` was told.

        Parameters
        ----------
        inputs : tensor, sequence or mapping
            Inputs of the model: its only input, inputs by position, or inputs by their names in
            forward. Tensors with a dimension for samples are divided among micro-batches.
        targets : tensors or None in any structure, optional
            Targets to divide among micro-batches: tensors along their first dimension, a list or
            tuple of dicts (one per sample) by its entries.
        loss_fn : callable, optional
            Function (model's result, targets) -> tensor of one element. It is taken as a mean over
            samples, and weighted by the micro-batch's share of them. Of torch's own losses, sums
            add up over the batch, and cross entropy and `nll_loss` (functions, their partials and
            modules) weight targets as they do for the whole batch, by class weights and without
            `ignore_index`. Other losses of this kind return (sum, count), and the loss is the sum
            over the count of the batch: counts must follow from targets alone, as they are needed
            before all results are there; the function is called once more for each micro-batch for
            this, without gradients and with other results. A loss that the model computes itself
            must be a mean over samples, too, with no targets that it ignores. Required in grad
            mode.
        schedule : Schedule, optional
            Schedule of `hgpart.schedule`; one serves all sizes of inputs for which parts do the
            same steps. Default, where there is a loss, it is torch's own and no norm takes
            statistics of samples: that of the plan, or as many micro-batches as are simulated to
            be fastest. Otherwise the whole batch at once, also by a plan with micro-batches.

        Returns
        -------
        Tensor or list
            Loss of the batch; without a loss function, the model's results for each micro-batch.

        Raises
        ------
        ArgumentError
            If the inputs are not the model's, as when it is called; if there are more micro-batches
            than samples; if targets are for other samples, of other types, or ambiguous (a list of
            n tensors of n each, for n samples); if a loss is not a tensor of one element, or the
            schedule is not a schedule. In grad mode, if there is no loss, it has no gradients, or
            the schedule has no backward passes.
        PlanError
            If the schedule is for another placement, or for another mode.
        PlacementError
            If `for_inputs` refuses the inputs, or `Passes.check_batch` some micro-batch; if an
            input requires a gradient.
        """
        tensors = self.programs.tensors_of(inputs)
        batch_size = self.programs.batch_size_of(tensors)
        self._for_call(tensors, "step")
        self._learning_inputs = None
        if schedule is None:
            schedule = self.usual_schedule(self, self.runtime.whole_batch, batch_size, loss_fn)
        schedule = schedule_for_mode(schedule, loss_fn is not None)
        sizes = micro_batch_sizes(batch_size, schedule.micro_batches)
        batches = self.passes.divided(tensors, sizes)
        score = partial(self.programs.score, targets, loss_fn, sizes)
        with self.programs.batch():
            scores = self.runtime.step(schedule, batches, score)
        if loss_fn is not None:
            losses = [reduce(add, scores[part]) for part in sorted(scores)]
            return sum_of_parts(losses)
        by_part = {part: [iter(share) for share in shares] for part, shares in scores.items()}
        parts = self.programs.output_parts
        return [
            self.programs.whole_result([next(by_part[part][at]) for part in parts])
            for at in range(len(sizes))
        ]

    def stream(
        self,
        batches: Iterable[tuple[Inputs, Any]],
        loss_fn: Callable[[Any, Any], torch.Tensor],
        update: Callable[[int], object],
        schedule: Schedule,
        *,
        stash: bool = True,
        on_loss: Callable[[torch.Tensor], object] = lambda loss: None,
    ) -> list[torch.Tensor]:
        """Train on a stream of batches: parts update their weights without waiting for each other.

        A part updates its weights as soon as it has all gradients of a batch, and goes on with
        other batches: forward passes that have begun before do without that update
        (`Schedule.staleness`). With one batch in flight it is ordinary training, to the bit. All
        batches have ended when it returns.

        In a plan over slices or bands, weights that several parts compute with are the same in all
        of them for each batch: as stale as in the part that owns them, which updates them when it
        has the gradients of all parts. What does not learn must not change.

        Parameters
        ----------
        batches : iterable of (inputs, targets)
            Batches, as many as the schedule has, with inputs as in `step` but of the present sizes;
            each is taken, and its random masks are drawn, when the first part begins it.
        loss_fn : callable
            Function (model's result, targets) -> tensor of one element.
        update : callable
            Function that is called with a part when the `grad` of the part's parameters is that of
            one batch, for a step of this part's optimizer. Each part calls it in its own thread.
        schedule : Schedule
            Schedule of `hgpart.schedule` with the rule ``async``, ``dynamic`` or ``turns``.
        stash : bool
            Whether a batch's backward pass has the weights of its forward pass: then a part keeps a
            copy of its weights for each batch in flight that began with others. If not, an update
            changes the weights of batches in flight, whose gradients mix the weights of two
            updates.
        on_loss : callable
            Function that is called with the loss of each batch, in order, by the last part that
            contributes to it.

        Returns
        -------
        list of Tensor
            Losses of all batches.

        Raises
        ------
        ArgumentError
            If there are fewer batches than the schedule has, or its rule is another one; if a loss
            is not a tensor of one element with gradients; if steps are compiled, parameters have
            hooks, norms are updated per batch, or grad mode is off. For a plan over slices
            or bands, if `stash` is False.
        PlanError, PlacementError
            If `step` would raise it; for a plan over slices or bands also if something that does
            not learn was changed.
        """
        if self.programs.has_all_parts:
            self.forms.follow(self.training)
        self.programs.check_stream(schedule, stash)
        check_modules_of_stream(self.programs.submodule(part) for part in self.programs.parts)
        self._learning_inputs = None
        turns = self.forms.turns if schedule.turns else (self.programs,)
        makers = [{*programs.output_parts} for programs in turns]
        losses = StreamedLosses(set().union(*makers), on_loss)

        def begun(
            number: int, inputs: Inputs, targets: Any
        ) -> tuple[Mapping[str, Any], Callable[[int], Score]]:
            programs = turns[number % len(turns)]
            tensors = programs.tensors_of(inputs)
            sizes = (programs.batch_size_of(tensors),)
            (values,) = self.passes.divided(tensors, sizes, programs=programs)
            return values, partial(programs.score, targets, loss_fn, sizes)

        count = schedule.micro_batches
        source = StreamedBatches(batches, count, begun, lambda at: len(makers[at % len(makers)]))
        runtime = self._runtime_of(self.placed_in_turns) if schedule.turns else self.runtime
        with self.copies.in_flight(self.parameters(), in_turns=bool(schedule.turns)):
            runtime.stream(schedule, source.values(), source.score, update, losses.tell, stash)
        self.runtime.last = runtime.last
        return losses.told

    @property
    def runtime(self) -> LocalRuntime:
        """Runtime of all parts in this process; its `last` tells what was sent, and who waited."""
        return self._runtime_of(self.placed)

    def _runtime_of(self, placed: Placed) -> LocalRuntime:
        if placed not in self._runtimes:
            self._runtimes[placed] = LocalRuntime(placed, self._crew)
        return self._runtimes[placed]

    @property
    def placed(self) -> Placed:
        """What a runtime needs to know of the parts in this process, in the present form."""
        return self.placed_with(self.programs is self._learning_inputs)

    def placed_with(self, input_gradients: bool) -> Placed:
        """The same for passes with or without gradients of inputs."""
        key = self.forms.present, input_gradients
        if key not in self._placed:
            programs = self.programs
            if input_gradients:
                programs = with_input_gradients(programs)
            copies = self.copies.gathered if programs.has_copies else None
            facts = self.k, programs.parts, programs.output_parts, copies
            self._placed[key] = Placed(*facts)
        return self._placed[key]

    @property
    def placed_in_turns(self) -> Placed:
        """The same for a stream in which each slice of the batch has batches in turns."""
        form = self.forms.present
        if form not in self._placed_in_turns:
            turns = self.forms.turns
            makers = {part for programs in turns for part in programs.output_parts}
            self._placed_in_turns[form] = Placed(
                self.k,
                turns[0].parts,
                tuple(sorted(makers)),
                self.copies.in_turns,
                [programs.parts for programs in turns],
            )
        return self._placed_in_turns[form]

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the steps of the present form with torch.compile, which gets these arguments."""
        for program in self.programs.parts.values():
            for step in program.module.children():
                if isinstance(step, fx.GraphModule):
                    step.compile(*args, **kwargs)

    def train(self, mode: bool = True) -> Placement:
        """Switch to training or evaluation, like the model itself.

        Back in the mode in which it was placed, each module has the mode that it had then: a norm
        that was in evaluation mode in a training model stays so, whereas the model's own `train`
        would change it. In the other mode all modules are in that mode. A mode that was set since
        for one module, as in `placed.norm.eval()`, is lost, as it is in the model.
        """
        self.forms.train(mode)
        self.training = mode
        self.parts.train(mode)
        return self

    def for_inputs(self, inputs: Inputs) -> Placement:
        """Switch to the sizes of these inputs, as `train` switches to a mode.

        The same parts have the same filters and parameters; transfers, `programs` and `report` are
        then for these sizes. The first time in a mode the model is traced again. Calling the
        placement, or its `step`, switches, too. A `stream` keeps the present sizes; in processes
        `DistributedModel.for_inputs` switches.

        Parameters
        ----------
        inputs : tensor, sequence or mapping
            Inputs as in `step`; they may be on the meta device.

        Raises
        ------
        ArgumentError
            If the inputs are not the model's, as when it is called.
        PlacementError
            If the model does not take inputs of these sizes, or has other layers, channels or
            parameters with them. If this process does not hold all parts, as the others would not
            switch.

        >>> import hgpart
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3))
        >>> placed = hgpart.place(model, k=2, example=torch.zeros(2, 3, 8, 8))
        >>> before = placed.programs.expected(32).volume
        >>> placed.for_inputs(torch.zeros(2, 3, 16, 16)).programs.expected(32).volume > before
        True
        """
        self._check_has_all("for_inputs")
        self.forms.follow(self.training)
        tensors = self.programs.tensors_of(inputs)
        batch_size = self.programs.arguments.batch_size(tensors)
        self.forms.for_sizes(sizes_of_inputs(tensors), batch_size)
        return self

    def _for_call(self, tensors: Sequence[torch.Tensor], call: str) -> None:
        """Switch to the sizes of the tensors in a call, if it can compute with them."""
        self._check_has_all(call)
        self.forms.follow(self.training)
        self.programs.check_types(tensors)
        self.forms.for_sizes(sizes_of_inputs(tensors), self.programs.batch_size_of(tensors))

    def for_batch(self, batch_size: int) -> Placement:
        """Switch to what the model does with this batch size, with the present sizes of inputs.

        Most models do the same with every batch. Others are traced again for a batch with which
        they may do something else than before, as for inputs of other sizes.

        Raises
        ------
        ArgumentError
            If the batch has no sample.
        PlacementError
            If `for_inputs` would refuse it.
        """
        self.forms.for_sizes(self.forms.present.sizes, batch_size)
        return self

    def _check_has_all(self, method: str) -> None:
        """Raise a PlacementError, with the method of processes, unless all parts are held here."""
        if not self.programs.has_all_parts:
            here = len(self.programs.parts)
            raise PlacementError(
                f"this process holds {here} of {self.k} parts only: accepted is "
                f"DistributedModel.{method}, in all processes"
            )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Placement:
        """Move all parts in all forms with `fn`, which says what moves where, as in `.double()`."""
        self.forms.move(fn)
        self._crew = Crew(self.devices)
        self._placed.clear()
        self._placed_in_turns.clear()
        self._runtimes.clear()
        self.copies.forget()
        return self

    # -------------------------------------------------------------- printing and copying

    def __repr__(self) -> str:
        """Short form; `print(placement.programs.submodule(0).code)` shows a part's code."""
        return (
            f"Placement({type(self.model_settings.model).__name__} in {self.k} parts on "
            f"{', '.join(map(str, dict.fromkeys(self.devices)))}, "
            f"{'training' if self.training else 'evaluation'}, "
            f"inputs of {said_of(self.forms.present.sizes)})"
        )

    def summary(self) -> Summary:
        """A table of each part's work and messages; `report` counts in the submodules.

        For sizes of inputs other than it was placed for, or a batch with which the model does
        something else, the table has no work, which would be that of the placed sizes.
        """
        partition = self.programs.partition
        summary = partition.summary().with_column("device", self.devices)
        (line,) = summary.lines
        if not self.forms.is_as_placed:
            summary = summary.without_column("work %")
            now, first = self.forms.present, self.forms.first
            line = (
                f"{self.k} parts, inputs of {now.said_beside(first)} (placed for "
                f"{first.said_beside(now)}): {partition.evaluation.volume / MB:,.4g} MB between "
                f"them for a batch of {partition.modelling.batch_size}"
            )
        return replace(summary, lines=(f"{type(self.model_settings.model).__name__} in {line}",))

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def plot(self, path: Path | str | None = None) -> str:
        """Make the page of this placement, and write it if a path is given; see `hgpart.plot`."""
        from hgpart import plot

        return plot(self, path)

    def __deepcopy__(self, memo: dict[int, Any]) -> Placement:
        """Copy it like any module."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        warn_of_optimizers(copied)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled: programs of parts are code, which `place` makes again."""
        raise PlacementError(
            "a placement can't be pickled: accepted are its state, torch.save(placed.state_dict(), "
            "path), and its plan, result.save(path), which hgpart.place places again"
        )

    # -------------------------------------------------------------- state

    def held(self, part: int) -> Iterator[tuple[Slice, torch.Tensor]]:
        """A part's slices of the model's state, for all modes: each tensor once."""
        return self.held_state.of(part)

    def original_parameters(self, part: int) -> Iterator[tuple[str, nn.Parameter]]:
        """A part's parameters, each with the name of the model's parameter that it is a slice of.

        A name occurs several times if the part has several slices of it, and in other parts if
        these have the rest. `held` says which elements they have.

        >>> import hgpart
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> placed = hgpart.place(model, k=2, example=torch.zeros(2, 3, 8, 8))
        >>> sorted({name for name, _ in placed.original_parameters(0)})
        ['0.bias', '0.weight', '1.bias', '1.weight']
        """
        for held, tensor in self.held(part):
            if isinstance(tensor, nn.Parameter):
                yield held.name, tensor

    def divided_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters that are only part of a parameter of the model, with its name."""
        for part in self.programs.parts:
            for held, tensor in self.held(part):
                if isinstance(tensor, nn.Parameter) and not held.is_whole:
                    yield held.name, tensor

    def state_dict(  # type: ignore[override]
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """The model's own state_dict on the CPU: its names and shapes, each element once.

        Raises
        ------
        PlacementError
            If this process does not hold all parts.
        """
        self._check_has_all("gathered_state_dict")
        state = OrderedDict() if destination is None else destination
        held = chain.from_iterable(map(self.held, range(self.k)))
        whole = self.held_state.whole(held)
        state.update((prefix + name, tensor) for name, tensor in whole.items())
        return state

    def load_state_dict(  # type: ignore[override]  # tensors are always copied, never assigned
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load the model's own state_dict; each part takes its slices.

        Raises
        ------
        PlacementError
            If names are missing or unknown (if `strict`), a value is not a tensor or has another
            shape, or an index does not fit the parts.
        """
        if not isinstance(state_dict, Mapping):
            raise PlacementError(
                f"the state is a {type(state_dict).__name__}, expected tensors by name"
            )
        missing, unknown = compared_names(state_dict, self.held_state.original, strict)
        bare = self.model_settings.model.state_dict(keep_vars=True)
        values = {name: value for name, value in bare.items() if not value.is_meta}
        self.held_state.check_values(state_dict, values)
        for programs in self.forms.every:
            check_values(programs.blueprint.traced, programs.blueprint.graph, state_dict)
        with torch.no_grad():
            for name in values.keys() & state_dict.keys():  # other modes are traced with these
                values[name].copy_(state_dict[name])
            self.held_state.load(state_dict)
        self.copies.note_loaded()
        return torch.nn.modules.module._IncompatibleKeys(missing, unknown)

    def load_checkpoint(self, path: Path | str) -> None:
        """Load a safetensors or torch file of the model's state_dict.

        Only tensors of which a part of this process has elements are read. A prefix of all names,
        such as ``module.``, is removed; the state_dict may be an entry of a dict, such as
        ``"state_dict"``.

        Raises
        ------
        CheckpointError
            If the file can't be read.
        PlacementError
            If the file is of another model.
        """
        with opened_weights(path, self.held_state.original) as state:
            self.load_state_dict(state)
