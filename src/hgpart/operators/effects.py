"""Effects: what a call of an operator does to the channels of its operands.

Every tensor that depends on the model's inputs carries *ids*: an int32 tensor of the same shape
that holds, for each element, the channel and layer that it belongs to (-1 for a constant,
such as padding). A channel rule reads the ids of the operands and answers with an effect:

* `Reindex`: computes nothing, only moves elements about (view, concatenation, split, shuffle);
* `SameIndex`: works channel by channel (activation, pooling, batch norm, residual add);
* `Matrices`: works matrix by matrix (attention of several heads, a batched product), or row by row
  or column by column of these;
* `Mix`: task j reads one group of channels (convolution, linear, group norm, reduction);
* `Whole`: mixes channels in a way that no rule knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.arrays import Int64
from hgpart.operators.calls import argument_of
from hgpart.operators.ids import compact, core


@dataclass(frozen=True)
class Channels:
    """The ids of a tensor that depends on the model's inputs."""

    ids: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(self.ids.shape)


@dataclass(frozen=True)
class Constant:
    """A tensor that depends on parameters and buffers alone.

    `origins` are the placeholders of the parameters behind it; `computed` is True once an
    operator has done more than move the elements of one parameter about. `moves` are the
    operators passed through: two uses of a parameter hand out the same rows if theirs are equal.

    `rows` holds, for each element, the row (along dimension 0) of the origins that it is made of;
    None if it is made of several. `value` is the constant itself where it is known and made of
    integers, such as an index.
    """

    shape: tuple[int, ...]
    origins: frozenset[str] = frozenset()
    computed: bool = False
    moves: tuple[str, ...] = ()
    rows: torch.Tensor | None = field(default=None, compare=False)
    value: torch.Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Call:
    """A call of an operator as rules see it.

    `args` and `kwargs` are the node's, with `Channels` and `Constant` in place of tensors and
    numbers in place of symbolic sizes. `shape` is the shape of the (first) result.
    """

    node: fx.Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, ...]

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument by its name in the operator's schema.

        The schema's default where the call does not give it; `default` where the operator has no
        such argument (another overload may).
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
    place; all of them broadcast to the shape of the result. `shared` are constants that every
    element needs as a whole.
    """

    operands: tuple[torch.Tensor, ...]
    constants: tuple[tuple[Constant, torch.Tensor], ...] = ()
    shared: tuple[Constant, ...] = ()


@dataclass(frozen=True)
class Matrices:
    """Each matrix of the result depends only on the matrices of operands at its own place.

    Matrices of operands lie in their last two dimensions; the dimensions before them tell places
    apart, such as the heads of an attention. `operands` are ids, `constants` pairs of a constant
    and the numbers of its elements at each place; all of them have the places of the result, and
    matrices of any size.

    `within` are the dimensions of the result that one of its matrices has, counted from the last
    one (-1): the last two, or one of them where each row or each column is a place of its own.
    """

    operands: tuple[torch.Tensor, ...]
    constants: tuple[tuple[Constant, torch.Tensor], ...] = ()
    within: tuple[int, ...] = (-2, -1)

    @property
    def places(self) -> tuple[int, ...]:
        """The dimensions of the result that tell places apart, ascending."""
        rank = self.operands[0].dim() - 2 + len(self.within)
        return tuple(dim for dim in range(rank) if dim - rank not in self.within)


@dataclass(frozen=True)
class Mix:
    """Task j of T reads ``channels[g * C // groups : (g + 1) * C // groups]``, g = j * groups // T.

    Attributes
    ----------
    channels : int64 array, shape (C,)
        Ids in the operand's order; -1 marks a place without a channel.
    sizes : int64 array, shape (C,)
        Number of input features of each channel (49 where a 7 x 7 map was flattened).
    axis : int or None
        Dimension of the result that counts the tasks; None for a single task.
    partial : bool
        Whether a task is a sum with one term per channel, and each term has columns of the weight
        that no other term needs. The fine-grain model can then split such a `Product`.
    shared : tuple of Constant
        Constants that every task needs as a whole. Of any other constant, task j needs slice j.
    slices : mapping of str to int
        For the name of an argument, the dimension of that constant whose slice j belongs to task
        j. An argument that is not named may have only one dimension as long as there are tasks.
    width : int
        Results along `axis` that a task makes, next to each other, such as the elements of a
        filter. A slice of a constant is as wide.
    by_place : SameIndex, Matrices or None
        The same as an operator that works channel by channel, or on a few neighbouring channels, if
        these lie along a dimension that no task sums over, or slides along. It holds unless these
        channels are those of an input, which nobody computes.
    is_statistic : bool
        Whether a task is a statistic of its channels that follows from those of some channels each,
        as large as the result.
    """

    channels: Int64
    sizes: Int64
    groups: int
    axis: int | None
    partial: bool
    shared: tuple[Constant, ...] = ()
    slices: Mapping[str, int] = field(default_factory=dict)
    width: int = 1
    by_place: SameIndex | Matrices | None = None
    is_statistic: bool = False


@dataclass(frozen=True)
class Whole:
    """One task that reads everything; `known` if a rule chose this, as for a reduction."""

    known: bool = False


Effect = Reindex | SameIndex | Matrices | Mix | Whole
Rule = Callable[[Call], Effect]


def tensors_of(call: Call) -> list[Channels | Constant]:
    """The tensors among a call's arguments, and in lists of them, in order."""
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, (Channels, Constant))]


def operands_of(call: Call) -> tuple[Channels, ...]:
    """All operands of a call that depend on the inputs, in order."""
    return tuple(operand for operand in tensors_of(call) if isinstance(operand, Channels))


def constants_of(call: Call) -> tuple[Constant, ...]:
    """All operands of a call that depend on parameters and buffers alone, in order."""
    return tuple(operand for operand in tensors_of(call) if isinstance(operand, Constant))


def alone(value: Any, call: Call) -> bool:
    """Whether nothing but `value` depends on the model's inputs (weight and bias may, too)."""
    return isinstance(value, Channels) and len(operands_of(call)) == 1


def has_slices(constant: Any, axis: int, tasks: int) -> bool:
    """Whether slice j of a constant along an axis is what task j alone holds of it.

    This holds for a buffer, for a parameter, and where every row was computed from the same row
    of parameters.
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
