"""Channel rules of operators that work channel by channel, or that mix along some dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from hgpart.operators.effects import (
    Call,
    Channels,
    Constant,
    Effect,
    Mix,
    Rule,
    SameIndex,
    Whole,
    alone,
    in_slices,
    operands_of,
    tensors_of,
)
from hgpart.operators.ids import NO_CHANNEL, constant_along, in_order, mix_all


def elements_of(constant: Constant, shape: Sequence[int] | None = None) -> torch.Tensor:
    """Numbers of a constant's elements, viewed in a shape that broadcasts to the result."""
    numbers = torch.arange(math.prod(constant.shape), dtype=torch.int32)
    return numbers.reshape(tuple(constant.shape if shape is None else shape))


# ------------------------------------------------------------------ same index


def same_place(call: Call) -> SameIndex:
    """Pointwise with broadcasting: an element depends on the elements at the same place."""
    values = tensors_of(call)
    return SameIndex(
        operands=tuple(
            value.ids.expand(call.shape) for value in values if isinstance(value, Channels)
        ),
        constants=tuple(
            (value, elements_of(value))
            for value in values
            if isinstance(value, Constant) and value.origins
        ),
    )


def of_first(call: Call) -> Effect:
    """Like `same_place`, if ids depend on the first dimension alone."""
    effect = same_place(call)
    for ids in effect.operands:
        if not all(constant_along(ids, dim) for dim in range(1, ids.dim())):
            return Whole()
    return effect


def along(
    call: Call,
    dims: Iterable[int],
    keepdim: bool = True,
    beside: Sequence[str] = (),
    shape: Sequence[int] = (),
) -> Effect:
    """Mix the first operand along dimensions only: same index if its ids don't depend on them.

    The result may have any size along these dimensions: its ids are those of the operand.
    `beside` names further tensors (weight, bias), which are viewed in `shape`.
    """
    value = call.args[0]
    constants_and_ids = [call.argument(name) for name in beside]
    varying = [operand for operand in constants_and_ids if isinstance(operand, Channels)]
    if not isinstance(value, Channels) or len(operands_of(call)) > 1 + len(varying):
        return Whole()
    ids = value.ids
    dims = sorted({dim % ids.dim() for dim in dims})
    if not all(constant_along(ids, dim) for dim in dims):
        return Whole()
    for dim in reversed(dims):
        ids = ids.narrow(dim, 0, 1) if keepdim else ids.select(dim, 0)
    return SameIndex(
        operands=(
            ids.expand(call.shape),
            *(operand.ids.reshape(tuple(shape)).expand(call.shape) for operand in varying),
        ),
        constants=tuple(
            (operand, elements_of(operand, shape))
            for operand in constants_and_ids
            if isinstance(operand, Constant) and operand.origins
        ),
    )


def normalised(call: Call, dims: Iterable[int], beside: Sequence[str] = ()) -> Effect:
    """Mix along dimensions whose extent stays; if channels lie along them, each reads all.

    Examples are a softmax over channels and a layer norm: a task needs every channel.
    """
    dims = sorted(dim % len(call.shape) for dim in dims)
    effect = along(call, dims, beside=beside, shape=call.shape[dims[0] :])
    if not isinstance(effect, Whole) or not alone(call.args[0], call):
        return effect
    ids = call.args[0].ids
    varying = [dim for dim in range(ids.dim()) if not constant_along(ids, dim)]
    if len(varying) != 1 or varying[0] not in dims:
        return effect
    slices = dict.fromkeys(beside, varying[0] - dims[0])
    if not in_slices(call, call.shape[varying[0]], slices):
        return effect
    channels, sizes = mix_all(ids)
    return Mix(channels, sizes, 1, varying[0], partial=False, slices=slices)


# ------------------------------------------------------------------ rules


def feature_dropout(call: Call) -> Effect:
    """Dropout of whole maps."""
    return along(call, range(2, len(call.shape)))


def prelu(call: Call) -> Effect:
    """A slope for each channel, or one for all."""
    shape = [1] * len(call.shape)
    shape[min(1, len(shape) - 1)] = -1
    return along(call, (), beside=("weight",), shape=shape)


def over_last(count: int) -> Rule:
    """The rule of operators that mix along the last `count` dimensions, such as pooling."""
    return lambda call: along(call, range(-count, 0))


def fractional_pool(count: int) -> Rule:
    """The rule of pooling over the last `count` dimensions, in steps drawn for each map.

    The numbers drawn for a map, between 0 and 1, lie along the last dimension of a tensor.
    """

    def rule(call: Call) -> Effect:
        effect, samples = over_last(count)(call), call.argument("random_samples")
        if not isinstance(effect, SameIndex) or not samples.origins:
            return effect
        of_maps = elements_of(samples).reshape(*call.shape[:-count], *[1] * count, count)
        numbers_of_maps = tuple((samples, numbers) for numbers in of_maps.unbind(-1))
        return SameIndex(effect.operands, (*effect.constants, *numbers_of_maps))

    return rule


def batch_norm(call: Call) -> Effect:
    """A norm of each channel, along all dimensions but 1."""
    dims = [dim for dim in range(len(call.shape)) if dim != 1]
    beside = ("weight", "bias", "running_mean", "running_var")
    return along(call, dims, beside=beside, shape=[1, -1] + [1] * (len(call.shape) - 2))


def layer_norm(call: Call) -> Effect:
    """A norm over the last dimensions."""
    normalized = call.argument("normalized_shape")
    return normalised(call, range(-len(normalized), 0), beside=("weight", "bias"))


def weight_norm(call: Call) -> Effect:
    """A norm of a weight's slices along one dimension, each scaled to a length in `g`."""
    kept = call.argument("dim") % len(call.shape)
    shape = [size if dim == kept else 1 for dim, size in enumerate(call.shape)]
    dims = [dim for dim in range(len(call.shape)) if dim != kept]
    return along(call, dims, beside=("g",), shape=shape)


def softmax(call: Call) -> Effect:
    """A softmax along one dimension: a task needs every element along it."""
    return normalised(call, (call.argument("dim"),))


def along_one(call: Call) -> Effect:
    """An operator along one dimension."""
    return along(call, (call.argument("dim"),))


def glu_as_product(value: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """A gated linear unit as a product of two halves, for tracing: channels may be in both."""
    maps, gates = value.chunk(2, dim)
    return maps * gates.sigmoid()


def reduction(call: Call) -> Effect:
    """A reduction along some dimensions, or all."""
    rank = call.args[0].ids.dim()
    dim = call.argument("dim")
    dims = range(rank) if dim is None or dim == [] else dim
    dims = [dims] if isinstance(dims, int) else list(dims)
    effect = along(call, dims, keepdim=len(call.shape) == rank)
    return Whole(known=True) if isinstance(effect, Whole) else effect


def group_norm(call: Call) -> Effect:
    """A norm over groups of channels."""
    value, slices = call.argument("input"), {"weight": 0, "bias": 0}
    if not alone(value, call) or not in_slices(call, call.shape[1], slices):
        return Whole()
    channels = in_order(value.ids, 1)
    if channels is None:
        return Whole()
    groups = call.argument("num_groups", call.argument("group"))
    return Mix(channels, np.ones_like(channels), groups, 1, partial=False, slices=slices)


def layer_statistics(call: Call) -> Effect:
    """Statistics along the last dimensions: of each channel, or one task that reads all of them."""
    ids, dims = call.args[0].ids, range(-call.argument("dims"), 0)
    if all(constant_along(ids, dim) for dim in dims):
        return SameIndex((_one_each(ids, dims).expand(call.shape),))
    varying = [dim for dim in range(ids.dim()) if not constant_along(ids, dim)]
    inside = [dim for dim in varying if dim - ids.dim() in dims]
    if len(inside) > 1 or len(varying) > 2:
        return Whole(known=True)
    apart = [dim for dim in varying if dim not in inside]
    for dim in reversed(range(ids.dim())):
        ids = ids if dim in varying else ids.select(dim, 0)
    channels = ids.numpy().ravel().astype(np.int64)  # what is apart comes first
    if (channels == NO_CHANNEL).any():
        return Whole(known=True)
    if apart:  # such as heads, each with a statistic of its own
        return Mix(channels, np.ones_like(channels), len(ids), apart[0], partial=False)
    return Mix(*mix_all(call.args[0].ids), 1, None, partial=False, is_statistic=True)


def group_statistics(call: Call) -> Effect:
    """Statistics of groups of channels, a task for each group."""
    channels = in_order(call.args[0].ids, 1)
    if channels is None:
        return Whole(known=True)
    known, groups = not (channels == NO_CHANNEL).any(), call.argument("groups")
    return Mix(channels, np.ones_like(channels), groups, 1, partial=False, is_statistic=known)


def statistics_of_samples(call: Call) -> Effect:
    """What `group_statistics` is for samples: each has statistics of its own."""
    ids = call.args[0].ids
    dims = range(1, ids.dim())
    if not all(constant_along(ids, dim) for dim in dims):
        return Whole()
    return SameIndex((_one_each(ids, dims).expand(call.shape),))


def _one_each(ids: torch.Tensor, dims: Iterable[int]) -> torch.Tensor:
    """Ids of statistics along dimensions that they do not depend on."""
    for dim in dims:
        ids = ids.narrow(dim, 0, 1)
    return ids.unsqueeze(-1)
