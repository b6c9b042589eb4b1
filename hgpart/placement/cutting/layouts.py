"""Where the channels of a layer lie in the tensors that it makes, and how some are cut out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hgpart.arrays import Int64
from hgpart.operators.ids import constant_along


@dataclass(frozen=True, eq=False)
class ChannelLayout:
    """Where channels lie in a tensor.

    Attributes
    ----------
    shape : tuple of int
        Of the whole tensor, with the traced batch size.
    axes : tuple of int
        Dimensions along which the channel changes; merged into one (in the place of the first)
        when channels are cut out. Empty where all belongs to one task, which is never cut.
    channels : int64 array
        Channel, numbered within its layer, at each place along the merged axes.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    channels: Int64

    def positions(self, members: Int64) -> Int64:
        """Places along the merged axes that belong to some channels, ascending."""
        return np.flatnonzero(np.isin(self.channels, members))


def channel_layout(ids: torch.Tensor, axes: tuple[int, ...], first_channel: int) -> ChannelLayout:
    """Find the channels of a layer in the ids of a tensor, which change along `axes`."""
    distinct = ids
    for dim in range(ids.dim()):
        if dim not in axes:
            distinct = distinct.narrow(dim, 0, 1)
    merged = distinct.flatten().numpy().astype(np.int64) - first_channel
    return ChannelLayout(tuple(ids.shape), axes, merged)


def varying_axes(ids: torch.Tensor) -> tuple[int, ...]:
    """Dimensions along which ids change."""
    return tuple(dim for dim in range(ids.dim()) if not constant_along(ids, dim))


# ------------------------------------------------------------------ what the submodules call


def merge(tensor: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """Bring dimensions together in the place of the first and make them one.

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


def spread(tensor: torch.Tensor, dim: int, index: torch.Tensor, size: int) -> torch.Tensor:
    """Put slices in their places along a dimension of `size`; zeros elsewhere.

    >>> spread(torch.tensor([7, 8]), 0, torch.tensor([1, 3]), 4)
    tensor([0, 7, 0, 8])
    """
    shape = list(tensor.shape)
    shape[dim] = size
    return tensor.new_zeros(shape).index_copy(dim, index, tensor)
