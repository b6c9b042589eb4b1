"""What an operator does to the channels of its operands: effects, and the rules that say them.

Every tensor that depends on the model's inputs carries *ids*: an int32 tensor of the same shape
that says of each element which channel of which layer it belongs to (-1 where it is a constant,
such as padding). A rule reads the ids of the operands and answers with one of four effects:

* `Reindex`: computes nothing, only moves elements about (view, concatenation, split, shuffle);
* `SameIndex`: works channel by channel (activation, pooling, batch norm, residual add);
* `Mix`: task j reads one group of channels (convolution, linear, group norm, reduction);
* `Whole`: mixes channels in a way that no rule knows.

The rules of ATen's operators are in `aten_rules`; `channel_rule` registers more.

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
from hgpart.tracing.operator_calls import argument_of, place_of

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
        return argument_of(self.node.target, self.args, self.kwargs, name, default)


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
        Whether a task is a sum with one term per channel, each with columns of the weight that
        it alone needs (fine-grain can then split it).
    macs : int
        Multiply-accumulates per task, for the whole traced batch.
    shared : tuple of Constant
        Those that every task needs as a whole; of the others task j has slice j to itself.
    slices : mapping of str to int
        By the name of an argument, the dimension of that constant whose slice j is task j's. One
        that is not named may have no two dimensions of as many elements as there are tasks.
    """

    channels: Int64
    sizes: Int64
    groups: int
    axis: int | None
    partial: bool
    macs: int = 0
    shared: tuple[Constant, ...] = ()
    slices: Mapping[str, int] = field(default_factory=dict)


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


def built_in_rule(*operators: Any) -> Callable[[Rule], Rule]:
    """Register a rule for operators unless a user has one for them already."""

    def register(rule: Rule) -> Rule:
        for operator in operators:
            _rules.setdefault(operator, rule)
        return rule

    return register


def rule_of(operator: Any) -> Rule | None:
    """The rule that is registered for an operator."""
    return _rules.get(operator)


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
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise TraceError(f"{where} raises {reason}") from error
    if not isinstance(effect, Effect):
        raise TraceError(
            f"{where} returns {effect!r}: accepted are Reindex, SameIndex, Mix and Whole"
        )
    return effect


# ------------------------------------------------------------------ ids: compact and aligned


def constant_along(ids: torch.Tensor, dim: int) -> bool:
    """Whether ids do not depend on a dimension."""
    if ids.shape[dim] <= 1 or ids.stride(dim) == 0:
        return True
    ids = core(ids)
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
    rows = core(compact(constant.rows))
    along = rows.shape[axis] == rows.numel() == tasks  # no other dimension tells rows apart
    return along and rows.flatten().tolist() == list(range(tasks))


def in_slices(call: Call, tasks: int, axes: Mapping[str, int]) -> bool:
    """Whether slice j of each named constant, along its axis, is what task j alone holds."""
    return all(has_slices(call.argument(name), axis, tasks) for name, axis in axes.items())


def mix_all(ids: torch.Tensor) -> tuple[Int64, Int64]:
    """Channels that a task reads that reads everything, and the features each one spans."""
    channels, sizes = distinct_in_order(_flat(ids))
    known = channels != NO_CHANNEL
    return channels[known], sizes[known]


def alone(value: Any, call: Call) -> bool:
    """Whether nothing but `value` depends on the model's inputs (weight and bias may, too)."""
    return isinstance(value, Channels) and len(operands_of(call)) == 1
