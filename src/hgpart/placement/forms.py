"""A model's modes, sizes of inputs and batches -> its programs in each of these forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch

from hgpart.errors import PlacementError, check_whole
from hgpart.placement.as_module.parts import Parts
from hgpart.placement.as_module.settings import Settings
from hgpart.placement.building.blueprint import UNUSED
from hgpart.placement.held_state import HeldState
from hgpart.placement.mode_programs import in_dtype, in_turns, never_used, with_unused
from hgpart.placement.other_forms import does_the_same, programs_of, retraced
from hgpart.placement.programs import Programs
from hgpart.tracing.forms import Form, Sizes
from hgpart.tracing.traced_model import TracedModel


class Forms:
    """Programs for each form of a model: its mode and settings, sizes of inputs and batches.

    The programs of a form are made on the first switch to it: the model, which has no weights, is
    traced again, and each layer is computed by the part that has it in the first form. All forms
    share the same tensors.

    Parameters
    ----------
    settings : Settings
        Settings of the model's modules in the first form.
    programs : Programs
        Programs of the first form.
    state : HeldState
        State without tensors.
    tensors : mapping of str to Tensor
        Parameters and buffers of the model.
    devices : sequence of torch.device
        Device of each part.

    Attributes
    ----------
    parts : Parts
        Submodules of the present form.
    """

    def __init__(
        self,
        settings: Settings,
        programs: Programs,
        state: HeldState,
        tensors: Mapping[str, torch.Tensor],
        devices: Sequence[torch.device],
    ) -> None:
        self._settings, self._state = settings, state
        self.first = self.present = programs.blueprint.traced.form
        self.devices = tuple(devices)
        unused = never_used(programs, state.original)
        self._programs = {self.first: with_unused(programs, state.original, unused)}
        self._turns: dict[Form, tuple[Programs, ...]] = {}
        # Forms in which a model does the same as in another form.
        self._alike: dict[Form, Form] = {}
        state.fill(self.programs, self.devices, tensors)
        self.parts = Parts()
        self._switch_to(self.first)

    @property
    def programs(self) -> Programs:
        """Programs of the present form."""
        return self._programs[self.present]

    @property
    def every(self) -> Iterable[Programs]:
        """Programs of all forms that were switched to, and of their turns."""
        return chain(self._programs.values(), *self._turns.values())

    @property
    def turns(self) -> tuple[Programs, ...]:
        """Programs of the present form for each slice of the batch alone; see `in_turns`."""
        if self.present not in self._turns:
            turns = in_turns(self.programs)
            for programs in turns:
                self._state.fill(programs, self.devices, {})
            self._turns[self.present] = turns
        return self._turns[self.present]

    @property
    def is_as_placed(self) -> bool:
        """Whether inputs and batch have the sizes of the first form."""
        first = self.first
        return (self.present.sizes, self.present.batch_size) == (first.sizes, first.batch_size)

    @property
    def has_layers_as_placed(self) -> bool:
        """Whether inputs have the sizes of the first form, and layers its work, whatever the batch.

        A graph of one sample may be another one, of the same layers: a class token needs no copies.
        """
        present, first = (
            [(layer.kind, layer.tasks, layer.macs) for layer in programs.blueprint.graph.layers]
            for programs in (self.programs, self._programs[self.first])
        )
        return self.present.sizes == self.first.sizes and present == first

    def train(self, training: bool) -> None:
        """Switch to training or evaluation, like the model itself; see `Settings.in_mode`."""
        with self._settings.in_mode(training):
            self._switch(training)

    def follow(self, training: bool) -> None:
        """Switch to the settings that the model's modules have now, if they were changed."""
        if self.are_set_anew:
            self._switch(training)

    @property
    def are_set_anew(self) -> bool:
        """Whether the model's modules have other settings than the present form."""
        return self._settings.differ_from(self.present.settings)

    def _switch(self, training: bool) -> None:
        """Switch to a mode and the settings that the model's modules are in."""
        settings = self._settings.number()
        form = self._form_for(self.present._replace(training=training, settings=settings))
        self._settings.note()
        self._switch_to(form)

    def for_sizes(self, sizes: Sizes, batch_size: int | None = None) -> None:
        """Switch to sizes of inputs and of the batch. Default: the present batch size.

        All processes switch together.
        """
        batch_size = self.present.batch_size if batch_size is None else batch_size
        check_whole("batch size", batch_size)
        if sizes != self.present.sizes or not self.takes(batch_size):
            asked = self.present._replace(sizes=sizes, batch_size=batch_size)
            self._switch_to(self._form_for(asked))

    def _switch_to(self, form: Form) -> None:
        self.present = form
        self._show()

    def _show(self) -> None:
        """Make the submodules of the present form those of the placement."""
        for part, program in self.programs.parts.items():
            self.parts[str(part)] = program.module

    def takes(self, batch_size: int) -> bool:
        """Whether the model is known to do the same with this batch size as in the present form.

        For some batch sizes, such as 1, it is not known before `for_sizes`.
        """
        asked = self.present._replace(batch_size=batch_size)
        sizes = self.programs.blueprint.traced.batch_sizes
        return batch_size in sizes or self._alike.get(asked) == self.present

    def _form_for(self, asked: Form) -> Form:
        """The form in which a batch is computed; its programs are made if there are none."""
        for form, programs in self._programs.items():
            sizes = programs.blueprint.traced.batch_sizes
            if form.is_but_for_batch(asked) and asked.batch_size in sizes:
                return form
        self._make(asked)
        return self._alike.get(asked, asked)

    def _make(self, form: Form) -> None:
        """Make programs of a form, if there are none; the model's modules must be in that form."""
        if form in self._programs or form in self._alike:
            return
        first = base = self.first
        as_first = form._replace(sizes=first.sizes, batch_size=first.batch_size)
        if form != as_first:
            base = as_first
            self._make(base)
            if form.batch_size == 1:  # whose programs serve no other batch
                self._make(form._replace(batch_size=first.batch_size))
        with torch.inference_mode(False):  # the caller may be in any mode
            before = self._programs[base].blueprint
            try:
                traced = retraced(self._settings.model, before.traced, form, self.programs.dtype)
            except PlacementError:
                before.check_norms(form.batch_size)  # whose message says more
                raise
            for known, programs in self._programs.items():
                if known.is_but_for_batch(form) and does_the_same(
                    programs.blueprint.traced, traced
                ):
                    self._alike[form] = known
                    return
            made, new = self._in_form(form, traced, self._programs[base])
            state = self._state.gathered(new)
            self._let_go(new)
            beside = self._state.parameters_beside(made)
            self._programs[form] = with_unused(made, self._state.original, beside)
            for programs in self._programs.values():
                self._state.fill(programs, self.devices, state)

    def _in_form(
        self, form: Form, traced: TracedModel, base: Programs
    ) -> tuple[Programs, set[str]]:
        """Programs of another form, and the buffers that more parts hold because of it."""
        programs = programs_of(traced, base, tuple(base.parts))
        if form.sizes == base.blueprint.traced.form.sizes:
            _check_rows(base, programs, form)
        new = {
            held.name
            for part, slices in programs.slices.items()
            for name, held in slices.items()
            if name not in programs.copies[part]
            and held.name not in traced.constants
            and not self._state.holds(part, held)
        }
        original = self._state.original
        changing = {*original, *(traced.buffers[name] for name in traced.updated)}
        fixed = {name for name, entry in original.items() if entry.parameter}
        for facts in (base.blueprint.facts, programs.blueprint.facts):
            fixed |= {facts.traced.buffers[node.name] for node in facts.carried}
        if divided := new & (fixed if base.has_all_parts else changing):
            before = base.blueprint.traced
            accepted = before.form.said_beside(form)
            if form.is_but_for_batch(before.form):
                accepted = f"batches of {before.batch_sizes}"
            raise PlacementError(
                f"{min(divided)} is divided in another way in "
                f"{'training' if form.training else 'evaluation'} with inputs of "
                f"{form.said_beside(before.form)}: accepted are {accepted}, or placing the "
                "model with such an example"
            )
        return programs, new

    def _let_go(self, names: set[str]) -> None:
        """Forget copies that part 0 held only because other forms did not use them."""
        for form, programs in self._programs.items():
            kept = {}
            for attribute, held in programs.slices.get(0, {}).items():
                if attribute.startswith(f"{UNUSED}.") and held.name in names:
                    self._state.forget(0, held)
                else:
                    kept[attribute] = held
            if kept:
                self._programs[form] = replace(programs, slices={**programs.slices, 0: kept})

    def move(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Move the parts in all forms with `fn`, which says what moves where, as in `.double()`.

        Raises
        ------
        PlacementError
            If the model computes with complex numbers, and these would change their type.
        """
        devices = tuple(fn(torch.empty(0, device=device)).device for device in self.devices)
        before = self.programs.dtype
        dtype = fn(torch.empty(0, dtype=before)).dtype
        if dtype != before and self.programs.blueprint.has_complex:
            raise PlacementError(
                f"a placement of {self.programs.arguments.model}, which computes with complex "
                f"numbers, in {dtype}: accepted is {before}, or to place the model in {dtype}"
            )
        for programs in self.every:
            for program in programs.parts.values():
                program.module._apply(fn)  # type: ignore[no-untyped-call]
            self._state.follow(programs)
        if dtype != before:
            for form, programs in self._programs.items():
                self._programs[form] = in_dtype(programs, dtype)
            self._turns.clear()  # they are made anew, of the tensors that have just been cast
        self.devices = devices
        for programs in self.every:
            self._state.fill(programs, devices, {})
        self._show()


def _check_rows(base: Programs, programs: Programs, form: Form) -> None:
    """Raise a PlacementError if a layer has another number of bands than where it was placed.

    A batch of one is traced by itself, and may hide where its samples lie.
    """
    if not base.blueprint.owners.tells_rows:
        return
    before, now = _bands(base), _bands(programs)
    for name, bands in before.items():
        if name in now and now[name] != bands:
            mode = "training" if form.training else "evaluation"
            raise PlacementError(
                f"{name} has {now[name]} bands of rows in {mode}, in a batch of "
                f"{form.batch_size}, and {bands} where the model was placed: accepted is a plan "
                "without bands, or placing it so"
            )


def _bands(programs: Programs) -> dict[str, int]:
    """The number of bands of each layer, by name."""
    layers, cuts = programs.blueprint.graph.layers, programs.blueprint.owners.row_cuts
    return {layer.name: len(own) - 1 for layer, own in zip(layers, cuts, strict=True)}
