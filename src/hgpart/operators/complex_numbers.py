"""Operators that torch's own can't stand for where numbers are complex: the same in another form.

What is written into a slice is traced as an operator that has no gradient of complex numbers. A
conjugate is noted by torch, not computed: numbers that were one as the model was traced are what
they stand for where they come from another part.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_real(numbers: Tensor) -> Tensor:
    """`torch.view_as_real`, of conjugates too."""
    return torch.view_as_real(numbers.resolve_conj())


def slice_written(
    whole: Tensor,
    part: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """`torch.slice_scatter`, with a gradient.

    >>> slice_written(torch.zeros(3, dtype=torch.complex64), torch.ones(1), 0, 1, 2).real
    tensor([0., 1., 0.])
    """
    found = whole.clone()
    torch.ops.aten.slice(found, dim, start, end, step).copy_(part)
    return found


def position_written(whole: Tensor, part: Tensor, dim: int, index: int) -> Tensor:
    """`torch.select_scatter`, with a gradient."""
    found = whole.clone()
    found.select(dim, index).copy_(part)
    return found


def diagonal_written(
    whole: Tensor, part: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """`torch.diagonal_scatter`, with a gradient."""
    found = whole.clone()
    found.diagonal(offset, dim1, dim2).copy_(part)
    return found
