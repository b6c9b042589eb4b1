"""Ids of results that a layer makes anew."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from hgpart.operators.ids import compact, constant_along, core


def numbered(
    start: int, channels: int, shape: Sequence[int], axis: int | None = 1, width: int = 1
) -> torch.Tensor:
    """Ids of a new result: its channels along `axis`, each at `width` places."""
    if channels == 1 or axis is None or len(shape) <= axis:
        return torch.full((), start, dtype=torch.int32).expand(tuple(shape))
    numbers = torch.arange(start, start + channels, dtype=torch.int32).repeat_interleave(width)
    view = [1] * len(shape)
    view[axis] = -1
    return numbers.reshape(view).expand(tuple(shape))


def shared_out(ids: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Ids of a further result of an operator whose first result has `ids`; None if unknown."""
    if len(shape) == ids.dim():
        reduced = [dim for dim in range(ids.dim()) if shape[dim] != ids.shape[dim]]
        if all(shape[dim] == 1 and constant_along(ids, dim) for dim in reduced):
            for dim in reduced:
                ids = ids.narrow(dim, 0, 1)
            return ids
    distinct = core(ids).flatten()  # a number per channel, such as its mean
    return distinct.reshape(shape) if len(distinct) == math.prod(shape) else None


def columns_of(ids: torch.Tensor) -> bytes:
    """A key that tells which features share an id, along the only dimension that ids vary along."""
    _, first, same = np.unique(
        core(compact(ids)).flatten().numpy(), return_index=True, return_inverse=True
    )
    return first[same].tobytes()
