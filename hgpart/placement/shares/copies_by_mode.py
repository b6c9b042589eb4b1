"""Passes in training and evaluation -> Copies that they begin with, and whether these are alike."""

from __future__ import annotations

import torch

from hgpart.placement.shares.copies import Copies


class CopiesByMode(dict[bool, Copies]):
    """What parts have of each other's state in either mode, and in which of them it is like that.

    Modes are those of `nn.Module.training`. All processes, which make the same passes, come to the
    same answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alike: set[bool] = set()  # modes whose copies are like what they are of
        self._begun: set[bool] = set()  # modes in which a pass has been run

    def due(self, mode: bool) -> bool:
        """Whether a pass that now begins has to begin with the whole state of copies.

        The first does; later ones that are in training with gradients begin with the weights.
        """
        learns = torch.is_grad_enabled()
        due = mode not in self._begun or (mode not in self._alike and not (learns and mode))
        self._begun.add(mode)
        if learns or mode:  # weights or statistics may change behind it
            self._alike.clear()
        else:
            self._alike.add(mode)
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
