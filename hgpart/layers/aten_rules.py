"""The channel rules of ATen's operators; importing this module registers them."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from hgpart.layers.channels import (
    NO_CHANNEL,
    Call,
    Channels,
    Constant,
    Effect,
    Mix,
    Reindex,
    SameIndex,
    Whole,
    alone,
    along,
    built_in_rule,
    compact,
    constant_along,
    core,
    has_slices,
    in_slices,
    mix_all,
    normalised,
    rule_of,
    same_place,
)
from hgpart.tracing.operator_calls import packet_of
from hgpart.tracing.traced_nodes import elements_of

Int64 = NDArray[np.int64]

aten = torch.ops.aten


@built_in_rule(aten.dropout, aten.native_dropout, aten.alpha_dropout, aten.bernoulli)
@built_in_rule(aten.hardswish, aten.masked_fill, aten.where, aten._to_copy, aten.to)
def _untagged_pointwise(call: Call) -> Effect:
    return same_place(call)


@built_in_rule(aten.feature_dropout, aten.feature_alpha_dropout)
def _feature_dropout(call: Call) -> Effect:
    return along(call, range(2, len(call.shape)))


@built_in_rule(aten.prelu)
def _prelu(call: Call) -> Effect:
    shape = [1] * len(call.shape)
    shape[min(1, len(shape) - 1)] = -1
    return along(call, (), beside=("weight",), shape=shape)


@built_in_rule(aten.max_pool1d, aten.avg_pool1d, aten.adaptive_avg_pool1d, aten.adaptive_max_pool1d)
def _pool1d(call: Call) -> Effect:
    return along(call, (-1,))


@built_in_rule(
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


@built_in_rule(
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


@built_in_rule(aten._native_batch_norm_legit_functional, aten._native_batch_norm_legit)
@built_in_rule(aten.native_batch_norm, aten._native_batch_norm_legit_no_training)
@built_in_rule(aten.cudnn_batch_norm, aten._batch_norm_with_update, aten._batch_norm_no_update)
@built_in_rule(aten.batch_norm, aten.instance_norm)
def _batch_norm(call: Call) -> Effect:
    dims = [dim for dim in range(len(call.shape)) if dim != 1]
    beside = ("weight", "bias", "running_mean", "running_var")
    return along(call, dims, beside=beside, shape=[1, -1] + [1] * (len(call.shape) - 2))


@built_in_rule(aten.layer_norm, aten.native_layer_norm, aten.rms_norm)
def _layer_norm(call: Call) -> Effect:
    normalized = call.argument("normalized_shape")
    return normalised(call, range(-len(normalized), 0), beside=("weight", "bias"))


@built_in_rule(aten._weight_norm, aten._weight_norm_interface)
def _weight_norm(call: Call) -> Effect:
    kept = call.argument("dim") % len(call.shape)
    shape = [size if dim == kept else 1 for dim, size in enumerate(call.shape)]
    dims = [dim for dim in range(len(call.shape)) if dim != kept]
    return along(call, dims, beside=("g",), shape=shape)


@built_in_rule(aten.softmax, aten.log_softmax, aten._softmax, aten._log_softmax)
def _softmax(call: Call) -> Effect:
    return normalised(call, (call.argument("dim"),))


@built_in_rule(aten.cumsum, aten.cumprod, aten.glu)
def _along_one(call: Call) -> Effect:
    return along(call, (call.argument("dim"),))


@built_in_rule(aten.mean, aten.sum, aten.prod, aten.amax, aten.amin, aten.argmax, aten.argmin)
@built_in_rule(aten.var, aten.std, aten.var_mean, aten.std_mean, aten.logsumexp, aten.any, aten.all)
@built_in_rule(aten.max.default, aten.min.default, aten.max.dim, aten.min.dim)
@built_in_rule(aten.linalg_vector_norm)
def _reduction(call: Call) -> Effect:
    rank = call.args[0].ids.dim()
    dim = call.argument("dim")
    dims = range(rank) if dim is None or dim == [] else dim
    dims = [dims] if isinstance(dims, int) else list(dims)
    effect = along(call, dims, keepdim=len(call.shape) == rank)
    return Whole(known=True) if isinstance(effect, Whole) else effect


@built_in_rule(aten.constant_pad_nd, aten.pad, aten.reflection_pad2d, aten.replication_pad2d)
def _pad(call: Call) -> Effect:
    widths = call.argument("pad", call.argument("padding"))
    effect = along(call, [-1 - at // 2 for at, width in enumerate(widths) if width])
    inserts = call.node.target is aten.constant_pad_nd.default
    if isinstance(effect, Whole) and (inserts or call.argument("mode") == "constant"):
        ids = call.args[0].ids.contiguous()
        return Reindex(compact(torch.nn.functional.pad(ids, widths, value=NO_CHANNEL)))
    return effect


# ------------------------------------------------------------------ re-index


def _ids(value: Channels | Constant) -> torch.Tensor:
    if isinstance(value, Channels):
        return value.ids
    return torch.full((), NO_CHANNEL, dtype=torch.int32).expand(value.shape)


def _moved(operator: Any, call: Call) -> Effect:
    """Run the operator itself on ids: it moves them exactly as it moves the elements."""

    def plain(value: Any) -> Any:
        if isinstance(value, (Channels, Constant)):
            return _ids(value)
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


@built_in_rule(aten.view, aten._unsafe_view, aten.reshape)
def _view(call: Call) -> Effect:
    return Reindex(compact(call.args[0].ids.reshape(call.shape)))


@built_in_rule(aten.clone, aten.contiguous, aten.detach, aten.alias, aten.lift_fresh_copy)
def _copy(call: Call) -> Effect:
    return Reindex(call.args[0].ids)


@built_in_rule(
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


@built_in_rule(aten.cat)
def _cat(call: Call) -> Effect:
    parts = [_ids(value) for value in call.argument("tensors")]
    parts = [ids for ids in parts if ids.dim() == len(call.shape)]  # drops the legacy empty tensor
    dim = call.argument("dim") % len(call.shape)
    for at in range(len(call.shape)):
        if at != dim and all(ids.stride(at) == 0 or ids.shape[at] == 1 for ids in parts):
            parts = [ids.narrow(at, 0, 1) for ids in parts]
    return Reindex(compact(torch.cat(parts, dim).expand(call.shape)))


@built_in_rule(aten.slice_scatter, aten.select_scatter)
def _scatter(call: Call) -> Effect:
    return _moved(call.node.target, call)


@built_in_rule(aten.index.Tensor, aten.index_select)
def _index(call: Call) -> Effect:
    ids = _ids(call.args[0])
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


@built_in_rule(aten.copy)
def _overwritten(call: Call) -> Effect:
    """Nothing is left of the first operand; another type than its own is computed."""
    ids = compact(_ids(call.argument("src")).expand(call.shape))
    types = {one.meta["val"].dtype for one in call.node.all_input_nodes}
    return Reindex(ids) if len(types) == 1 else SameIndex((ids,))


@built_in_rule(aten.fill)
def _fill(call: Call) -> Effect:
    if isinstance(call.argument("value"), Channels):
        return Whole()
    return Reindex(_ids(Constant(call.shape)))


# ------------------------------------------------------------------ mixing


def _has_columns(weight: Constant, ids: torch.Tensor, axis: int) -> bool:
    """Whether each channel has columns of a weight of its own, as the products run along `axis`.

    It has none where other dimensions tell channels apart, where some columns meet constants,
    and where the weight was computed by row.
    """
    by_row = weight.origins and weight.computed
    elsewhere = [dim for dim in range(ids.dim()) if dim != axis % ids.dim()]
    return (
        not by_row
        and all(constant_along(ids, dim) for dim in elsewhere)
        and bool((core(ids) != NO_CHANNEL).all())
    )


@built_in_rule(aten.conv1d, aten.conv2d, aten.conv3d)
def _convolution(call: Call) -> Effect:
    return _any_convolution(call, transposed=False)


@built_in_rule(aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
def _transposed_convolution(call: Call) -> Effect:
    return _any_convolution(call, transposed=True)


@built_in_rule(aten.convolution)
def _either_convolution(call: Call) -> Effect:
    return _any_convolution(call, call.argument("transposed"))


def _any_convolution(call: Call, transposed: bool) -> Effect:
    value, weight, groups = (call.argument(name) for name in ("input", "weight", "groups"))
    if not alone(value, call):
        return Whole()
    ids = value.ids
    axis = len(call.shape) + 1 - len(weight.shape)  # 0 where there is no batch
    tasks = call.shape[axis]
    if not has_slices(weight, 1 if transposed else 0, tasks):
        return Whole()
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
    # The weight of a transposed one counts the filters within each group.
    slices = {"weight": 1 if transposed else 0, "bias": 0}
    if transposed and groups > 1:
        del slices["weight"]
    return Mix(
        channels,
        sizes,
        groups,
        axis,
        partial=_has_columns(weight, ids, axis),
        macs=macs,
        shared=_shared_bias(call.argument("bias"), tasks),
        slices=slices,
    )


def _shared_bias(bias: Constant | None, tasks: int) -> tuple[Constant, ...]:
    """A product's bias, unless each task adds an element of it that no other task needs."""
    if bias is None:
        return ()
    one_each = bias.shape[-1:] == (tasks,)  # another size is spread over all tasks
    return () if one_each and has_slices(bias, len(bias.shape) - 1, tasks) else (bias,)


@built_in_rule(aten.linear)
def _linear(call: Call) -> Effect:
    return _matrix_product(call, "input", "weight", 0, "bias")


@built_in_rule(aten.mm)
def _mm(call: Call) -> Effect:
    return _matrix_product(call, "self", "mat2", 1)


@built_in_rule(aten.matmul)
def _matmul(call: Call) -> Effect:
    return _matrix_product(call, "self", "other", 1)


@built_in_rule(aten.addmm)
def _addmm(call: Call) -> Effect:
    return _matrix_product(call, "mat1", "mat2", 1, "self")


def _matrix_product(call: Call, operand: str, matrix: str, rows: int, bias: str = "") -> Effect:
    """A product with a matrix, whose dimension `rows` counts the tasks."""
    value, weight = call.argument(operand), call.argument(matrix)
    tasks = call.shape[-1] if call.shape else 1
    if not alone(value, call) or len(weight.shape) != 2 or not has_slices(weight, rows, tasks):
        return Whole()
    channels, sizes = mix_all(value.ids)
    return Mix(
        channels,
        sizes,
        groups=1,
        axis=len(call.shape) - 1,
        partial=_has_columns(weight, value.ids, axis=-1),
        macs=math.prod(value.ids.shape),
        shared=_shared_bias(call.argument(bias), tasks),
        slices={matrix: rows, bias: -1},
    )


@built_in_rule(aten.group_norm, aten.native_group_norm)
def _group_norm(call: Call) -> Effect:
    value, slices = call.argument("input"), {"weight": 0, "bias": 0}
    if not alone(value, call) or not in_slices(call, call.shape[1], slices):
        return Whole()
    ids = value.ids
    if any(not constant_along(ids, dim) for dim in range(ids.dim()) if dim != 1):
        return Whole()
    groups = call.argument("num_groups", call.argument("group"))
    channels = core(ids).flatten().expand(ids.shape[1]).numpy().astype(np.int64)
    return Mix(channels, np.ones_like(channels), groups, 1, partial=False, slices=slices)


_WITH_WEIGHTS = frozenset(
    {
        *(aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution, aten.linear),
        *(aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d),
    }
)


def is_weight(value: fx.Node, user: fx.Node) -> bool:
    """Whether a node is the weight that a convolution or linear layer multiplies its input by."""
    weight = Call(user, user.args, dict(user.kwargs), ()).argument("weight")
    return weight is value and packet_of(user) in _WITH_WEIGHTS


def passes_on(user: fx.Node, elements: int) -> bool:
    """Whether a node moves what it reads, or changes each of so many elements by itself."""
    joins = packet_of(user) is aten.cat
    if joins or user.target is operator.getitem or moves_only(user.target):
        return True
    pointwise = torch.Tag.pointwise in getattr(user.target, "tags", ())
    return pointwise and elements_of(user) == elements


def moves_only(target: Any) -> bool:
    """Whether an operator on one parameter leaves each of its elements, once, in some place."""
    packet = getattr(target, "overloadpacket", None)
    copies = packet in (aten.expand, aten.repeat, aten.tile)
    return not copies and rule_of(packet) in (_view, _copy, _move)
