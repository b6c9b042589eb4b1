"""The form that a model was traced in: its mode, the sizes of its inputs, and its batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

Sizes = tuple[tuple[int, ...], ...]


class Form(NamedTuple):
    """The form that a traced graph is bound to.

    Attributes
    ----------
    training : bool
        The mode of the model.
    sizes : tuple of tuple of int
        For each tensor among the inputs, its dimensions after the first.
    batch_size : int
        Samples in the batch that was traced. The graph also fits other batch sizes for which the
        model computes the same.
    settings : int
        Number of the settings, attributes and modes of the modules, among those seen so far.
    """

    training: bool
    sizes: Sizes
    batch_size: int
    settings: int = 0

    def is_but_for_batch(self, other: Form) -> bool:
        """Whether the forms are equal, or differ only in the batch size."""
        return self._replace(batch_size=other.batch_size) == other

    def said_beside(self, other: Form) -> str:
        """Sizes of inputs in the words of a message, with the batch size where it differs.

        >>> form = Form(True, ((3, 32, 32), ()), 8)
        >>> form.said_beside(form._replace(batch_size=1))
        '3x32x32, no dimensions in a batch of 8'
        >>> form.said_beside(form)
        '3x32x32, no dimensions'
        """
        batch = "" if self.batch_size == other.batch_size else f" in a batch of {self.batch_size}"
        return f"{said_of(self.sizes)}{batch}"


def sizes_of_inputs(tensors: Sequence[Tensor]) -> Sizes:
    """For each tensor, its dimensions after the first.

    >>> import torch
    >>> sizes_of_inputs([torch.zeros(2, 3, 32, 32), torch.zeros(2)])
    ((3, 32, 32), ())
    """
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors)


def said_of(sizes: Sequence[tuple[int, ...]]) -> str:
    """Sizes in the words of a message.

    >>> said_of(((3, 32, 32), (1, 8)))
    '3x32x32, 1x8'
    """
    return ", ".join("x".join(map(str, size)) or "no dimensions" for size in sizes)
