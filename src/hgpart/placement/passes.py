"""The inputs of a pass -> the values that programs get, after checks that parts can compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hgpart.errors import PlacementError
from hgpart.placement.as_module.settings import Settings
from hgpart.placement.forms import Forms
from hgpart.placement.held_state import HeldState
from hgpart.placement.programs import Programs


class Passes:
    """The begin of passes in the present form: checks, and the values of their batch."""

    def __init__(self, forms: Forms, settings: Settings, state: HeldState) -> None:
        self._forms, self._settings, self._state = forms, settings, state

    def check_gradients(self) -> None:
        """Raise a PlacementError if gradients would not be those of the model."""
        lost = (*self._settings.hooked, *self._forms.programs.blueprint.traced.lost_gradients)
        if lost:
            raise PlacementError(
                f"the model's backward pass has something that a placement's lacks ({lost[0]}): "
                "accepted are passes without gradients, in evaluation under torch.no_grad()"
            )

    def check_batch(self, batch_size: int, inputs: Sequence[torch.Tensor | None]) -> None:
        """Check a pass before it begins; tensors that this process does not read may be None.

        Raises
        ------
        PlacementError
            If some state is not loaded yet, if the model's code fixed another batch size, or if an
            input has another type or another shape (apart from the batch) than was traced. If a
            norm has only one value per channel to take statistics of, or gradients are wanted that
            a placement does not have. In slices of the batch also if parameters have hooks, or were
            frozen when they were placed.
        """
        self.check_alike((batch_size,))
        self._check_pass(inputs)
        self._forms.programs.check_inputs(batch_size, inputs)

    def check_alike(self, sizes: Sequence[int], programs: Programs | None = None) -> None:
        """The checks of `check_batch` that all processes decide alike, for these micro-batches.

        They do not depend on the state and the inputs that a process has. Default: the programs of
        the present form.
        """
        self._forms.programs.check_micro_batches(len(sizes))
        self.check_samples(sizes, programs)
        if torch.is_grad_enabled() and self._forms.programs.blueprint.trainable:
            self.check_gradients()
        self._forms.programs.check_norms_of_batch(self._forms.devices)

    def _check_pass(self, inputs: Sequence[torch.Tensor | None]) -> None:
        """The checks of `check_batch` that depend on the process, except shapes of inputs."""
        if self._forms.are_set_anew:
            raise PlacementError(
                "modules were given other attributes, modes or hooks after the model was placed: "
                "accepted in a stream are changes before that"
            )
        self._state.check_filled()
        if gradients_wanted(inputs):
            self.check_gradients()
        if torch.is_grad_enabled() and self._forms.programs.has_copies:
            self._state.check_learning(self._forms.programs)

    def check_samples(self, sizes: Sequence[int], programs: Programs | None = None) -> None:
        """Raise a PlacementError if a batch can't be computed in micro-batches of some sizes.

        That is if the present form is not for this batch size, or if a micro-batch, or a share of
        it, has too few samples or too many.
        """
        if not self._forms.takes(batch_size := sum(sizes)):
            known = self._forms.programs.blueprint.traced.batch_sizes
            raise PlacementError(
                f"a batch of {batch_size}: accepted at present are {known}, with which the model "
                "does the same, and others by for_inputs"
            )
        for size in set(sizes):
            (programs or self._forms.programs).check_samples(size)

    def divided(
        self,
        inputs: Sequence[torch.Tensor | None],
        sizes: Sequence[int],
        part: int | None = None,
        programs: Programs | None = None,
    ) -> list[dict[str, Any]]:
        """Values of placeholders for each micro-batch, from the tensors among the inputs.

        For one part alone, inputs may have only the samples that it needs or reads, and be None if
        it reads none. Default: the programs of the present form.
        """
        if gradients_wanted(inputs):
            raise PlacementError(
                "an input requires a gradient, which a step does not compute: accepted are inputs "
                "that require none, or calling the placement"
            )
        return self.batches(inputs, sizes, part, programs)

    def batches(
        self,
        inputs: Sequence[torch.Tensor | None],
        sizes: Sequence[int],
        part: int | None = None,
        programs: Programs | None = None,
    ) -> list[dict[str, Any]]:
        """The same for inputs that may require gradients."""
        self.check_alike(sizes, programs)
        self._check_pass(inputs)
        return (programs or self._forms.programs).divided(inputs, sizes, part)


def gradients_wanted(inputs: Sequence[torch.Tensor | None]) -> bool:
    """Whether gradients of inputs are to be computed."""
    return torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in inputs if tensor is not None
    )
