"""Channel rules of operators that only move elements: they run on ids as they do on elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hgpart.operators.channelwise import along, elements_of
from hgpart.operators.effects import Call, Channels, Constant, Effect, Reindex, SameIndex, Whole
from hgpart.operators.ids import NO_CHANNEL, compact, constant_along

aten = torch.ops.aten

MOST_PLACES = 64  # of parameters that are joined to maps: each is looked at by itself


def ids_of(value: Channels | Constant) -> torch.Tensor:
    """Ids of an operand; those of a constant are no channel's."""
    if isinstance(value, Channels):
        return value.ids
    return torch.full((), NO_CHANNEL, dtype=torch.int32).expand(value.shape)


def on_ids(call: Call) -> Effect:
    """Run the operator itself on ids: it moves them exactly as it moves the elements."""

    def plain(value: Any) -> Any:
        return ids_of(value) if isinstance(value, (Channels, Constant)) else value

    args, kwargs = pytree.tree_map(plain, (call.args, call.kwargs))
    result = call.node.target(*args, **kwargs)  # type: ignore[operator]
    if isinstance(result, torch.Tensor):
        return Reindex(compact(result))
    return Reindex(tuple(compact(part) for part in result))


def moved(call: Call) -> Effect:
    """Like `on_ids`, for an operator that leaves no element in two places."""
    return on_ids(call)


def viewed(call: Call) -> Effect:
    """Elements keep their order."""
    return Reindex(compact(call.args[0].ids.reshape(call.shape)))


def copied(call: Call) -> Effect:
    """Elements keep their places."""
    return Reindex(call.args[0].ids)


def joined(call: Call) -> Effect:
    """Tensors joined along a dimension; a task holds its share of parameters among them."""
    beside = _joined_to_parameters(call)
    if beside is not None:
        return beside
    parts = [ids_of(value) for value in call.argument("tensors")]
    parts = [ids for ids in parts if ids.dim() == len(call.shape)]  # drops the legacy empty tensor
    dim = call.argument("dim") % len(call.shape)
    for other_dim in range(len(call.shape)):
        if other_dim != dim and all(
            ids.stride(other_dim) == 0 or ids.shape[other_dim] == 1 for ids in parts
        ):
            parts = [ids.narrow(other_dim, 0, 1) for ids in parts]
    return Reindex(compact(torch.cat(parts, dim).expand(call.shape)))


def _joined_to_parameters(call: Call) -> SameIndex | None:
    """Maps of the same channels, and parameters with an element for each, such as class tokens.

    None if there are no such parameters, or too many places of them.
    """
    tensors, dim = call.argument("tensors"), call.argument("dim") % len(call.shape)
    maps = [value.ids for value in tensors if isinstance(value, Channels)]
    held = [value for value in tensors if isinstance(value, Constant)]
    if not maps or not any(constant.origins for constant in held):
        return None
    if sum(constant.shape[dim] for constant in held) > MOST_PLACES:
        return None
    varying = {axis for ids in maps for axis in range(ids.dim()) if not constant_along(ids, axis)}
    if len(varying) != 1 or dim in varying:
        return None
    first, *others = (ids.narrow(dim, 0, 1) for ids in maps)
    if not all(torch.equal(first, ids) for ids in others):
        return None
    elements = [
        (constant, place)
        for constant in held
        if constant.origins
        for place in torch.split(elements_of(constant), 1, dim)
    ]
    shape = call.shape
    return SameIndex((first.expand(shape),), tuple((own, at.expand(shape)) for own, at in elements))


def indexed(call: Call) -> Effect:
    """Elements at places that are known when the model is traced."""
    ids = ids_of(call.args[0])
    indices = call.argument("indices")
    if indices is None:
        dim = call.argument("dim") % ids.dim()
        indices = [*[None] * dim, call.argument("index")]
    places = [index.value if isinstance(index, Constant) else None for index in indices]
    if any(
        place is None and index is not None for place, index in zip(places, indices, strict=True)
    ):
        return Whole()  # which channels these are is known only as the model runs
    for dim in range(ids.dim()):
        if ids.stride(dim) == 0 and (dim >= len(places) or places[dim] is None):
            ids = ids.narrow(dim, 0, 1)
    return Reindex(compact(aten.index.Tensor(ids, places).expand(call.shape)))


def overwritten(call: Call) -> Effect:
    """The second operand in place of the first; a change of type makes it computed."""
    ids = compact(ids_of(call.argument("src")).expand(call.shape))
    types = {node.meta["val"].dtype for node in call.node.all_input_nodes}
    return Reindex(ids) if len(types) == 1 else SameIndex((ids,))


def filled(call: Call) -> Effect:
    """One value everywhere."""
    if isinstance(call.argument("value"), Channels):
        return Whole()
    return Reindex(ids_of(Constant(call.shape)))


def padded(call: Call) -> Effect:
    """A frame of elements around the operand; a frame of a constant belongs to no channel."""
    widths = call.argument("pad", call.argument("padding"))
    effect = along(call, [-1 - at // 2 for at, width in enumerate(widths) if width])
    inserts = call.argument("pad") is not None and call.argument("mode", "constant") == "constant"
    if isinstance(effect, Whole) and inserts:
        ids = call.args[0].ids.contiguous()
        return Reindex(compact(torch.nn.functional.pad(ids, widths, value=NO_CHANNEL)))
    return effect


def im2col_as_moves(
    value: torch.Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """Patches of a map by operators that move elements, for tracing; NotImplemented if dilated."""
    if any(apart != 1 for apart in dilation):
        return NotImplemented
    height, width = padding
    padded = aten.constant_pad_nd(value, [width, width, height, height])
    patches = padded.unfold(-2, kernel_size[0], stride[0]).unfold(-2, kernel_size[1], stride[1])
    return patches.movedim((-2, -1), (-4, -3)).flatten(-2).flatten(-4, -2)
