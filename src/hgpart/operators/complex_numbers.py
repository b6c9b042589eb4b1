"""Operators on complex numbers in a form that computes what torch's own cannot.

Writing into a slice is traced as an operator that has no gradient for complex numbers. A conjugate
is only noted by torch, not computed, and the note does not travel to another part.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_real(numbers: Tensor) -> Tensor:
    """`torch.view_as_real`, also of conjugates."""
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
    result = whole.clone()
    torch.ops.aten.slice(result, dim, start, end, step).copy_(part)
    return result


def position_written(whole: Tensor, part: Tensor, dim: int, index: int) -> Tensor:
    """`torch.select_scatter`, with a gradient."""
    result = whole.clone()
    result.select(dim, index).copy_(part)
    return result


def diagonal_written(
    whole: Tensor, part: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """`torch.diagonal_scatter`, with a gradient."""
    result = whole.clone()
    result.diagonal(offset, dim1, dim2).copy_(part)
    return result
