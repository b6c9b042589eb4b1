"""What a model was traced in: its mode, the sizes of its inputs, and of its batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

Sizes = tuple[tuple[int, ...], ...]


class Form(NamedTuple):
    """What a traced graph is bound to.

    Attributes
    ----------
    training : bool
        The mode of the model.
    sizes : tuple of tuple of int
        Of each tensor among its inputs, the dimensions behind the first.
    batch_size : int
        Samples in the batch that was traced: the graph is for others with which the model does the
        same.
    settings : int
        Of those that its modules have been seen with, attributes and modes, which.
    """

    training: bool
    sizes: Sizes
    batch_size: int
    settings: int = 0

    def is_but_for_batch(self, other: Form) -> bool:
        """Whether it is another form, but perhaps for the batch."""
        return self._replace(batch_size=other.batch_size) == other

    def said_beside(self, other: Form) -> str:
        """Sizes of inputs as a message has them, and the batch where another form has another.

        >>> form = Form(True, ((3, 32, 32), ()), 8)
        >>> form.said_beside(form._replace(batch_size=1))
        '3x32x32, no dimensions in a batch of 8'
        >>> form.said_beside(form)
        '3x32x32, no dimensions'
        """
        batch = "" if self.batch_size == other.batch_size else f" in a batch of {self.batch_size}"
        return f"{said_of(self.sizes)}{batch}"


def sizes_of_inputs(tensors: Sequence[Tensor]) -> Sizes:
    """Of each tensor, the dimensions behind the first.

    >>> import torch
    >>> sizes_of_inputs([torch.zeros(2, 3, 32, 32), torch.zeros(2)])
    ((3, 32, 32), ())
    """
    return tuple(tuple(one.shape[1:]) for one in tensors)


def said_of(sizes: Sequence[tuple[int, ...]]) -> str:
    """Sizes as a message has them.

    >>> said_of(((3, 32, 32), (1, 8)))
    '3x32x32, 1x8'
    """
    return ", ".join("x".join(map(str, one)) or "no dimensions" for one in sizes)
