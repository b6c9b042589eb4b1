"""Ids of several operands at the same place: which ones meet, and which task owns an element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hgpart.arrays import Int64
from hgpart.operators.ids import NO_CHANNEL, constant_along, core, mix_all
from hgpart.sequences import distinct, equal_rows


def channel_axis(shape: Sequence[int], operands: Sequence[torch.Tensor]) -> int:
    """The dimension that most likely still counts channels in the result of a whole task."""
    for ids in operands:
        if tuple(ids.shape) == tuple(shape):
            for dim in range(1, ids.dim()):
                if not constant_along(ids, dim):
                    return dim
    return 1


def narrowed(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int]:
    """Cut dimensions along which all tensors are expanded, and count the places cut away."""
    cut = list(tensors)
    repeats = 1
    for dim in range(cut[0].dim()):
        if cut[0].shape[dim] != 1 and all(tensor.stride(dim) == 0 for tensor in cut):
            repeats *= cut[0].shape[dim]
            cut = [tensor.narrow(dim, 0, 1) for tensor in cut]
    return cut, repeats


def sets_at_places(
    ids: torch.Tensor, first: int
) -> tuple[torch.Tensor, dict[int, tuple[Int64, Int64]]]:
    """The set of ids in the last two dimensions at each place along the others.

    Returns the number of the set at each place, counted from `first`, and for each number the
    channels and how often each occurs. Where every set is one id, that is its number.
    """
    cut = core(ids)
    matrices = cut.flatten(-2).flatten(0, -2)
    if bool((matrices == matrices[:, :1]).all()):
        return ids[..., 0, 0], {}
    numbers, examples = equal_rows(matrices.numpy().astype(np.int64))
    places = torch.from_numpy(first + numbers).to(torch.int32).reshape(cut.shape[:-2])
    sets = {first + at: mix_all(matrices[example]) for at, example in enumerate(examples.tolist())}
    return places.expand(ids.shape[:-2]), sets


def distinct_places(operands: Sequence[torch.Tensor]) -> tuple[Int64, Int64, Int64]:
    """Distinct combinations of ids at one place, in order of first appearance.

    Returns the combinations, shape (n, operands), the number of the combination at each place (-1
    where all operands are constants; in the narrowed shape), and the count of each combination.
    """
    cut, repeats = narrowed(operands)
    shape = np.broadcast_shapes(*(tuple(ids.shape) for ids in cut))
    columns = [ids.expand(shape).flatten().numpy().astype(np.int64) for ids in cut]
    key = columns[0]
    for column in columns[1:]:
        key = np.unique(key, return_inverse=True)[1] * (column.max() + 2) + column + 1
    keys, first, inverse, counts = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    tuples = np.stack([column[first] for column in columns], axis=1)
    order = np.argsort(first)
    order = order[(tuples[order] != NO_CHANNEL).any(axis=1)]
    rank = np.full(len(keys), NO_CHANNEL, dtype=np.int64)
    rank[order] = np.arange(len(order))
    return tuples[order], rank[inverse].reshape(shape), counts[order] * repeats


def cross(tuples: Int64) -> bool:
    """Whether a channel of each operand meets several of another."""
    return len(tuples) > max(len(distinct(column)) for column in tuples.T)


def owned_by_one_task(elements: torch.Tensor, operands: Sequence[torch.Tensor]) -> bool:
    """Whether each element of a constant meets the channels of one task only."""
    cut, _ = narrowed([elements, *operands])
    numbers = cut[0].flatten().numpy()
    for ids in cut[1:]:
        met = ids.flatten().numpy()
        of_element = np.zeros(int(numbers.max()) + 1, dtype=met.dtype)
        of_element[numbers] = met
        if (of_element[numbers] != met).any():
            return False
    return True
