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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from hgpart.errors import TraceError

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

    `rows` says of each element which row (along dimension 0) of the origins it is made of; None
    if of several. `value` is the constant itself, where it is known and made of integers, as an
    index is.
    """

    shape: tuple[int, ...]
    origins: frozenset[str] = frozenset()
    computed: bool = False
    moves: tuple[str, ...] = ()
    rows: torch.Tensor | None = field(default=None, compare=False)
    value: torch.Tensor | None = field(default=None, compare=False)


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

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument by the name that the operator's schema gives it.

        One that was not given has the schema's default; one that the operator does not have
        (another overload may) is `default`.
        """
        schema = getattr(self.node.target, "_schema", None)
        for position, declared in enumerate(schema.arguments if schema else ()):
            if declared.name == name:
                if position < len(self.args):
                    return self.args[position]
                return self.kwargs.get(name, declared.default_value)
        return default


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
    """Apply a call's rule; without one, a pointwise operator keeps its index, others are whole.

    Raises
    ------
    TraceError
        If the rule raises anything or returns anything but an effect.
    """
    target = call.node.target
    rule = _rules.get(target) or _rules.get(getattr(target, "overloadpacket", None))
    if rule is None and torch.Tag.pointwise in getattr(target, "tags", ()):
        rule = same_place
    if rule is None:
        return Whole()
    where = f"{place_of(call.node)}: its channel rule {getattr(rule, '__name__', rule)}"
    try:
        effect = rule(call)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise TraceError(f"{where} raises {reason}") from error
    if not isinstance(effect, Effect):
        raise TraceError(
            f"{where} returns {effect!r}: accepted are Reindex, SameIndex, Mix and Whole"
        )
    return effect


def module_of(node: fx.Node) -> str:
    """Path of the innermost module whose code makes a node; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def place_of(node: fx.Node) -> str:
    """A node as an error names it: operator, name, module."""
    module = module_of(node)
    return f"can't trace {node.target} ({node.name} in {module or 'the model itself'})"


def only_updated(node: fx.Node) -> frozenset[fx.Node]:
    """Running statistics that a norm in training mode replaces: no data of what it computes."""
    call = Call(node, node.args, dict(node.kwargs), ())
    if not (call.argument("training") or call.argument("use_input_stats")):
        return frozenset()
    statistics = (call.argument("running_mean"), call.argument("running_var"))
    return frozenset(value for value in statistics if isinstance(value, fx.Node))


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


def constants_of(call: Call) -> tuple[Constant, ...]:
    """All operands of a call that depend on parameters and buffers alone, in order."""
    return tuple(
        value
        for value in _tensors((*call.args, *call.kwargs.values()))
        if isinstance(value, Constant)
    )


def _elements(constant: Constant, shape: Sequence[int] | None = None) -> torch.Tensor:
    """Number the elements of a constant, viewed in a shape that broadcasts to the result."""
    numbers = torch.arange(math.prod(constant.shape), dtype=torch.int32)
    return numbers.reshape(tuple(constant.shape if shape is None else shape))


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


def along(
    call: Call,
    dims: Iterable[int],
    keepdim: bool = True,
    beside: Sequence[str] = (),
    shape: Sequence[int] = (),
) -> Effect:
    """Mix the first operand along dimensions only: same index if its ids don't depend on them.

    Whatever size the dimensions then have in the result, its ids are those of the operand.
    `beside` are the names of further tensors (weight, bias), which are viewed in `shape`.
    """
    value = call.args[0]
    others = [call.argument(name) for name in beside]
    varying = [other for other in others if isinstance(other, Channels)]
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
            *(other.ids.reshape(tuple(shape)).expand(call.shape) for other in varying),
        ),
        constants=tuple(
            (other, _elements(other, shape))
            for other in others
            if isinstance(other, Constant) and other.origins
        ),
    )


def normalised(call: Call, dims: Iterable[int], beside: Sequence[str] = ()) -> Effect:
    """Mix along dimensions whose extent stays: where channels are among them, each reads all.

    A softmax over channels, or a layer norm: a task needs every channel to make its own.
    """
    dims = sorted(dim % len(call.shape) for dim in dims)
    effect = along(call, dims, beside=beside, shape=call.shape[dims[0] :])
    if not isinstance(effect, Whole) or not _alone(call.args[0], call):
        return effect
    ids = call.args[0].ids
    varying = [dim for dim in range(ids.dim()) if not constant_along(ids, dim)]
    if len(varying) != 1 or varying[0] not in dims:
        return effect
    slices = dict.fromkeys(beside, varying[0] - dims[0])
    if not _in_slices(call, call.shape[varying[0]], slices):
        return effect
    channels, sizes = mix_all(ids)
    return Mix(channels, sizes, 1, varying[0], partial=False)


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
    return along(call, (), beside=("weight",), shape=shape)


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
@channel_rule(aten.native_batch_norm, aten._native_batch_norm_legit_no_training)
@channel_rule(aten.cudnn_batch_norm, aten._batch_norm_with_update, aten._batch_norm_no_update)
@channel_rule(aten.batch_norm, aten.instance_norm)
def _batch_norm(call: Call) -> Effect:
    dims = [dim for dim in range(len(call.shape)) if dim != 1]
    beside = ("weight", "bias", "running_mean", "running_var")
    return along(call, dims, beside=beside, shape=[1, -1] + [1] * (len(call.shape) - 2))


@channel_rule(aten.layer_norm, aten.native_layer_norm, aten.rms_norm)
def _layer_norm(call: Call) -> Effect:
    normalized = call.argument("normalized_shape")
    return normalised(call, range(-len(normalized), 0), beside=("weight", "bias"))


@channel_rule(aten._weight_norm, aten._weight_norm_interface)
def _weight_norm(call: Call) -> Effect:
    kept = call.argument("dim") % len(call.shape)
    shape = [size if dim == kept else 1 for dim, size in enumerate(call.shape)]
    dims = [dim for dim in range(len(call.shape)) if dim != kept]
    return along(call, dims, beside=("g",), shape=shape)


@channel_rule(aten.softmax, aten.log_softmax, aten._softmax, aten._log_softmax)
def _softmax(call: Call) -> Effect:
    return normalised(call, (call.argument("dim"),))


@channel_rule(aten.cumsum, aten.cumprod, aten.glu)
def _along_one(call: Call) -> Effect:
    return along(call, (call.argument("dim"),))


@channel_rule(aten.mean, aten.sum, aten.prod, aten.amax, aten.amin, aten.argmax, aten.argmin)
@channel_rule(aten.var, aten.std, aten.var_mean, aten.std_mean, aten.logsumexp, aten.any, aten.all)
@channel_rule(aten.max.default, aten.min.default, aten.max.dim, aten.min.dim)
@channel_rule(aten.linalg_vector_norm)
def _reduction(call: Call) -> Effect:
    rank = call.args[0].ids.dim()
    dim = call.argument("dim")
    dims = range(rank) if dim is None or dim == [] else dim
    dims = [dims] if isinstance(dims, int) else list(dims)
    effect = along(call, dims, keepdim=len(call.shape) == rank)
    return Whole(known=True) if isinstance(effect, Whole) else effect


@channel_rule(aten.constant_pad_nd, aten.pad, aten.reflection_pad2d, aten.replication_pad2d)
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
    parts = [_ids(value) for value in call.argument("tensors")]
    parts = [ids for ids in parts if ids.dim() == len(call.shape)]  # drops the legacy empty tensor
    dim = call.argument("dim") % len(call.shape)
    for at in range(len(call.shape)):
        if at != dim and all(ids.stride(at) == 0 or ids.shape[at] == 1 for ids in parts):
            parts = [ids.narrow(at, 0, 1) for ids in parts]
    return Reindex(compact(torch.cat(parts, dim).expand(call.shape)))


@channel_rule(aten.slice_scatter, aten.select_scatter)
def _scatter(call: Call) -> Effect:
    return _moved(call.node.target, call)


@channel_rule(aten.index.Tensor, aten.index_select)
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


@channel_rule(aten.fill)
def _fill(call: Call) -> Effect:
    if isinstance(call.argument("value"), Channels):
        return Whole()
    return Reindex(_ids(Constant(call.shape)))


# ------------------------------------------------------------------ mixing


def has_slices(constant: Any, axis: int, tasks: int) -> bool:
    """Whether slice j of a constant along an axis is what task j alone holds of it.

    So it is in a buffer, in a parameter, and where every row was computed from the same row of
    parameters.
    """
    if not isinstance(constant, Constant):
        return constant is None
    if not constant.origins or not constant.computed:
        return True
    if constant.rows is None:
        return False
    rows = compact(constant.rows)
    return rows.shape[axis] == tasks and core(rows).flatten().tolist() == list(range(tasks))


def _in_slices(call: Call, tasks: int, axes: Mapping[str, int]) -> bool:
    return all(has_slices(call.argument(name), axis, tasks) for name, axis in axes.items())


def _has_columns(weight: Constant) -> bool:
    """Whether each element of a weight is held with its channel: it was not computed by row."""
    return not weight.origins or not weight.computed


def _alone(value: Any, call: Call) -> bool:
    """Whether nothing but `value` depends on the model's inputs (weight and bias may, too)."""
    return isinstance(value, Channels) and len(operands_of(call)) == 1


def mix_all(ids: torch.Tensor) -> tuple[Int64, Int64]:
    """Channels that a task reads that reads everything, and the features each one spans."""
    channels, sizes = distinct_in_order(_flat(ids))
    known = channels != NO_CHANNEL
    return channels[known], sizes[known]


@channel_rule(aten.conv1d, aten.conv2d, aten.conv3d)
def _convolution(call: Call) -> Effect:
    return _any_convolution(call, transposed=False)


@channel_rule(aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
def _transposed_convolution(call: Call) -> Effect:
    return _any_convolution(call, transposed=True)


@channel_rule(aten.convolution)
def _either_convolution(call: Call) -> Effect:
    return _any_convolution(call, call.argument("transposed"))


def _any_convolution(call: Call, transposed: bool) -> Effect:
    value, weight, groups = (call.argument(name) for name in ("input", "weight", "groups"))
    if not _alone(value, call):
        return Whole()
    ids = value.ids
    axis = len(call.shape) + 1 - len(weight.shape)  # 0 where there is no batch
    tasks = call.shape[axis]
    if not _in_slices(call, tasks, {"weight": 1 if transposed else 0, "bias": 0}):
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
    return Mix(channels, sizes, groups, axis, partial=_has_columns(weight), macs=macs)


@channel_rule(aten.linear)
def _linear(call: Call) -> Effect:
    return _matrix_product(call, "input", {"weight": 0, "bias": 0})


@channel_rule(aten.mm)
def _mm(call: Call) -> Effect:
    return _matrix_product(call, "self", {"mat2": 1})


@channel_rule(aten.matmul)
def _matmul(call: Call) -> Effect:
    return _matrix_product(call, "self", {"other": 1})


@channel_rule(aten.addmm)
def _addmm(call: Call) -> Effect:
    bias = call.argument("self")
    axis = len(bias.shape) - 1 if isinstance(bias, Constant) else 0
    return _matrix_product(call, "mat1", {"mat2": 1, "self": axis})


def _matrix_product(call: Call, operand: str, slices: dict[str, int]) -> Effect:
    """A product with a matrix, the first of the constants that are handed out in slices."""
    value, weight = call.argument(operand), call.argument(next(iter(slices)))
    tasks = call.shape[-1] if call.shape else 1
    if not _alone(value, call) or len(weight.shape) != 2 or not _in_slices(call, tasks, slices):
        return Whole()
    channels, sizes = mix_all(value.ids)
    macs = math.prod(value.ids.shape)
    axis = len(call.shape) - 1
    return Mix(channels, sizes, 1, axis, partial=_has_columns(weight), macs=macs)


@channel_rule(aten.group_norm, aten.native_group_norm)
def _group_norm(call: Call) -> Effect:
    value = call.argument("input")
    if not _alone(value, call) or not _in_slices(call, call.shape[1], {"weight": 0, "bias": 0}):
        return Whole()
    ids = value.ids
    if any(not constant_along(ids, dim) for dim in range(ids.dim()) if dim != 1):
        return Whole()
    groups = call.argument("num_groups", call.argument("group"))
    channels = core(ids).flatten().expand(ids.shape[1]).numpy().astype(np.int64)
    return Mix(channels, np.ones_like(channels), groups, 1, partial=False)
