"""Ids of elements: which channel each belongs to, kept expanded along what they do not depend on.

Ids that are equal along a dimension have stride 0 there, so they cost a number per channel, not
a number per element.
"""

from __future__ import annotations

import numpy as np
import torch

from hgpart.arrays import Int64

NO_CHANNEL = -1


def constant_along(ids: torch.Tensor, dim: int) -> bool:
    """Whether ids do not depend on a dimension."""
    if ids.shape[dim] <= 1 or ids.stride(dim) == 0:
        return True
    ids = core(ids)
    first, last = ids.narrow(dim, 0, 1), ids.narrow(dim, ids.shape[dim] - 1, 1)
    return torch.equal(first, last) and bool((ids == first).all())


def core(ids: torch.Tensor) -> torch.Tensor:
    """Cut expanded dimensions to size 1, so that only the distinct part is left."""
    for dim in range(ids.dim()):
        if ids.shape[dim] > 1 and ids.stride(dim) == 0:
            ids = ids.narrow(dim, 0, 1)
    return ids


def compact(ids: torch.Tensor) -> torch.Tensor:
    """Return equal ids, expanded along every dimension they don't depend on."""
    shape = ids.shape
    ids = core(ids)
    for dim in range(ids.dim()):
        if ids.shape[dim] > 1 and constant_along(ids, dim):
            ids = ids.narrow(dim, 0, 1)
    return ids.contiguous().expand(shape)


def distinct_in_order(values: Int64) -> tuple[Int64, Int64]:
    """Distinct values in order of first appearance, and how often each occurs.

    >>> distinct_in_order(np.array([7, 7, 3, 7]))
    (array([7, 3]), array([3, 1]))
    """
    distinct, first, counts = np.unique(values, return_index=True, return_counts=True)
    order = np.argsort(first)
    return distinct[order], counts[order]


def mix_all(ids: torch.Tensor) -> tuple[Int64, Int64]:
    """Channels that a task reads if it reads everything, and the features of each."""
    channels, sizes = distinct_in_order(core(ids).flatten().numpy().astype(np.int64))
    known = channels != NO_CHANNEL
    return channels[known], sizes[known]


def in_order(ids: torch.Tensor, axis: int) -> Int64 | None:
    """The channel at each place along a dimension; None if ids depend on others as well."""
    for dim in reversed(range(ids.dim())):
        if dim != axis and not constant_along(ids, dim):
            return None
        ids = ids if dim == axis else ids.select(dim, 0)
    return ids.numpy().astype(np.int64)
