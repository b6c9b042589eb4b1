"""Slice: the elements of a parameter or buffer that a part holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hgpart.arrays import Bool, Int64


@dataclass(frozen=True, eq=False)
class Slice:
    """Elements of one parameter or buffer of the model.

    Attributes
    ----------
    name : str
        Name in the model's state_dict.
    shape : tuple of int
        Shape of the whole tensor.
    positions : mapping of int to int64 array
        For each dimension that is cut, the positions held, ascending; other dimensions are held
        whole.
    elements : int64 array or None
        Instead of positions, numbers of single elements in the flattened whole; the local tensor
        is then one-dimensional.
    """

    name: str
    shape: tuple[int, ...]
    positions: Mapping[int, Int64] = field(default_factory=dict)
    elements: Int64 | None = None

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the tensor that the part holds."""
        if self.elements is not None:
            return (len(self.elements),)
        return tuple(
            len(self.positions[dim]) if dim in self.positions else size
            for dim, size in enumerate(self.shape)
        )

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.local_shape)

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole tensor."""
        return self.local_shape == self.shape

    @property
    def places(self) -> tuple[Any, ...]:
        """Index of the held elements in a numpy array of the whole."""
        if self.elements is not None:
            return np.unravel_index(self.elements, self.shape)
        if not self.positions:
            return (...,)
        cut = self.shape[: max(self.positions) + 1]  # what follows is held whole
        return np.ix_(*(self.positions.get(dim, np.arange(size)) for dim, size in enumerate(cut)))

    @property
    def numbers(self) -> Int64:
        """Number of each held element in the flattened whole; shape `local_shape`."""
        numbers: Int64 = np.arange(math.prod(self.shape)).reshape(self.shape)[self.places]
        return numbers

    def take(self, full: torch.Tensor) -> torch.Tensor:
        """Copy the held elements out of the whole tensor.

        >>> import numpy as np
        >>> Slice("weight", (4, 2), {0: np.array([0, 3])}).take(torch.arange(8).reshape(4, 2))
        tensor([[0, 1],
                [6, 7]])
        """
        full = full.detach()
        if self.elements is not None:
            return full.reshape(-1)[torch.from_numpy(self.elements).to(full.device)]
        for dim, kept in self.positions.items():
            full = full.index_select(dim, torch.from_numpy(kept).to(full.device))
        return full if self.positions else full.clone()

    def put(self, full: torch.Tensor, local: torch.Tensor) -> None:
        """Write the held elements into the whole tensor (which is contiguous), in place."""
        local = local.detach().to(full.device, full.dtype)
        if self.elements is not None:
            full.view(-1)[torch.from_numpy(self.elements).to(full.device)] = local
        else:
            _put(full, local, list(self.positions.items()))

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for slices with the same elements."""
        held = tuple((dim, kept.tobytes()) for dim, kept in sorted(self.positions.items()))
        return (self.name, held, None if self.elements is None else self.elements.tobytes())


def box_of(numbers: Int64, shape: tuple[int, ...]) -> dict[int, Int64] | None:
    """The box of the elements with these numbers (no duplicates); None if they are not a box."""
    axes = [np.unique(along) for along in np.unravel_index(numbers, shape)] if shape else []
    if shape and math.prod(map(len, axes)) != len(numbers):
        return None
    return {dim: along for dim, along in enumerate(axes) if len(along) < shape[dim]}


def slice_of(name: str, shape: tuple[int, ...], numbers: Int64) -> Slice:
    """The slice with the elements of these numbers; with positions, if they are a box."""
    held = np.zeros(math.prod(shape), dtype=np.bool_)
    held[numbers] = True
    return _marked(name, held.reshape(shape))


def united(slices: Sequence[Slice]) -> Slice:
    """The slice of all elements that are in any of these slices of a tensor."""
    held = np.zeros(slices[0].shape, dtype=np.bool_)
    for piece in slices:
        held[piece.places] = True
    return _marked(slices[0].name, held)


def overlap(slices: Sequence[Slice]) -> bool:
    """Whether two slices of a tensor share an element."""
    return len(slices) > 1 and united(slices).size < sum(piece.size for piece in slices)


def _marked(name: str, held: Bool) -> Slice:
    """The slice of the elements that are marked; with positions, if they are a box."""
    dims = range(held.ndim)
    axes = [np.flatnonzero(held.any(axis=(*dims[:dim], *dims[dim + 1 :]))) for dim in dims]
    if math.prod(map(len, axes)) != np.count_nonzero(held):
        return Slice(name, held.shape, elements=np.flatnonzero(held))
    cut = {dim: kept for dim, kept in enumerate(axes) if len(kept) < held.shape[dim]}
    return Slice(name, held.shape, cut)


def _put(full: torch.Tensor, local: torch.Tensor, cuts: list[tuple[int, Int64]]) -> None:
    if not cuts:
        full.copy_(local)
        return
    dim, kept = cuts[0]
    index = torch.from_numpy(kept).to(full.device)
    if len(cuts) > 1:
        inner = full.index_select(dim, index)
        _put(inner, local, cuts[1:])
        local = inner
    full.index_copy_(dim, index, local)
