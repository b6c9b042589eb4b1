"""Rules for samples where an operand names, by numbers, the places that are read or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hgpart.operators.effects import Call, Channels, Effect, Whole, operands_of
from hgpart.operators.moving import indexed
from hgpart.operators.samples import alone_along, together, without


@dataclass(frozen=True)
class Positions(Channels):
    """The place of each sample in the batch, 0 for the first; only used as an index.

    With a `step`, the places are those of elements, and each sample has `step` of them.
    """

    step: int = 1


def _in_order(ids: torch.Tensor) -> bool:
    """Whether ids are 0, 1, 2 and so on: every sample in its own place."""
    return torch.equal(ids, torch.arange(len(ids), dtype=ids.dtype))


def _is_of_each(call: Call, value: Any, index: Any) -> bool:
    """Whether an index holds the places of samples, and these lie along the first dimension.

    A second index that holds them would tell samples apart by their places.
    """
    other_operands = (operand for operand in operands_of(call) if operand is not index)
    if any(isinstance(operand, Positions) for operand in other_operands) or not isinstance(
        value, Channels
    ):
        return False
    first = alone_along(value.ids, range(1, value.ids.dim()))
    return (
        isinstance(index, Positions)
        and index.step == 1
        and (first is not None and _in_order(first.flatten()))
    )


def picked(call: Call) -> Effect:
    """Elements at places that are constants, or that each sample names within itself."""
    value, indices = call.args[0], call.argument("indices")
    if indices is None:
        dim = call.argument("dim") % len(value.shape)
        indices = [*[None] * dim, call.argument("index")]
    if any(isinstance(operand, Positions) for operand in operands_of(call)):
        return _picked_of_each(call, value, indices)
    effect = indexed(call)
    if not isinstance(effect, Whole):
        return effect
    (dim, *more) = [dim for dim, index in enumerate(indices) if index is not None]
    if more:
        return Whole()
    index = indices[dim]
    rank = len(index.shape)
    ids_of_operands: list[torch.Tensor | None] = []
    if isinstance(value, Channels):
        ids = alone_along(value.ids, (dim,))
        if ids is not None:
            ids = ids.reshape(*ids.shape[:dim], *[1] * rank, *ids.shape[dim + 1 :])
        ids_of_operands.append(ids)
    if isinstance(index, Channels):
        ids = index.ids
        ids_of_operands.append(ids.reshape(*ids.shape, *[1] * (len(value.shape) - dim - 1)))
    return together(call, ids_of_operands)


def _picked_of_each(call: Call, value: Any, indices: Sequence[Any]) -> Effect:
    """``x[arange(batch), index]``: an element of each sample, or several."""
    if not _is_of_each(call, value, indices[0]):
        return Whole()
    given = [index for index in indices if index is not None]
    rest = [1] * (len(value.shape) - len(given))
    ids_of_indices = [index.ids for index in given if isinstance(index, Channels)]
    return together(call, [ids.reshape(*ids.shape, *rest) for ids in ids_of_indices])


def put(call: Call) -> Effect:
    """Numbers written where a mask says, at the same places of all samples, or at each one's own.

    The last case is ``x[arange(batch), index] = values``.
    """
    value, indices, values = call.args[:3]
    nodes: Any = call.node.args[1]
    is_mask = [node is not None and node.meta["val"].dtype == torch.bool for node in nodes]
    of_samples = [index for index in indices if isinstance(index, Channels)]
    if is_mask == [True] and of_samples:
        return _put_by_mask(call, value, indices[0], values)
    if of_samples and (any(is_mask) or not _is_of_each(call, value, indices[0])):
        return Whole()
    if isinstance(values, Positions):
        return Whole()
    # Indices replace some dimensions of the value by those that they have together.
    dims, rank, dim = list[int](), 0, 0
    for index, masks in zip(indices, is_mask, strict=True):
        covered = len(index.shape) if masks else 1
        if index is not None:
            dims += range(dim, dim + covered)
            rank = max(rank, 1 if masks else len(index.shape))
        dim += covered
    rest = len(value.shape) - len(dims)
    beside = dims == [*range(dims[0], dims[0] + len(dims))]
    first = dims[0] if beside else 0
    own = 1 if of_samples else 0  # of these dimensions, the one along which samples lie
    ids_of_operands: list[torch.Tensor | None] = []
    if isinstance(value, Channels):
        ids_of_operands.append(alone_along(value.ids, dims[own:]))
    written = [index.ids.reshape(*index.shape, *[1] * rest) for index in of_samples]
    if isinstance(values, Channels):
        written.append(values.ids)
    for ids in written:
        ids = ids.reshape(*[1] * (rank + rest - ids.dim()), *ids.shape)
        at = without(ids, range(first + own, first + rank))
        for dim in dims[own:] if at is not None else ():
            at = at.unsqueeze(dim)  # type: ignore[union-attr]
        ids_of_operands.append(at)
    return together(call, ids_of_operands)


def _put_by_mask(call: Call, value: Any, mask: Channels, values: Any) -> Effect:
    """A number written where a mask says, element by element."""
    if isinstance(values, Channels) or len(values.shape):
        return Whole()
    ids_of_operands = [value.ids] if isinstance(value, Channels) else []
    ids_of_operands.append(
        mask.ids.reshape(*mask.shape, *[1] * (len(value.shape) - len(mask.shape)))
    )
    return together(call, ids_of_operands)


def bags(call: Call) -> Effect:
    """Sums of rows of a table; each sample names equally many of these rows, one after another."""
    offsets, by_counts = call.argument("offsets"), call.argument("scale_grad_by_freq")
    if by_counts or not isinstance(offsets, Positions) or not _in_order(offsets.ids):
        return Whole()
    sample_of_element = offsets.ids.repeat_interleave(offsets.step)
    for operand in operands_of(call):
        if operand is not offsets and (
            isinstance(operand, Positions) or not torch.equal(operand.ids, sample_of_element)
        ):
            return Whole()
    return together(call, [offsets.ids.unsqueeze(-1)])
