"""What a model was traced in: its mode, and the sizes of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

Sizes = tuple[tuple[int, ...], ...]


class Form(NamedTuple):
    """What a traced graph is bound to, whatever the batch.

    Attributes
    ----------
    training : bool
        The mode of the model.
    sizes : tuple of tuple of int
        Of each tensor among its inputs, the dimensions behind the first.
    settings : int
        Of those that its modules have been seen with, attributes and modes, which.
    """

    training: bool
    sizes: Sizes
    settings: int = 0


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
