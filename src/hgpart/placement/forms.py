"""A model's modes, sizes of inputs and batches -> what its parts do in each of these forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from hgpart.errors import PlacementError, check_whole
from hgpart.placement.as_module.parts import Parts
from hgpart.placement.as_module.settings import Settings
from hgpart.placement.building.blueprint import UNUSED
from hgpart.placement.held_state import HeldState
from hgpart.placement.mode_programs import in_dtype, never_used, with_unused
from hgpart.placement.other_forms import does_the_same, programs_of, retraced
from hgpart.placement.programs import Programs
from hgpart.tracing.forms import Form, Sizes
from hgpart.tracing.traced_model import TracedModel


class Forms:
    """What parts do in each form of a model: its modes and settings, sizes of inputs and batches.

    The programs of a form are made when it is first switched to: the model, which has no weights,
    is traced once more, and each layer is computed by the part that has it in the first form. The
    tensors of all forms are the same.

    Parameters
    ----------
    settings : Settings
        Of the model's modules, as they are in the first form.
    programs : Programs
        Those of the first form.
    state : HeldState
        Has no tensors yet.
    tensors : mapping of str to Tensor
        The model's parameters and buffers.
    devices : sequence of torch.device
        One for each part.

    Attributes
    ----------
    first : Form
    present : Form
    parts : Parts
        The submodules of the present form.
    devices : tuple of torch.device
    input_gradients : bool
        Whether the last pass computes gradients of inputs, too; a switch sets it to False.
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
        self._alike: dict[Form, Form] = {}  # forms in which a model does what it does in another
        state.fill(self.programs, self.devices, tensors)
        self.parts = Parts()
        self._switch_to(self.first)

    @property
    def programs(self) -> Programs:
        """Those of the present form."""
        return self._programs[self.present]

    @property
    def every(self) -> Iterable[Programs]:
        """The programs of all forms that were switched to."""
        return self._programs.values()

    @property
    def is_as_placed(self) -> bool:
        """Whether inputs and batch are as those of the first form."""
        first = self.first
        return (self.present.sizes, self.present.batch_size) == (first.sizes, first.batch_size)

    def train(self, training: bool) -> None:
        """Switch to training or evaluation, as the model itself does; see `Settings.in_mode`."""
        with self._settings.in_mode(training):
            self._switch(training)

    def follow(self, training: bool) -> None:
        """Switch to what the model's modules, in a mode, have been set to since, if they were."""
        if self.are_set_anew:
            self._switch(training)

    @property
    def are_set_anew(self) -> bool:
        """Whether the model's modules have other settings than those of the present form."""
        return self._settings.are_others_than(self.present.settings)

    def _switch(self, training: bool) -> None:
        """Switch to a mode, and the settings, that the model's modules are in."""
        settings = self._settings.number()
        form = self._form_for(self.present._replace(training=training, settings=settings))
        self._settings.note()
        self._switch_to(form)

    def for_sizes(self, sizes: Sizes, batch_size: int | None = None) -> None:
        """Switch to sizes of inputs and of the batch; without that, for batches as at present.

        All processes switch together.
        """
        batch_size = self.present.batch_size if batch_size is None else batch_size
        check_whole("batch size", batch_size)
        if sizes != self.present.sizes or not self.takes(batch_size):
            asked = self.present._replace(sizes=sizes, batch_size=batch_size)
            self._switch_to(self._form_for(asked))

    def _switch_to(self, form: Form) -> None:
        self.present, self.input_gradients = form, False
        self._show()

    def _show(self) -> None:
        """Make the submodules of the present form those of the placement."""
        for part, program in self.programs.parts.items():
            self.parts[str(part)] = program.module

    def takes(self, batch_size: int) -> bool:
        """Whether the model does with a batch of so many samples what it does in the present form.

        False where that is not known, as of a batch of one: `for_sizes` finds it out.
        """
        asked = self.present._replace(batch_size=batch_size)
        sizes = self.programs.blueprint.traced.batch_sizes
        return batch_size in sizes or self._alike.get(asked) == self.present

    def _form_for(self, asked: Form) -> Form:
        """The form that a batch is computed in, whose programs are made if there are none."""
        for form, programs in self._programs.items():
            sizes = programs.blueprint.traced.batch_sizes
            if form.is_but_for_batch(asked) and asked.batch_size in sizes:
                return form
        self._make(asked)
        return self._alike.get(asked, asked)

    def _make(self, form: Form) -> None:
        """Make programs of a form, if there are none; the model's modules are as they are in it."""
        if form in self._programs or form in self._alike:
            return
        first = base = self.first
        as_first = form._replace(sizes=first.sizes, batch_size=first.batch_size)
        if form != as_first:
            base = as_first
            self._make(base)
            if form.batch_size == 1:  # which does for no other batch
                self._make(form._replace(batch_size=first.batch_size))
        with torch.inference_mode(False):  # a call may come here in whatever mode
            before = self._programs[base].blueprint
            try:
                traced = retraced(self._settings.model, before.traced, form, self.programs.dtype)
            except PlacementError:
                before.check_norms(form.batch_size)  # which says more
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
        """What the parts do in another form, and the buffers that more of them hold for it."""
        made = programs_of(traced, base, tuple(base.parts))
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
        if divided := new & (fixed if base.has_all_parts else changing):
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
        """Move the parts, in all forms; what moves is `fn`'s to say, as in `.double()`.

        Raises
        ------
        PlacementError
            If the model computes with complex numbers, and they would be of another type.
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
        self.devices = devices
        for programs in self.every:
            self._state.fill(programs, devices, {})
        self._show()
