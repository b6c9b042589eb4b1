"""Placement: a model in parts, each a submodule on its device."""

from __future__ import annotations

import copy
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from itertools import chain
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from hgpart.errors import PlacementError, check_whole
from hgpart.execution.runtime import Gather, Placed
from hgpart.execution.step_run import Score
from hgpart.execution.threads.crew import Crew
from hgpart.execution.threads.local import LocalRuntime
from hgpart.execution.weights.copies import Copies
from hgpart.partition.partition import MB
from hgpart.placement.as_module.original_modules import (
    REGISTRIES,
    Listed,
    Registry,
    Settings,
    check_assigned,
    is_registered,
    listed,
    listed_children,
    modes_of,
    set_modes,
    skeleton,
)
from hgpart.placement.as_module.parts import Parts
from hgpart.placement.as_module.whole_tensors import warn_of_optimizers
from hgpart.placement.batches.micro_batches import schedule_for_mode
from hgpart.placement.batches.streams import (
    StreamedBatches,
    StreamedLosses,
    check_modules_of_stream,
    sum_of_parts,
)
from hgpart.placement.building.blueprint import UNUSED, Blueprint
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.expected import (
    float_type,
)
from hgpart.placement.held_state import HeldState, assembled
from hgpart.placement.mode_programs import (
    build_programs,
    in_dtype,
    never_used,
    owners_blueprint,
    with_input_gradients,
    with_unused,
)
from hgpart.placement.other_forms import does_the_same, programs_of, retraced
from hgpart.placement.programs import Programs
from hgpart.placement.shares.exchanges import Holding, exchanges
from hgpart.placement.shares.messages import buckets_of
from hgpart.placement.state.original_state import compared_names, has_hooks, hooked, original_state
from hgpart.placement.state.traced_values import check_values
from hgpart.placement.state.weight_files import opened_weights
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.schedule import Schedule
from hgpart.summary import Summary
from hgpart.tracing.arguments import Inputs
from hgpart.tracing.forms import Form, Sizes, said_of, sizes_of_inputs
from hgpart.tracing.model_outline import outline_of
from hgpart.tracing.reachable import NO_STATE
from hgpart.tracing.traced_model import TracedModel

if TYPE_CHECKING:
    from hgpart.placement.accounting import PlacementReport


class Placement(nn.Module):
    """A model in k parts, each a torch.fx GraphModule with its slices of the weights.

    It is called, trained and saved like the model that it was made of: one process runs all parts
    (`hgpart.execution.threads`); `hgpart.run.distributed` runs the same submodules in many
    processes. Gradients come with `.backward()`; with several parts `torch.autograd.grad` knows the
    inputs and not the parameters.

    Where the batch is in slices, those that lie alike are computed as one share of it. Each element
    of a parameter is in one part's state, chosen so that all of those that compute with it have
    as much of what they share; others have copies of it, which are no parameters: they get its
    values when a pass with gradients begins, and give it their gradients when that ends. Norms
    take the statistics of a share, and running ones are those of the first, which has the first
    samples of a batch; where the plan has norms of the batch, statistics are those of all shares.

    Attributes
    ----------
    k : int
    devices : tuple of torch.device
        One for each part.
    placed_for : Form
        The mode, and the sizes of inputs and of the batch, that it was made for: work, and times of
        layers, are of what the model does with these.
    """

    def __init__(
        self,
        model: nn.Module,
        blueprints: Sequence[Blueprint],
        held: Sequence[int],
        devices: tuple[torch.device, ...],
    ) -> None:
        """Use `hgpart.place`."""
        super().__init__()
        blueprint = blueprints[0]
        self.k = blueprint.partition.k
        self.devices = devices
        self.training = blueprint.traced.training
        self._held = tuple(held)
        traced = blueprint.traced
        self._skeleton = (skeleton(model),)  # a submodule would count among the placement's own
        self.listed = Listed()
        self._modes = {
            model.training: modes_of(self._skeleton[0]),
            traced.training: traced.outline.modes,
        }
        set_modes(self._skeleton[0], traced.outline.modes)
        self._known_settings = {outline_of(self._skeleton[0]): 0}
        self.set_since = Settings(self._skeleton[0])
        dtype = float_type((*model.parameters(), *model.buffers(), *blueprint.traced.example))
        programs = build_programs(blueprints, owners_blueprint(blueprints), held, dtype)
        self._state = HeldState(original_state(model, blueprint.used_state))
        unused = never_used(programs, self._state.original)
        self.placed_for = self.form = traced.form  # all else is of the present form
        self._forms = {self.form: with_unused(programs, self._state.original, unused)}
        self._alike: dict[Form, Form] = {}  # forms in which a model does what it does in another
        self._crew = Crew(devices)
        self._placed: dict[tuple[Form, bool], Placed] = {}
        self._runtimes: dict[Placed, LocalRuntime] = {}
        self._copies: dict[Form, Copies] = {}  # what parts have of each other's state
        self._last = (self.form, False)  # form and whether gradients of inputs were wanted
        self._hooked = self._hooked_then = tuple(hooked(model))
        # Floats of one type alone can be called with.
        self.programs.check_types(blueprint.traced.example)
        self.parts = Parts()
        state = dict(model.named_buffers(remove_duplicate=False))
        state.update(model.named_parameters(remove_duplicate=False))
        self._state.fill(self.programs, devices, state)
        if self._has_all:
            self._state.check_coverage()
        self._show()
        for name in REGISTRIES:
            self.__dict__[name] = Registry("", self.__dict__[name])
        warn_of_optimizers(self)

    # -------------------------------------------------------------- the submodules

    @property
    def programs(self) -> Programs:
        """What the parts that this process holds do, in the present form."""
        return self._forms[self.form]

    @property
    def dtype(self) -> torch.dtype:
        """The type that floating tensors travel in."""
        return self.programs.dtype

    @property
    def is_as_placed(self) -> bool:
        """Whether inputs and batch are as those that it was placed for."""
        first = self.placed_for
        return (self.form.sizes, self.form.batch_size) == (first.sizes, first.batch_size)

    def check_gradients(self) -> None:
        """Raise a PlacementError if gradients would not be those of the model."""
        lost = (*self._hooked, *self.programs.blueprint.traced.lost_gradients)
        if lost:
            raise PlacementError(
                f"the model's backward pass has what a placement's has not ({lost[0]}): accepted "
                "are passes without gradients, in evaluation under torch.no_grad()"
            )

    def check_batch(self, batch_size: int, inputs: Sequence[torch.Tensor | None]) -> None:
        """Check what a pass begins with; a process may have None for tensors that it does not read.

        Raises
        ------
        PlacementError
            If state is yet to be loaded, the model's code fixed another batch size, or an input
            has another type or, but for the batch, another shape than was traced. If a norm has one
            value per channel to take its statistics of, or gradients are wanted that a placement
            does not have; in slices of the batch also those of parameters that have hooks, or were
            frozen when they were placed.
        """
        self.check_alike((batch_size,))
        self._check_pass(inputs)
        self.programs.check_inputs(batch_size, inputs)

    def check_alike(self, sizes: Sequence[int]) -> None:
        """What of `check_batch`, for micro-batches of some sizes, all processes find alike.

        Whatever of the model's state and of the inputs each of them has.
        """
        self.programs.check_micro_batches(len(sizes))
        self.check_samples(sizes)
        if torch.is_grad_enabled() and self.programs.blueprint.trainable:
            self.check_gradients()
        self.programs.check_norms_of_batch(self.devices)

    def _check_pass(self, inputs: Sequence[torch.Tensor | None]) -> None:
        """What of `check_batch` goes by what this process has, but for the shapes of inputs."""
        if self._are_set_anew():
            raise PlacementError(
                "modules were given other attributes, modes or hooks after the model was placed: "
                "accepted in processes is before"
            )
        if unfilled := self._state.unfilled:
            raise PlacementError(
                f"{min(unfilled)} has no value ({len(unfilled)} in all): the model was on the meta "
                "device, load a state_dict first"
            )
        if _gradients_wanted(inputs):
            self.check_gradients()
        if torch.is_grad_enabled() and len(self.programs.shares) > 1:
            self._check_parameters()

    def _check_parameters(self) -> None:
        """Raise a PlacementError if a gradient would not be that of all shares of the batch."""
        for part in self._held:
            for held, tensor in self._state.of(part):
                if not tensor.requires_grad:
                    continue
                if held.name not in self.programs.blueprint.trainable:
                    raise PlacementError(
                        f"{held.name} requires a gradient, and did not when it was placed: "
                        "accepted in slices of the batch is to place the model anew"
                    )
                if has_hooks(tensor):
                    raise PlacementError(
                        f"a hook on {held.name}, whose gradient is added up from slices of the "
                        "batch: accepted are parameters without hooks, and passes without gradients"
                    )

    def check_samples(self, sizes: Sequence[int]) -> None:
        """Raise a PlacementError if a batch can't be computed in micro-batches of some sizes.

        If it is none that the present form is for, or a micro-batch, or a share of it, has too few
        samples, or too many.
        """
        if not self.takes(batch_size := sum(sizes)):
            known = self.programs.blueprint.traced.batch_sizes
            raise PlacementError(
                f"a batch of {batch_size}: accepted at present are {known}, with which the model "
                "does the same, and others by for_inputs"
            )
        for size in set(sizes):
            self.programs.check_samples(size)

    def report(self, batch_size: int | None = None) -> PlacementReport:
        """What each part holds, computes, sends and keeps, from the submodules themselves.

        At the plan's batch size when none is given; see `hgpart.placement.accounting`.
        """
        from hgpart.placement.accounting import account

        return account(self, batch_size)

    # -------------------------------------------------------------- as an nn.Module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the model returns, called as the model is.

        Inputs of other sizes than before are as `for_inputs` has them.

        Raises
        ------
        ArgumentError
            If the model's forward does not take these inputs, there is anything but tensors where
            it was traced with some, or another flag or number than it was traced with.
        PlacementError
            For any of the reasons of `check_batch`, `for_inputs` and `Programs.divided`.
        """
        tensors = self.programs.arguments.tensors_of(inputs, named)
        batch_size = self.programs.batch_size_of(tensors)
        self._for_call(tensors, "forward")
        programs = self.programs
        if len(programs.shares) > 1:
            self._state.check_not_replaced(programs)
        (values,) = self.batches(tensors, (batch_size,))
        self._last = self.form, _gradients_wanted(tensors)
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

        Random masks are drawn once, for the whole batch; norms take the statistics of each
        micro-batch, and update running ones as `place` was told.

        Parameters
        ----------
        inputs : tensor, sequence or mapping
            What the model is called with: its one input, inputs by position, or inputs by the names
            of its forward. Tensors with a dimension for samples are divided among micro-batches.
        targets : tensors or None in any structure, optional
            Divided among the micro-batches: tensors by their first dimension, a list or tuple of
            dicts, which is to have one for each sample, by its entries.
        loss_fn : callable, optional
            (what the model returns, targets) -> a tensor of one element: a mean over samples, which
            counts by the micro-batch's share of them. Of torch's own losses a sum is one of the
            batch, and cross entropy and `nll_loss` (functions, their partials and modules) count
            targets as they do, by class weights and without those of `ignore_index`. Others of that
            kind return (sum, count), and the loss is the sum over the count of the batch: counts
            have to follow from targets alone, as they are asked for before all results are there.
            Such a function is called once more for each micro-batch, without gradients and with
            other results. A loss that the model computes itself has to be a mean over samples, too,
            and targets for it are none that it ignores. Needed in grad mode.
        schedule : Schedule, optional
            Of `hgpart.schedule`; the whole batch at once when left out. One is for all sizes of
            inputs, where parts do the same steps in each of them.

        Returns
        -------
        Tensor or list
            The loss of the batch; without a loss function, what the model returns for each
            micro-batch.

        Raises
        ------
        ArgumentError
            If the inputs are not the model's, as where it is called; if there are more
            micro-batches than samples, targets for other samples, of other types or that may be
            meant in two ways (a list of n tensors of n each, for n samples), a loss that is no
            tensor of one element, or a schedule that is none. In grad mode, if there is no loss, it
            has no gradients, or the schedule no backward passes.
        PlanError
            If the schedule is for another placement, or for its other mode.
        PlacementError
            As in `for_inputs`, and in `check_batch` for each micro-batch; if an input requires a
            gradient.
        """
        tensors = self.programs.tensors_of(inputs)
        batch_size = self.programs.batch_size_of(tensors)
        self._for_call(tensors, "step")
        schedule = schedule_for_mode(schedule or self.runtime.whole_batch, loss_fn is not None)
        sizes = micro_batch_sizes(batch_size, schedule.micro_batches)
        batches = self.divided(tensors, sizes)
        self._last = self.form, False
        score = partial(self.programs.score, targets, loss_fn, sizes)
        with self.programs.batch():
            scores = self.runtime.step(schedule, batches, score)
        if loss_fn is not None:
            losses = [reduce(add, scores[part]) for part in sorted(scores)]
            return sum_of_parts(losses)
        by_part = {part: [iter(each) for each in found] for part, found in scores.items()}
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

        A part updates its weights as soon as the gradients of a batch on it are complete, and goes
        on with other batches: their forward passes, begun before, were without that update
        (`Schedule.staleness`). With one batch in flight it is training as ever, to the bit. When it
        returns, all batches have ended.

        Where the batch is in slices, weights that several parts compute with are for each batch the
        same in all of them: as stale as the part says that they belong to, which updates them when
        the gradients of all have come. What does not learn has to stay as it is.

        Parameters
        ----------
        batches : iterable of (inputs, targets)
            As many as the schedule has, inputs as `step` has them, but of the present sizes; each
            is asked for, and its random masks are drawn, when the first part begins it.
        loss_fn : callable
            (what the model returns, targets) -> a tensor of one element.
        update : callable
            Told a part when the `grad` of that part's parameters is of one batch alone: as a step
            of an optimizer of these parameters. Each part calls it in its own thread.
        schedule : Schedule
            Of `hgpart.schedule` with the rule ``async``.
        stash : bool
            Whether the backward pass of a batch has the weights of its forward pass: a part keeps a
            copy of its weights for each batch in flight that began with others. If not, an update
            changes them under the batches in flight, whose gradients are those of no weights.
        on_loss : callable
            Told the loss of each batch, in their order, by the last part that has some of it.

        Returns
        -------
        list of Tensor
            The losses.

        Raises
        ------
        ArgumentError
            If there are fewer batches than the schedule has, its rule is another, a loss is no
            tensor of one element with gradients, steps are compiled, parameters have hooks,
            norms are of the batch, or grad mode is off. By a plan over slices, if there is no
            stash.
        PlanError, PlacementError
            As `step`; and if what does not learn was changed meanwhile, by a plan over slices.
        """
        if self._has_all:
            self._follow()
        self.programs.check_stream(schedule, stash)
        check_modules_of_stream(self.programs.submodule(part) for part in self.programs.parts)
        self._last = self.form, False
        losses = StreamedLosses(parts := {*self.programs.output_parts}, on_loss)

        def begun(inputs: Inputs, targets: Any) -> tuple[Mapping[str, Any], Callable[[int], Score]]:
            tensors = self.programs.tensors_of(inputs)
            sizes = (self.programs.batch_size_of(tensors),)
            (values,) = self.divided(tensors, sizes)
            return values, partial(self.programs.score, targets, loss_fn, sizes)

        source = StreamedBatches(batches, schedule.micro_batches, begun, len(parts))
        with self.copies_in_flight():
            self.runtime.stream(schedule, source.values(), source.score, update, losses.tell, stash)
        return losses.losses

    @contextmanager
    def copies_in_flight(self) -> Iterator[None]:
        """Where a stream takes copies, and what belongs to the part in them, apart.

        Raises
        ------
        PlacementError
            At its end, if what does not learn was changed meanwhile.
        """
        if len(self.programs.shares) == 1:
            yield
            return
        try:
            yield
        except BaseException:
            for parameter in self.parameters():  # some may be of a batch that others have not ended
                parameter.grad = None
            raise
        finally:
            self._state.join()
        self.copies.check_fixed()

    def divided(
        self,
        inputs: Sequence[torch.Tensor | None],
        sizes: Sequence[int],
        part: int | None = None,
    ) -> list[dict[str, Any]]:
        """The values of placeholders for each micro-batch, of the tensors among the inputs.

        For a part alone, inputs may be of the samples that it needs, or reads, and None where it
        reads none.
        """
        if _gradients_wanted(inputs):
            raise PlacementError(
                "an input requires a gradient, which a step does not compute: accepted are steps "
                "without, and calling the placement"
            )
        return self.batches(inputs, sizes, part)

    def batches(
        self,
        inputs: Sequence[torch.Tensor | None],
        sizes: Sequence[int],
        part: int | None = None,
    ) -> list[dict[str, Any]]:
        """The same, where inputs may require gradients."""
        self.check_alike(sizes)
        self._check_pass(inputs)
        return self.programs.divided(inputs, sizes, part)

    @property
    def runtime(self) -> LocalRuntime:
        """Ran all parts in this process; its `last` says what travelled, and who waited."""
        placed = self.placed
        if placed not in self._runtimes:
            self._runtimes[placed] = LocalRuntime(placed, self._crew)
        return self._runtimes[placed]

    @property
    def placed(self) -> Placed:
        """What a runtime needs to know of the parts here, in the present form."""
        if self._last not in self._placed:
            form, input_gradients = self._last
            programs = self._forms[form]
            if input_gradients:
                programs = with_input_gradients(programs)
            copies = self.shared_state if len(programs.shares) > 1 else None
            facts = self.devices, programs.parts, programs.output_parts, copies
            self._placed[self._last] = Placed(self.k, *facts)
        return self._placed[self._last]

    @property
    def copies(self) -> Copies:
        """What parts have of each other's state in the present form, where all parts are here."""
        return self.shared_state(self._crew.gather)

    @property
    def shares_state(self) -> bool:
        """Whether it is known what parts have of each other's state in the present form."""
        return self.form in self._copies

    def shared_state(self, gather: Gather) -> Copies:
        """What parts have of each other's state in the present form.

        The first time all processes ask for it, and gather what each of them holds.
        """
        if self.form not in self._copies:
            here = {part: self.holding(part) for part in self._held}
            self._copies[self.form] = self._copies_of(ChainMap(*gather(here)))
        return self._copies[self.form]

    def let_weights_travel(self) -> None:
        """Let the next pass begin with weights that go to copies, as behind an update.

        A pass where no weight has changed since the last one, and gradients are added up, begins
        without: there are fewer bytes than tables say of a step.
        """
        for copies in self._copies.values():
            copies.alike = False
            copies.forget_weights()

    def holding(self, part: int) -> Holding:
        """What a part holds of the model's state in the present form: its own, and copies."""
        return self._state.holding(self.programs, part)

    def _copies_of(self, holdings: Mapping[int, Holding]) -> Copies:
        blueprint = self.programs.blueprint
        layers = buckets_of(blueprint.graph, blueprint.parameter_shapes, blueprint.trainable)
        every = dict.fromkeys(
            (held.name for one in holdings.values() for held in one.copies.values()), "state"
        )
        traced = blueprint.traced
        passing = {*layers, *(traced.buffers[name] for name in traced.updated)}
        fixed = {name: state for name, state in every.items() if name not in passing}
        beside = {name: state for name, state in every.items() if name not in layers}
        return Copies(
            self._state.tensor,
            self._held,
            weights=exchanges(holdings, layers),
            fixed=exchanges(holdings, fixed),
            beside=exchanges(holdings, beside),
            state=exchanges(holdings, every),
            steps=self._state.copies_of_steps(self.programs),
            training=self.form.training,
            every=self._copies,
        )

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the steps of the present form with torch.compile, whose arguments these are."""
        for program in self.programs.parts.values():
            for step in program.module.children():
                if isinstance(step, fx.GraphModule):
                    step.compile(*args, **kwargs)

    def train(self, mode: bool = True) -> Placement:
        """Switch to training or evaluation, as the model itself does.

        Back in the mode that it was placed in, each module is in the mode that it had then: a norm
        that was in evaluation in a model in training stays so, where the model's own `train` would
        have it train. In the other mode all modules are. The mode of a module that was set since,
        as `placed.norm.eval()`, is over, as it is in the model.
        """
        before = modes_of(self._skeleton[0])
        try:
            self._skeleton[0].train(mode)
            if mode in self._modes:
                set_modes(self._skeleton[0], self._modes[mode])
            self._switch(mode)
        except BaseException:
            set_modes(self._skeleton[0], before)
            raise
        self.parts.train(mode)
        return self

    def _follow(self) -> None:
        """Switch to what the model's modules have been set to since, if they were."""
        if self._are_set_anew():
            self._switch(self.training)

    def _are_set_anew(self) -> bool:
        """Whether the model's modules have other settings than those of the present form."""
        if not self.set_since.are_others:
            return False
        if self._known_settings.get(outline_of(self._skeleton[0])) != self.form.settings:
            return True
        self._note_settings()
        return False

    def _note_settings(self) -> None:
        self._hooked = (*self._hooked_then, *hooked(self._skeleton[0]))
        self.set_since.note()

    def _switch(self, training: bool) -> None:
        """Switch to a mode, and the settings, that the model's modules are in."""
        known, outline = self._known_settings, outline_of(self._skeleton[0])
        settings = known.setdefault(outline, len(known))
        form = self._form_for(self.form._replace(training=training, settings=settings))
        self.training = training
        self._note_settings()
        self._switched(form)

    def for_inputs(self, inputs: Inputs) -> Placement:
        """Switch to inputs of the sizes of these, as `train` switches to a mode.

        The same parts have the same filters and parameters; what they send, `programs` and `report`
        are then of these sizes. The first time in a mode the model is traced once more. To call the
        placement or its `step` is to switch; a `stream` goes on with the present sizes, and so do
        processes, where `DistributedModel.for_inputs` switches.

        Parameters
        ----------
        inputs : tensor, sequence or mapping
            As `step` takes them; on the meta device, too.

        Raises
        ------
        ArgumentError
            As where the placement is called.
        PlacementError
            If the model does not take inputs of these sizes, or not with the same layers, channels
            and parameters. If this process does not hold all parts: others would not switch.

        >>> import hgpart
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3))
        >>> placed = hgpart.place(model, k=2, example=torch.zeros(2, 3, 8, 8))
        >>> before = placed.programs.expected(32).volume
        >>> placed.for_inputs(torch.zeros(2, 3, 16, 16)).programs.expected(32).volume > before
        True
        """
        self._check_has_all("for_inputs")
        self._follow()
        tensors = self.programs.tensors_of(inputs)
        return self.for_sizes(sizes_of_inputs(tensors), self.programs.arguments.batch_size(tensors))

    def _for_call(self, tensors: Sequence[torch.Tensor], call: str) -> None:
        """Switch to the sizes of what it is called with, if it can compute with that."""
        self._check_has_all(call)
        self._follow()
        self.programs.check_types(tensors)
        self.for_sizes(sizes_of_inputs(tensors), self.programs.batch_size_of(tensors))

    def for_sizes(self, sizes: Sizes, batch_size: int | None = None) -> Placement:
        """The same of the sizes themselves, which all processes switch to together.

        Without a batch size, for batches as at present.
        """
        batch_size = self.form.batch_size if batch_size is None else batch_size
        check_whole("batch size", batch_size)
        if sizes == self.form.sizes and self.takes(batch_size):
            return self
        asked = self.form._replace(sizes=sizes, batch_size=batch_size)
        return self._switched(self._form_for(asked))

    def for_batch(self, batch_size: int) -> Placement:
        """Switch to what the model does with a batch of so many samples, of the present sizes.

        Most models do the same with every batch. Others are traced anew for a batch with which
        they may do something else than they did before, as for inputs of other sizes.

        Raises
        ------
        ArgumentError
            If there is no sample.
        PlacementError
            As in `for_inputs`.
        """
        return self.for_sizes(self.form.sizes, batch_size)

    def takes(self, batch_size: int) -> bool:
        """Whether the model does with a batch of so many samples what it does in the present form.

        False where that is not known, as of a batch of one: `for_batch` finds it out.
        """
        asked = self.form._replace(batch_size=batch_size)
        sizes = self.programs.blueprint.traced.batch_sizes
        return batch_size in sizes or self._alike.get(asked) == self.form

    def _switched(self, form: Form) -> Placement:
        self.form, self._last = form, (form, False)
        self._show()
        return self

    def _form_for(self, asked: Form) -> Form:
        """The form that a batch is computed in, whose programs are made if there are none."""
        for form, programs in self._forms.items():
            sizes = programs.blueprint.traced.batch_sizes
            if form.is_but_for_batch(asked) and asked.batch_size in sizes:
                return form
        self._make(asked)
        return self._alike.get(asked, asked)

    def _make(self, form: Form) -> None:
        """Make programs of a form, if there are none; the model's modules are as they are in it."""
        if form in self._forms or form in self._alike:
            return
        first = base = self.placed_for
        as_first = form._replace(sizes=first.sizes, batch_size=first.batch_size)
        if form != as_first:
            base = as_first
            self._make(base)
            if form.batch_size == 1:  # which does for no other batch
                self._make(form._replace(batch_size=first.batch_size))
        with torch.inference_mode(False):  # a call may come here in whatever mode
            before = self._forms[base].blueprint
            try:
                traced = retraced(self._skeleton[0], before.traced, form, self.dtype)
            except PlacementError:
                before.check_norms(form.batch_size)  # which says more
                raise
            for known, programs in self._forms.items():
                if known.is_but_for_batch(form) and does_the_same(
                    programs.blueprint.traced, traced
                ):
                    self._alike[form] = known
                    return
            made, new = self._in_form(form, traced, self._forms[base])
            state = self._state.gathered(new)
            self._let_go(new)
            beside = self._state.parameters_beside(made)
            self._forms[form] = with_unused(made, self._state.original, beside)
            for programs in self._forms.values():
                self._state.fill(programs, self.devices, state)

    def _in_form(
        self, form: Form, traced: TracedModel, base: Programs
    ) -> tuple[Programs, set[str]]:
        """What the parts do in another form, and the buffers that more of them hold for it."""
        made = programs_of(traced, base, self._held)
        new = {
            held.name
            for part, slices in made.slices.items()
            for name, held in slices.items()
            if name not in made.copies[part]
            and held.name not in traced.constants
            and not self._state.holds(part, held)
        }
        original = self._state.original
        changing = {*original, *(traced.buffers[name] for name in traced.updated)}
        fixed = {name for name, one in original.items() if one.parameter}
        for facts in (base.blueprint.facts, made.blueprint.facts):
            fixed |= {facts.traced.buffers[node.name] for node in facts.carried}
        if divided := new & (fixed if self._has_all else changing):
            before = base.blueprint.traced
            accepted = before.form.said_beside(form)
            if form.is_but_for_batch(before.form):
                accepted = f"batches of {before.batch_sizes}"
            raise PlacementError(
                f"{min(divided)} is divided in another way in "
                f"{'training' if form.training else 'evaluation'} with inputs of "
                f"{form.said_beside(before.form)}: accepted are {accepted}, or a model that is "
                "placed with an example of that"
            )
        return made, new

    def _let_go(self, names: set[str]) -> None:
        """Forget copies that part 0 held because other forms had no use for them."""
        for form, programs in self._forms.items():
            kept = {}
            for attribute, held in programs.slices.get(0, {}).items():
                if attribute.startswith(f"{UNUSED}.") and held.name in names:
                    self._state.forget(0, held)
                else:
                    kept[attribute] = held
            if kept:
                self._forms[form] = replace(programs, slices={**programs.slices, 0: kept})

    @property
    def _has_all(self) -> bool:
        return len(self._held) == self.k

    def _check_has_all(self, method: str) -> None:
        """Raise a PlacementError, which names the method that processes have for it, if not so."""
        if not self._has_all:
            raise PlacementError(
                f"this process holds {len(self._held)} of {self.k} parts only: accepted is "
                f"DistributedModel.{method}, in all processes"
            )

    def _show(self) -> None:
        """Make the submodules of the present form those of the module."""
        for part, program in self.programs.parts.items():
            self.parts[str(part)] = program.module

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Placement:
        """Move all parts, of all forms; what moves is `fn`'s to say, as in `.double()`."""
        devices = tuple(fn(torch.empty(0, device=device)).device for device in self.devices)
        dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        if dtype != self.dtype and self.programs.blueprint.has_complex:
            raise PlacementError(
                f"a placement of {self.programs.arguments.model}, which computes with complex "
                f"numbers, in {dtype}: accepted is {self.dtype}, or to place the model in {dtype}"
            )
        for programs in self._forms.values():
            for program in programs.parts.values():
                program.module._apply(fn)  # type: ignore[no-untyped-call]
            self._state.follow(programs)
        if dtype != self.dtype:
            for form, programs in self._forms.items():
                self._forms[form] = in_dtype(programs, dtype)
        self.devices, self._crew = devices, Crew(devices)
        self._placed.clear()
        self._runtimes.clear()
        for copies in self._copies.values():
            copies.moved = True
        self._copies.clear()
        for programs in self._forms.values():
            self._state.fill(programs, devices, {})
        self._show()
        return self

    # -------------------------------------------------------------- the model's modules

    def slices_of(self, name: str) -> list[torch.Tensor]:
        """What parts hold of a tensor of the model's state, by its name there."""
        known = self._state.original.get(name)
        return [] if known is None else self._state.slices_of(known.held_as)

    def divided_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Those parameters that are not all of a parameter of the model, whose names they have."""
        for part in self.programs.parts:
            for held, tensor in self.held(part):
                if isinstance(tensor, nn.Parameter) and not held.is_whole:
                    yield held.name, tensor

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """The model's own modules; see `named_modules`."""
        for name, module in listed_children(self, self._skeleton[0], "").items():
            if module is not None:
                yield name, module

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """The placement and the model's own modules, by the names that they have in the model.

        Modes, attributes, what is within these, and hooks have the effect that they have on the
        model, whose next pass traces it once more: norms in evaluation, a dropout's rate.
        Hooks are called in the trace, not in each pass: those that return nothing are refused.
        `parameters()` of a module are what parts hold of it. Its tensors as a whole are nowhere:
        reading or replacing one is a PlacementError.

        >>> import hgpart
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> placed = hgpart.place(model, k=2, example=torch.zeros(2, 3, 8, 8))
        >>> [name for name, module in placed.named_modules() if isinstance(module, nn.BatchNorm2d)]
        ['1']
        >>> sum(one.numel() for one in placed.get_submodule("1").parameters())
        16
        """
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        own = vars(self._skeleton[0])
        if own["_parameters"] or own["_buffers"] or not own["_modules"]:
            whole = listed(self, self._skeleton[0], "")  # which has what no module in it has
            yield from whole.named_modules(memo, prefix, remove_duplicate)
            return
        for name, module in self.named_children():
            path = f"{prefix}.{name}" if prefix else name
            yield from module.named_modules(memo, path, remove_duplicate)

    def _named_members(
        self,
        get_members_fn: Callable[..., Any],
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Any]]:
        """The parameters and buffers of parts, by the parts' names."""
        if recurse:
            prefix = f"{prefix}.parts" if prefix else "parts"
            yield from self.parts._named_members(
                get_members_fn, prefix=prefix, remove_duplicate=remove_duplicate
            )

    def __getattr__(self, name: str) -> Any:
        """A module of the model's, or an attribute of the model itself."""
        skeleton = self.__dict__.get("_skeleton")
        if skeleton is None or name in self._modules:
            return super().__getattr__(name)
        own = vars(skeleton[0])
        if name in own and name not in NO_STATE:
            return self.set_since.lend(own[name])
        if is_registered(own, name):
            return getattr(listed(self, skeleton[0], ""), name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute: of the model, if that has it."""
        parts = self.__dict__.get("_modules", {}).get("parts")
        if parts is None or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
            return
        own = vars(self._skeleton[0])
        check_assigned(own, "", name, value)
        if name in own and name not in NO_STATE:
            setattr(self._skeleton[0], name, value)
            self.set_since.were_set()
        else:
            super().__setattr__(name, value)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Refuse another module than the model's own, of which there is no trace."""
        if "parts" not in self._modules:
            super().add_module(name, module)
        else:
            listed(self, self._skeleton[0], "").add_module(name, module)

    # -------------------------------------------------------------- as it is shown, and copied

    @property
    def original(self) -> nn.Module:
        """The model that it was made of, without weights: its modules, their kinds and names.

        What is set there has the effect that it has on `modules()`, and each pass looks for it.
        """
        self.set_since.lend_modules(self._skeleton[0])
        return self._skeleton[0]

    def original_parameters(self, part: int) -> Iterator[tuple[str, nn.Parameter]]:
        """A part's parameters, each with the name of what it is a slice of in the model.

        A name comes several times where the part has several slices of it, and with other parts
        where these have the rest. See `held` for which elements they are.

        >>> import hgpart
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> placed = hgpart.place(model, k=2, example=torch.zeros(2, 3, 8, 8))
        >>> sorted({name for name, _ in placed.original_parameters(0)})
        ['0.bias', '0.weight', '1.bias', '1.weight']
        """
        for held, tensor in self.held(part):
            if isinstance(tensor, nn.Parameter):
                yield held.name, tensor

    def __repr__(self) -> str:
        """Short: the parts' code is `print(placement.programs.submodule(0).code)`."""
        return (
            f"Placement({type(self._skeleton[0]).__name__} in {self.k} parts on "
            f"{', '.join(map(str, dict.fromkeys(self.devices)))}, "
            f"{'training' if self.training else 'evaluation'}, "
            f"inputs of {said_of(self.form.sizes)})"
        )

    def summary(self) -> Summary:
        """What each part has of the work, and sends; `report` counts in the submodules.

        For inputs of other sizes than it was placed for, or a batch with which the model does
        something else, without the work, which is not of these.
        """
        partition = self.programs.partition
        found = partition.summary().with_column("device", self.devices)
        (line,) = found.lines
        if not self.is_as_placed:
            found = found.without_column("work %")
            now, first = self.form, self.placed_for
            line = (
                f"{self.k} parts, inputs of {now.said_beside(first)} (placed for "
                f"{first.said_beside(now)}): {partition.evaluation.volume / MB:,.4g} MB between "
                f"them for a batch of {partition.modelling.batch_size}"
            )
        return replace(found, lines=(f"{type(self._skeleton[0]).__name__} in {line}",))

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def plot(self, path: Path | str | None = None) -> str:
        """The page of it, which is written to a file if there is a path; see `hgpart.plot`."""
        from hgpart import plot

        return plot(self, path)

    def __deepcopy__(self, memo: dict[int, Any]) -> Placement:
        """As any module is copied."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        warn_of_optimizers(copied)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled: programs of parts are code, which `place` makes anew."""
        raise PlacementError(
            "a placement can't be pickled: accepted are its state, torch.save(placed.state_dict(), "
            "path), and its plan, result.save(path), which hgpart.place places again"
        )

    # -------------------------------------------------------------- state

    def held(self, part: int) -> Iterator[tuple[Slice, torch.Tensor]]:
        """What a part holds of the model's state, in whatever mode: each tensor once."""
        return self._state.of(part)

    def check_coverage(self, slices: Iterable[Slice]) -> None:
        """Raise a PlacementError unless these, of all parts, have each parameter's elements once.

        Of parts that are all in this process that is known when the model is placed.
        """
        self._state.check_coverage(slices)

    def state_dict(  # type: ignore[override]
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """The model's own state_dict, on the CPU: its names and shapes, each element once.

        Raises
        ------
        PlacementError
            If this process does not hold all parts.
        """
        self._check_has_all("gathered_state_dict")
        found = OrderedDict() if destination is None else destination
        held = chain.from_iterable(map(self.held, range(self.k)))
        found.update((prefix + name, one) for name, one in self.whole_state(held).items())
        return found

    def whole_state(self, held: Iterable[tuple[Slice, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The model's own state_dict, of what all parts hold; see `held`."""
        full = assembled(held)
        return {name: full[one.held_as] for name, one in self._state.original.items()}

    def load_state_dict(  # type: ignore[override]  # tensors are always copied, never assigned
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load the model's own state_dict; each part takes its slices.

        Raises
        ------
        PlacementError
            If names are missing or unknown (unless not `strict`), a value is no tensor or of
            another shape, or an index is that the parts do not fit.
        """
        if not isinstance(state_dict, Mapping):
            raise PlacementError(
                f"the state is a {type(state_dict).__name__}, expected tensors by name"
            )
        original = self._state.original
        missing, unknown = compared_names(state_dict, original, strict)
        here = self._state.names
        bare = self._skeleton[0].state_dict(keep_vars=True)
        values = {name: value for name, value in bare.items() if not value.is_meta}
        for name, one in original.items():
            if name not in state_dict or (one.held_as not in here and name not in values):
                continue
            value = state_dict[name]
            if not isinstance(value, torch.Tensor):
                raise PlacementError(f"{name} is a {type(value).__name__}, expected a tensor")
            if tuple(value.shape) != one.shape:
                raise PlacementError(f"{name} has shape {tuple(value.shape)}, expected {one.shape}")
        for programs in self._forms.values():
            check_values(programs.blueprint.traced, programs.blueprint.graph, state_dict)
        with torch.no_grad():
            for name in values.keys() & state_dict.keys():  # which the other mode is traced with
                values[name].copy_(state_dict[name])
            self._state.load(state_dict)
        self.let_weights_travel()
        return torch.nn.modules.module._IncompatibleKeys(missing, unknown)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load as part of a module that the placement is in: torch calls this, then the parts."""
        own = {name.removeprefix(prefix): state_dict.pop(name) for name in list(state_dict)}
        try:
            found = self.load_state_dict(own, strict=False)
        except PlacementError as error:
            error_msgs.append(str(error))
        else:
            missing_keys += (prefix + name for name in found.missing_keys)
            unexpected_keys += (prefix + name for name in found.unexpected_keys)
        # The parts are filled now: let torch find there what they hold.
        self.parts.state_dict(destination=state_dict, prefix=f"{prefix}parts.", keep_vars=True)

    def load_checkpoint(self, path: Path | str) -> None:
        """Load a safetensors or torch file of the model's state_dict.

        Only tensors that a part of this process has elements of are read. A prefix of all names, as
        ``module.``, is left out; the state_dict may be an entry of a dict, as ``"state_dict"``.

        Raises
        ------
        CheckpointError
            If the file can't be read.
        PlacementError
            If it is of another model.
        """
        with opened_weights(path, self._state.original) as state:
            self.load_state_dict(state)


def _gradients_wanted(inputs: Sequence[torch.Tensor | None]) -> bool:
    """Whether gradients of inputs are to be computed."""
    return torch.is_grad_enabled() and any(one.requires_grad for one in inputs if one is not None)
