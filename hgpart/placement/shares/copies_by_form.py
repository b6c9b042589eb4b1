"""Passes in several forms -> Copies that they begin with, and whether these are alike."""

from __future__ import annotations

import torch

from hgpart.placement.shares.copies import Copies
from hgpart.tracing.forms import Form


class CopiesByForm(dict[Form, Copies]):
    """What parts have of each other's state in each form, and in which of them it is like that.

    All processes, which make the same passes, come to the same answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alike: set[Form] = set()  # forms whose copies are like what they are of
        self._begun: set[Form] = set()  # forms in which a pass has been run

    def due(self, form: Form) -> bool:
        """Whether a pass that now begins has to begin with the whole state of copies.

        The first does; later ones that are in training with gradients begin with the weights.
        """
        learns, training = torch.is_grad_enabled(), form.training
        due = form not in self._begun or (form not in self._alike and not (learns and training))
        self._begun.add(form)
        if learns or training:  # weights or statistics may change behind it
            self._alike.clear()
        else:
            self._alike.add(form)
        return due

    def changed(self) -> None:
        """Note that copies may not be like what they are of, as that was loaded."""
        self._alike.clear()

    def moved(self) -> None:
        """Forget them all, as the model has other tensors now."""
        for copies in self.values():
            copies.moved = True
        self.clear()
        self._alike.clear()
        self._begun.clear()
