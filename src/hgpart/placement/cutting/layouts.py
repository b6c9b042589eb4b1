"""Where the channels of a layer lie in its tensors, and how some channels are cut out."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hgpart.arrays import Int64
from hgpart.operators.ids import constant_along


@dataclass(frozen=True, eq=False)
class ChannelLayout:
    """Where channels lie in a tensor.

    If a dimension merges samples with channels, as attention merges its heads with the batch, the
    two are separated first: places along a dimension are then the same for every batch.

    Attributes
    ----------
    shape : tuple of int
        Shape of the whole tensor for the traced batch size, with samples and channels separated.
    axes : tuple of int
        Dimensions along which the channel changes. They are merged into one, in the place of the
        first, when channels are cut out. Empty if all belongs to one task, which is never cut.
    channels : int64 array
        Channel, numbered within its layer, at each place along the merged axes.
    merged : mapping of int to (int, int)
        Dimensions of the original tensor that merge samples with channels, and the sizes of the
        two; -1 stands for that of the batch.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    channels: Int64
    merged: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def axis(self) -> int | None:
        """The dimension of the original tensor whose places are channels, if there is only one."""
        return self.axes[0] if len(self.axes) == 1 and not self.merged else None

    def dim_of_piece(self, dim: int) -> int:
        """The place of another dimension in a piece, where the dimensions of channels are merged.

        >>> ChannelLayout((2, 3, 5, 4), (1, 3), np.arange(12)).dim_of_piece(2)
        2
        """
        return dim - sum(axis < dim for axis in self.axes[1:])

    def apart(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Shape of the tensor, for any batch, with samples and channels separated.

        >>> ChannelLayout((3, 4, 2), (1,), np.arange(4), {1: (4, -1)}).apart((3, 8))
        (3, 4, 2)
        """
        shape_apart: list[Any] = []
        for dim, size in enumerate(shape):
            sizes = self.merged.get(dim)
            batch_size = size // max(sizes) if sizes else size
            if sizes:
                shape_apart += [batch_size if part < 0 else part for part in sizes]
            else:
                shape_apart.append(size)
        return tuple(shape_apart)

    def positions(self, members: Int64) -> Int64:
        """Places along the merged axes that belong to these channels, ascending."""
        return np.flatnonzero(np.isin(self.channels, members))


def channel_layout(
    ids: torch.Tensor,
    axes: tuple[int, ...],
    first_channel: int,
    merged: Mapping[int, tuple[int, int]] | None = None,
) -> ChannelLayout:
    """Find a layer's channels in the ids of a tensor, which change along `axes`.

    Some of the axes may merge samples with channels.
    """
    if merged:
        ids = apart(ids, merged)
        axes = varying_axes(ids)
    distinct = ids
    for dim in range(ids.dim()):
        if dim not in axes:
            distinct = distinct.narrow(dim, 0, 1)
    channels = distinct.flatten().numpy().astype(np.int64) - first_channel
    return ChannelLayout(tuple(ids.shape), axes, channels, merged or {})


def varying_axes(ids: torch.Tensor) -> tuple[int, ...]:
    """Dimensions along which ids change."""
    return tuple(dim for dim in range(ids.dim()) if not constant_along(ids, dim))


# ------------------------------------------------------------------ functions that submodules call


def apart(tensor: torch.Tensor, merged: Mapping[int, tuple[int, int]]) -> torch.Tensor:
    """Split each dimension that merges samples with something else into two.

    >>> apart(torch.zeros(6, 5), {0: (-1, 2)}).shape
    torch.Size([3, 2, 5])
    """
    for dim in sorted(merged, reverse=True):
        tensor = tensor.unflatten(dim, merged[dim])  # type: ignore[no-untyped-call]
    return tensor


def together(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Undo `apart` for these dimensions.

    >>> together(torch.zeros(3, 2, 5), [0]).shape
    torch.Size([6, 5])
    """
    for dim in sorted(dims):
        tensor = tensor.flatten(dim, dim + 1)
    return tensor


def merge(tensor: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """Move dimensions together, in the place of the first, and make them one.

    >>> merge(torch.zeros(5, 2, 7, 3), (1, 3)).shape
    torch.Size([5, 6, 7])
    """
    together = torch.movedim(tensor, list(axes), list(range(axes[0], axes[0] + len(axes))))
    return together.flatten(axes[0], axes[0] + len(axes) - 1)


def unmerge(tensor: torch.Tensor, axes: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Undo `merge`.

    >>> unmerge(torch.zeros(5, 6, 7), (1, 3), (2, 3)).shape
    torch.Size([5, 2, 7, 3])
    """
    shape = (*tensor.shape[: axes[0]], *sizes, *tensor.shape[axes[0] + 1 :])
    apart = tensor.reshape(shape)
    return torch.movedim(apart, list(range(axes[0], axes[0] + len(axes))), list(axes))


def weighted(
    tensor: torch.Tensor, dim: int, index: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Sums of slices along a dimension, each times a number; both of shape (terms, sums).

    >>> rows, halves = torch.tensor([[0, 1], [1, 2]]), torch.full((2, 2), 0.5)
    >>> weighted(torch.tensor([1.0, 3.0, 7.0]), 0, rows, halves)
    tensor([2., 5.])
    """
    weights = weights.to(torch.promote_types(tensor.dtype, torch.float32))
    weights = weights.reshape(*weights.shape, *[1] * (tensor.dim() - 1 - dim))
    terms = (tensor.index_select(dim, at) * own for at, own in zip(index, weights, strict=True))
    total: torch.Tensor = functools.reduce(torch.add, terms)
    return total.to(tensor.dtype)


def spread(tensor: torch.Tensor, dim: int, index: torch.Tensor, size: int) -> torch.Tensor:
    """Put slices at their places along a dimension of `size`, with zeros elsewhere.

    >>> spread(torch.tensor([7, 8]), 0, torch.tensor([1, 3]), 4)
    tensor([0, 7, 0, 8])
    """
    shape = list(tensor.shape)
    shape[dim] = size
    return tensor.new_zeros(shape).index_copy(dim, index, tensor)
