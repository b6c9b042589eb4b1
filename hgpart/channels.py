"""What each ATen operator does to the channels of its operands: one rule per operator.

Every tensor that depends on the model's inputs carries *ids*: an int32 tensor of the same shape
that says of each element which channel of which layer it belongs to (-1 where it is a constant,
such as padding). A rule reads the ids of the operands and answers with one of four effects:

* `Reindex`: computes nothing, only moves elements about (view, concatenation, split, shuffle);
* `SameIndex`: works channel by channel (activation, pooling, batch norm, residual add);
* `Mix`: task j reads one group of channels (convolution, linear, group norm, reduction);
* `Whole`: mixes channels in a way that no rule knows.

Ids that are equal along a dimension are kept expanded (stride 0), so they cost one number per
channel, not one per element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

Int64 = NDArray[np.int64]

NO_CHANNEL = -1


@dataclass(frozen=True)
class Channels:
    """The ids of a tensor that depends on the model's inputs."""

    ids: torch.Tensor


@dataclass(frozen=True)
class Constant:
    """A tensor that depends on parameters and buffers alone.

    `origins` are the placeholders of the parameters behind it; `computed` is True once an
    operator has done more than move the elements of one parameter about. `moves` are the
    operators passed through: two uses of a parameter hand out the same rows if theirs are equal.
    """

    shape: tuple[int, ...]
    origins: frozenset[str] = frozenset()
    computed: bool = False
    moves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """One operator call as rules see it.

    `args` and `kwargs` are the node's, with `Channels` and `Constant` in place of tensors and
    numbers in place of symbolic sizes. `shape` is the shape of the (first) result.
    """

    node: fx.Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, ...]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument that may have been given by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


@dataclass(frozen=True)
class Reindex:
    """The result holds elements of the operands; `ids` are those of the result (or results)."""

    ids: torch.Tensor | tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class SameIndex:
    """Each element of the result depends only on the channels at its own place.

    `operands` are ids, `constants` pairs of a constant and the number of its element at each
    place; all of them broadcast to the shape of the result.
    """

    operands: tuple[torch.Tensor, ...]
    constants: tuple[tuple[Constant, torch.Tensor], ...] = ()


@dataclass(frozen=True)
class Mix:
    """Task j of T reads ``channels[g * C // groups : (g + 1) * C // groups]``, g = j * groups // T.

    Attributes
    ----------
    channels : int64 array, shape (C,)
        Ids in the operand's order; -1 where there is none.
    sizes : int64 array, shape (C,)
        Input features that each channel spans (49 where a 7 x 7 map was flattened).
    axis : int or None
        Dimension of the result that counts the tasks; None for a single task.
    partial : bool
        Whether a task is a sum with one term per channel (fine-grain can then split it).
    macs : int
        Multiply-accumulates per task, for the whole traced batch.
    """

    channels: Int64
    sizes: Int64
    groups: int
    axis: int | None
    partial: bool
    macs: int = 0


@dataclass(frozen=True)
class Whole:
    """One task that reads everything; `known` if a rule chose this, as for a reduction."""

    known: bool = False


Effect = Reindex | SameIndex | Mix | Whole
Rule = Callable[[Call], Effect]

_rules: dict[Any, Rule] = {}


def channel_rule(*operators: Any) -> Callable[[Rule], Rule]:
    """Register a rule for operators, as ``@channel_rule(torch.ops.my_library.my_operator)``.

    An operator is a ``torch.ops`` packet (all overloads) or one overload. The rule gets a `Call`
    and returns `Reindex`, `SameIndex`, `Mix` or `Whole`; a later rule replaces an earlier one.
    """

    def register(rule: Rule) -> Rule:
        for operator in operators:
            _rules[operator] = rule
        return rule

    return register


# Their result has the shape of an operand and none of its data.
SHAPE_ONLY = frozenset(
    {
        torch.ops.aten.empty_like,
        torch.ops.aten.zeros_like,
        torch.ops.aten.ones_like,
        torch.ops.aten.full_like,
        torch.ops.aten.rand_like,
        torch.ops.aten.randn_like,
        torch.ops.aten.new_empty,
        torch.ops.aten.new_zeros,
        torch.ops.aten.new_ones,
        torch.ops.aten.new_full,
    }
)


def moves_only(target: Any) -> bool:
    """Whether an operator on one parameter leaves each of its elements, once, in some place."""
    packet = getattr(target, "overloadpacket", None)
    copies = packet in (aten.expand, aten.repeat, aten.tile)
    return not copies and _rules.get(packet) in (_view, _copy, _move)


def effect_of(call: Call) -> Effect:
    """Apply a call's rule; without one, a pointwise operator keeps its index, others are whole."""
    target = call.node.target
    rule = _rules.get(target) or _rules.get(getattr(target, "overloadpacket", None))
    if rule is None and torch.Tag.pointwise in getattr(target, "tags", ()):
        rule = same_place
    return Whole() if rule is None else rule(call)


# ------------------------------------------------------------------ ids: compact and aligned


def constant_along(ids: torch.Tensor, dim: int) -> bool:
    """Whether ids do not depend on a dimension."""
    if ids.shape[dim] <= 1 or ids.stride(dim) == 0:
        return True
    return bool((ids == ids.narrow(dim, 0, 1)).all())


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
    found, first, counts = np.unique(values, return_index=True, return_counts=True)
    order = np.argsort(first)
    return found[order], counts[order]


def _flat(ids: torch.Tensor) -> Int64:
    return core(ids).flatten().numpy().astype(np.int64)


def _tensors(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, (Channels, Constant)):
            yield value


def operands_of(call: Call) -> tuple[Channels, ...]:
    """All operands of a call that depend on the inputs, in order."""
    return tuple(
        value
        for value in _tensors((*call.args, *call.kwargs.values()))
        if isinstance(value, Channels)
    )


def _elements(constant: Constant, shape: Sequence[int] | None = None) -> torch.Tensor:
    """Number the elements of a constant, viewed in a shape that broadcasts to the result."""
    numbers = torch.arange(math.prod(constant.shape), dtype=torch.int32)
    return numbers.reshape(tuple(constant.shape if shape is None else shape))


def _no_origin(constant: Any) -> bool:
    return not isinstance(constant, Constant) or not constant.origins


# ------------------------------------------------------------------ same index


def same_place(call: Call) -> Effect:
    """Pointwise with broadcasting: an element depends on the elements at its own place."""
    values = tuple(_tensors((*call.args, *call.kwargs.values())))
    return SameIndex(
        operands=tuple(
            value.ids.expand(call.shape) for value in values if isinstance(value, Channels)
        ),
        constants=tuple(
            (value, _elements(value))
            for value in values
            if isinstance(value, Constant) and value.origins
        ),
    )


def along(call: Call, dims: Iterable[int], keepdim: bool = True) -> Effect:
    """Mix the first operand along dimensions only: same index if its ids don't depend on them.

    Whatever size the dimensions then have in the result, its ids are those of the operand.
    """
    ids = call.args[0].ids
    dims = sorted({dim % ids.dim() for dim in dims})
    if len(operands_of(call)) > 1 or not all(constant_along(ids, dim) for dim in dims):
        return Whole()
    for dim in reversed(dims):
        ids = ids.narrow(dim, 0, 1) if keepdim else ids.select(dim, 0)
    return SameIndex(operands=(ids.expand(call.shape),))


def normalised(call: Call, dims: Iterable[int]) -> Effect:
    """Mix along dimensions whose extent stays: where channels are among them, each reads all.

    A softmax over channels, or a layer norm: a task needs every channel to make its own.
    """
    dims = list(dims)
    effect = along(call, dims)
    ids = call.args[0].ids
    varying = [dim for dim in range(ids.dim()) if not constant_along(ids, dim)]
    within = {dim % ids.dim() for dim in dims}
    if not isinstance(effect, Whole) or len(varying) != 1 or varying[0] not in within:
        return effect
    channels, sizes = mix_all(ids)
    return Mix(channels, sizes, 1, varying[0], partial=False)


def _with_constants(effect: Effect, constants: Iterable[Any], shape: Sequence[int]) -> Effect:
    """Add per-channel constants (weight, bias) that are viewed in `shape`."""
    if not isinstance(effect, SameIndex):
        return effect
    held = tuple(
        (constant, _elements(constant, shape)) for constant in constants if not _no_origin(constant)
    )
    return SameIndex(effect.operands, held)


aten = torch.ops.aten


@channel_rule(aten.dropout, aten.native_dropout, aten.alpha_dropout, aten.bernoulli)
@channel_rule(aten.hardswish, aten.masked_fill, aten.where, aten._to_copy, aten.to, aten.copy)
def _untagged_pointwise(call: Call) -> Effect:
    return same_place(call)


@channel_rule(aten.feature_dropout, aten.feature_alpha_dropout)
def _feature_dropout(call: Call) -> Effect:
    return along(call, range(2, len(call.shape)))


@channel_rule(aten.prelu)
def _prelu(call: Call) -> Effect:
    shape = [1] * len(call.shape)
    shape[min(1, len(shape) - 1)] = -1
    return _with_constants(along(call, ()), call.args[1:], shape)


@channel_rule(aten.max_pool1d, aten.avg_pool1d, aten.adaptive_avg_pool1d, aten.adaptive_max_pool1d)
def _pool1d(call: Call) -> Effect:
    return along(call, (-1,))


@channel_rule(
    aten.max_pool2d,
    aten.max_pool2d_with_indices,
    aten.avg_pool2d,
    aten.adaptive_avg_pool2d,
    aten._adaptive_avg_pool2d,
    aten.adaptive_max_pool2d,
    aten.fractional_max_pool2d,
    aten.upsample_nearest2d,
    aten._upsample_nearest_exact2d,
    aten.upsample_bilinear2d,
    aten._upsample_bilinear2d_aa,
    aten.upsample_bicubic2d,
    aten._upsample_bicubic2d_aa,
)
def _pool2d(call: Call) -> Effect:
    return along(call, (-2, -1))


@channel_rule(
    aten.max_pool3d,
    aten.max_pool3d_with_indices,
    aten.avg_pool3d,
    aten.adaptive_avg_pool3d,
    aten.adaptive_max_pool3d,
    aten.upsample_nearest3d,
    aten.upsample_trilinear3d,
)
def _pool3d(call: Call) -> Effect:
    return along(call, (-3, -2, -1))


@channel_rule(aten._native_batch_norm_legit_functional, aten._native_batch_norm_legit)
@channel_rule(aten.batch_norm)
def _batch_norm(call: Call) -> Effect:
    dims = [dim for dim in range(len(call.shape)) if dim != 1]
    per_channel = [1, -1] + [1] * (len(call.shape) - 2)
    return _with_constants(along(call, dims), call.args[1:5], per_channel)


@channel_rule(aten.native_batch_norm, aten._native_batch_norm_legit_no_training)
@channel_rule(aten.cudnn_batch_norm, aten._batch_norm_with_update, aten._batch_norm_no_update)
@channel_rule(aten.instance_norm)
def _other_batch_norm(call: Call) -> Effect:
    return _batch_norm(call)


@channel_rule(aten.layer_norm, aten.native_layer_norm, aten.rms_norm)
def _layer_norm(call: Call) -> Effect:
    normalized = call.args[1]
    dims = range(-len(normalized), 0)
    constants = (call.argument(2, "weight"), call.argument(3, "bias"))
    held = [value for value in constants if isinstance(value, Constant)]
    return _with_constants(normalised(call, dims), held, normalized)


@channel_rule(aten.softmax, aten.log_softmax, aten._softmax, aten._log_softmax)
def _softmax(call: Call) -> Effect:
    return normalised(call, (call.argument(1, "dim", -1),))


@channel_rule(aten.cumsum, aten.cumprod, aten.glu)
def _along_one(call: Call) -> Effect:
    return along(call, (call.argument(1, "dim", -1),))


@channel_rule(aten.mean, aten.sum, aten.amax, aten.amin, aten.var, aten.std, aten.var_mean)
@channel_rule(aten.logsumexp, aten.linalg_vector_norm, aten.max.dim, aten.min.dim)
def _reduction(call: Call) -> Effect:
    ids = call.args[0].ids
    position = 2 if "linalg_vector_norm" in str(call.node.target) else 1
    dim = call.argument(position, "dim")
    dims = range(ids.dim()) if dim is None or dim == [] else dim
    dims = [dims] if isinstance(dims, int) else list(dims)
    keepdim = len(call.shape) == ids.dim()
    effect = along(call, dims, keepdim)
    return Whole(known=True) if isinstance(effect, Whole) else effect


@channel_rule(aten.constant_pad_nd, aten.pad, aten.reflection_pad2d, aten.replication_pad2d)
def _pad(call: Call) -> Effect:
    ids = call.args[0].ids
    widths = call.args[1]
    dims = [-1 - at // 2 for at, width in enumerate(widths) if width]
    effect = along(call, dims)
    zeros = call.argument(2, "mode", "constant") in ("constant", None, 0, 0.0)
    if isinstance(effect, Whole) and zeros:
        padded = torch.nn.functional.pad(ids.contiguous(), widths, value=NO_CHANNEL)
        return Reindex(compact(padded))
    return effect


# ------------------------------------------------------------------ re-index


def _moved(operator: Any, call: Call) -> Effect:
    """Run the operator itself on ids: it moves them exactly as it moves the elements."""

    def plain(value: Any) -> Any:
        if isinstance(value, Channels):
            return value.ids
        if isinstance(value, Constant):
            return torch.full((), NO_CHANNEL, dtype=torch.int32).expand(value.shape)
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    result = operator(
        *(plain(value) for value in call.args),
        **{name: plain(value) for name, value in call.kwargs.items()},
    )
    if isinstance(result, torch.Tensor):
        return Reindex(compact(result))
    return Reindex(tuple(compact(part) for part in result))


@channel_rule(aten.view, aten._unsafe_view, aten.reshape)
def _view(call: Call) -> Effect:
    return Reindex(compact(call.args[0].ids.reshape(call.shape)))


@channel_rule(aten.clone, aten.contiguous, aten.detach, aten.alias, aten.lift_fresh_copy)
def _copy(call: Call) -> Effect:
    return Reindex(call.args[0].ids)


@channel_rule(
    aten.permute,
    aten.transpose,
    aten.t,
    aten.numpy_T,
    aten.movedim,
    aten.unsqueeze,
    aten.squeeze,
    aten.flatten,
    aten.unflatten,
    aten.slice,
    aten.narrow,
    aten.select,
    aten.split,
    aten.split_with_sizes,
    aten.chunk,
    aten.tensor_split,
    aten.unbind,
    aten.stack,
    aten.expand,
    aten.repeat,
    aten.tile,
    aten.flip,
    aten.roll,
    aten.pixel_shuffle,
    aten.pixel_unshuffle,
    aten.channel_shuffle,
)
def _move(call: Call) -> Effect:
    return _moved(call.node.target, call)


@channel_rule(aten.cat)
def _cat(call: Call) -> Effect:
    parts = [
        value.ids
        if isinstance(value, Channels)
        else torch.full((), NO_CHANNEL, dtype=torch.int32).expand(value.shape)
        for value in call.args[0]
    ]
    parts = [ids for ids in parts if ids.dim() == len(call.shape)]  # drops the legacy empty tensor
    dim = call.argument(1, "dim", 0) % len(call.shape)
    for at in range(len(call.shape)):
        if at != dim and all(ids.stride(at) == 0 or ids.shape[at] == 1 for ids in parts):
            parts = [ids.narrow(at, 0, 1) for ids in parts]
    return Reindex(compact(torch.cat(parts, dim).expand(call.shape)))


@channel_rule(aten.slice_scatter, aten.select_scatter)
def _scatter(call: Call) -> Effect:
    return _moved(call.node.target, call)


@channel_rule(aten.fill)
def _fill(call: Call) -> Effect:
    if isinstance(call.args[1], Channels):
        return Whole()
    return Reindex(torch.full((), NO_CHANNEL, dtype=torch.int32).expand(call.shape))


# ------------------------------------------------------------------ mixing


def _weight_is_split(weight: Any) -> bool:
    """Whether a weight is a parameter whose rows can be handed out one by one."""
    return isinstance(weight, Constant) and not weight.computed


def _alone(value: Any, call: Call) -> bool:
    """Whether nothing but `value` depends on the model's inputs (weight and bias may, too)."""
    return isinstance(value, Channels) and len(operands_of(call)) == 1


def mix_all(ids: torch.Tensor) -> tuple[Int64, Int64]:
    """Channels that a task reads that reads everything, and the features each one spans."""
    channels, sizes = distinct_in_order(_flat(ids))
    known = channels != NO_CHANNEL
    return channels[known], sizes[known]


def _convolution(call: Call, groups: int, transposed: bool, spatial: int) -> Effect:
    value, weight = call.args[:2]
    if not _alone(value, call) or not _weight_is_split(weight):
        return Whole()
    ids = value.ids
    axis = len(call.shape) - spatial - 1
    tasks = call.shape[axis]
    places = math.prod(ids.shape if transposed else call.shape) // (
        ids.shape[axis] if transposed else tasks
    )
    macs = places * math.prod(weight.shape) // (tasks if transposed else weight.shape[0])
    if groups == 1:
        channels, sizes = mix_all(ids)
    else:
        if any(not constant_along(ids, dim) for dim in range(ids.dim()) if dim != axis):
            return Whole()
        channels = core(ids).flatten().expand(ids.shape[axis]).numpy().astype(np.int64)
        sizes = np.ones_like(channels)
    return Mix(channels, sizes, groups, axis, partial=True, macs=macs)


@channel_rule(aten.conv1d, aten.conv2d, aten.conv3d)
def _conv(call: Call) -> Effect:
    spatial = len(call.args[1].shape) - 2 if isinstance(call.args[1], Constant) else 2
    return _convolution(call, call.argument(6, "groups", 1), False, spatial)


@channel_rule(aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
def _conv_transpose(call: Call) -> Effect:
    spatial = len(call.args[1].shape) - 2 if isinstance(call.args[1], Constant) else 2
    return _convolution(call, call.argument(6, "groups", 1), True, spatial)


@channel_rule(aten.convolution)
def _any_convolution(call: Call) -> Effect:
    spatial = len(call.args[3])
    return _convolution(call, call.args[8], call.args[6], spatial)


def _matrix_product(value: Any, weight: Any, call: Call) -> Effect:
    if not _alone(value, call) or not _weight_is_split(weight) or len(weight.shape) != 2:
        return Whole()
    channels, sizes = mix_all(value.ids)
    macs = math.prod(value.ids.shape)
    return Mix(channels, sizes, 1, len(call.shape) - 1, partial=True, macs=macs)


@channel_rule(aten.linear)
def _linear(call: Call) -> Effect:
    return _matrix_product(call.args[0], call.args[1], call)


@channel_rule(aten.mm, aten.matmul)
def _mm(call: Call) -> Effect:
    return _matrix_product(call.args[0], call.args[1], call)


@channel_rule(aten.addmm)
def _addmm(call: Call) -> Effect:
    return _matrix_product(call.args[1], call.args[2], call)


@channel_rule(aten.group_norm, aten.native_group_norm)
def _group_norm(call: Call) -> Effect:
    packet = str(call.node.target)
    groups = call.args[6] if "native" in packet else call.args[1]
    ids = call.args[0].ids
    if any(not constant_along(ids, dim) for dim in range(ids.dim()) if dim != 1):
        return Whole()
    channels = core(ids).flatten().expand(ids.shape[1]).numpy().astype(np.int64)
    return Mix(channels, np.ones_like(channels), groups, 1, partial=False)
