"""Products: convolutions, products with a matrix, products of many matrices, and attention.

The weight of the first two has a slice for each task; the others work matrix by matrix, or by rows
or columns of these. A lookup is a product of a table with a matrix of zeros and ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hgpart.operators.channelwise import elements_of
from hgpart.operators.effects import (
    Call,
    Channels,
    Constant,
    Effect,
    Matrices,
    Mix,
    SameIndex,
    Whole,
    alone,
    has_slices,
)
from hgpart.operators.ids import NO_CHANNEL, compact, constant_along, core, in_order, mix_all
from hgpart.operators.samples import convolution, letters_of_einsum, product_of_matrices

aten = torch.ops.aten


@dataclass(frozen=True)
class Product:
    """Names of a product's operands, and the layout of its weight; called, it is a channel rule.

    Attributes
    ----------
    operand, weight, bias : str
        Names of the arguments; "" where there is no bias. The bias that is passed may be None.
    row_dim : int
        Dimension of the weight that counts the tasks, 0 or 1; the other one counts the input
        features. An argument ``transposed`` overrides it.
    is_matrix : bool
        Whether the weight has these two dimensions only. Otherwise those of a kernel follow
        them, and an argument ``groups`` may divide the features into groups.
    is_scaled : bool
        Whether arguments ``alpha`` and ``beta`` scale the product and the bias.
    multiplies_maps : bool
        Whether the weight may be a map just like the operand. Then a product that makes the
        weight makes neurons; otherwise all of it goes to the one task that multiplies by it. There
        may also be many matrices on both sides.
    """

    operand: str = "input"
    weight: str = "weight"
    bias: str = "bias"
    row_dim: int = 0
    is_matrix: bool = True
    is_scaled: bool = False
    multiplies_maps: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments that the operator has to have."""
        bias = (self.bias,) if self.bias else ()
        return (self.operand, self.weight, *bias, *(("alpha", "beta") if self.is_scaled else ()))

    def rows(self, call: Call) -> int:
        """Dimension of a call's weight that counts the tasks."""
        return 1 if call.argument("transposed") else self.row_dim

    def __call__(self, call: Call) -> Effect:
        """Each task reads all channels of the operand, or those of its group.

        A weight that has no slice for each task is what all of them need. A product of many
        matrices works matrix by matrix.
        """
        value, weight, bias = map(call.argument, (self.operand, self.weight, self.bias))
        if not self.is_matrix and isinstance(weight, Channels):
            return self._by_filters(call, value, weight, bias)
        if not alone(value, call) or (self.is_matrix and len(weight.shape) != 2):
            return product_of_maps(call, value, weight, bias) if self.multiplies_maps else Whole()
        ids, rows, groups = value.ids, self.rows(call), call.argument("groups", 1)
        axis = len(call.shape) + 1 - len(weight.shape)  # 0 where there is no batch
        features = ids.dim() + 1 - len(weight.shape)
        tasks = call.shape[axis]
        along = in_order(ids, features)
        by_place = self._by_place(call, ids, weight, bias)
        if groups == 1:
            channels, sizes = mix_all(ids)
        elif along is not None:
            channels, sizes = along, np.ones_like(along)
        else:
            return by_place or Whole()
        has_rows = has_slices(weight, rows, tasks)
        slices = {self.weight: rows, self.bias: -1}
        if not has_rows or (rows == 1 and groups > 1):
            del slices[self.weight]  # it counts the tasks within each group, or not at all
        return Mix(
            channels,
            sizes,
            groups,
            axis,
            # Each channel has columns of its own, unless the weight was computed by row.
            partial=along is not None
            and not (weight.origins and weight.computed)
            and bool((along != NO_CHANNEL).all()),
            shared=(*(() if has_rows else (weight,)), *_shared_bias(bias, tasks)),
            slices=slices,
            by_place=by_place,
        )

    def _by_place(
        self, call: Call, ids: torch.Tensor, weight: Constant, bias: Constant | None
    ) -> SameIndex | Matrices | None:
        """A product along a dimension without channels, as a mixer of tokens has."""
        if not self.is_matrix:
            return self._by_windows(call, ids, weight, bias)
        before = range(ids.dim() - 1)
        if len(call.shape) != ids.dim() or not constant_along(ids, -1):
            return None
        if all(constant_along(ids, dim) for dim in before):
            return None
        shared = tuple(constant for constant in (weight, bias) if constant is not None)
        return SameIndex((ids[..., :1].expand(call.shape),), shared=shared)

    def _by_windows(
        self, call: Call, ids: torch.Tensor, weight: Constant, bias: Constant | None
    ) -> Matrices | None:
        """A convolution along the dimension of channels, as if they were rows of an image."""
        varying = [dim for dim in range(ids.dim()) if not constant_along(ids, dim)]
        spatial = len(weight.shape) - 2
        if len(varying) != 1 or varying[0] < ids.dim() - spatial or self.rows(call):
            return None
        dim = varying[0] - ids.dim()
        stride, padding, dilation = (
            ([*call.argument(name)] * spatial)[dim] for name in ("stride", "padding", "dilation")
        )
        along = in_order(ids, varying[0])
        assert along is not None  # as ids vary along no other dimension
        padded = np.pad(along, padding, constant_values=NO_CHANNEL).astype(np.int32)
        span = (weight.shape[dim] - 1) * dilation + 1
        windows = torch.from_numpy(padded).unfold(0, span, stride)[:, ::dilation]
        rank = len(call.shape)
        places = (*call.shape[: rank - spatial - 1], len(windows))
        constants = [made for made in (weight, bias) if made is not None and made.origins]
        return Matrices(
            (windows.unsqueeze(-2).expand(*places, 1, -1),),
            tuple((made, elements_of(made, [1, -1]).expand(*places, 1, -1)) for made in constants),
            within=tuple(at for at in range(-spatial - 1, 0) if at != dim),
        )

    def _by_filters(self, call: Call, value: Any, weight: Channels, bias: Any) -> Effect:
        """A convolution with filters that are maps, of each sample: a task has one of them.

        Whole unless groups are samples, or samples and channels.
        """
        spatial = len(weight.shape) - 2
        axis = len(call.shape) - 1 - spatial
        known = isinstance(value, Channels) and not (isinstance(bias, Constant) and bias.origins)
        if not known or self.rows(call) or axis != 1:
            return Whole()
        maps, filters, groups = value.ids, weight.ids, call.argument("groups", 1)
        if not all(constant_along(maps, dim) for dim in range(axis + 1, maps.dim())):
            return Whole()
        filters = core(compact(filters)).flatten(1)
        samples, count = call.shape[:2]
        own = len(torch.unique(filters, dim=0))
        if count % own or groups * own not in (count, count * own):
            return Whole()
        maps = maps.reshape(*maps.shape[:2], -1)[..., 0].reshape(samples, groups, -1)
        operands = [
            maps.repeat_interleave(count // groups, 1).unsqueeze(-2),
            filters.reshape(count, 1, -1).expand(samples, -1, -1, -1),
        ]
        if isinstance(bias, Channels):
            operands.append(bias.ids.reshape(count, 1, 1).expand(samples, -1, -1, -1))
        return Matrices(tuple(operands), within=tuple(range(-spatial, 0)))

    def of_samples(self, call: Call) -> Effect:
        """Rule for operands whose samples are their channels; see `hgpart.operators.samples`."""
        value, weight, bias = map(call.argument, (self.operand, self.weight, self.bias))
        if not self.is_matrix:
            return convolution(call, value, weight, self.rows(call))
        turned = weight if self.row_dim else _turned(weight)
        return product_of_matrices(call, value, turned, bias)

    def macs(self, call: Call) -> int | None:
        """Multiply-accumulates of a call: at each place as many as the weight has elements."""
        value, weight = call.argument(self.operand), call.argument(self.weight)
        if self.is_matrix and len(weight.shape) != 2:
            return None
        shape = value.shape if self.rows(call) else call.shape
        axis = len(shape) + 1 - len(weight.shape)
        return int(math.prod(shape[:axis] + shape[axis + 1 :]) * math.prod(weight.shape))


def _turned(weight: Channels | Constant) -> Channels | Constant:
    """A weight with rows and columns exchanged."""
    if isinstance(weight, Channels):
        return Channels(weight.ids.movedim(-1, 0))
    return Constant(weight.shape[::-1])


def _shared_bias(bias: Constant | None, tasks: int) -> tuple[Constant, ...]:
    """A product's bias, unless each task adds an element of it that no other task needs."""
    if bias is None:
        return ()
    one_each = bias.shape[-1:] == (tasks,)  # another size is spread over all tasks
    return () if one_each and has_slices(bias, len(bias.shape) - 1, tasks) else (bias,)


def padding_by_numbers(convolve: Any) -> Callable[..., torch.Tensor]:
    """A convolution whose padding is a word, as one with padding in numbers, for tracing.

    ``padding="same"`` of an even kernel pads one row more behind than in front. A convolution can't
    do that by numbers, so zeros are added first, as torch does: parts can cut both operators.
    """

    def convolution(
        value: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Sequence[int] = (1,),
        padding: str = "valid",
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> torch.Tensor:
        sizes = weight.shape[2:]
        dilations = [*dilation] * (len(sizes) // len(dilation))
        padded = [
            apart * (size - 1) if padding == "same" else 0
            for size, apart in zip(sizes, dilations, strict=True)
        ]
        if any(rows % 2 for rows in padded):
            behind = [width for rows in reversed(padded) for width in (0, rows % 2)]
            value = torch.ops.aten.constant_pad_nd(value, behind)
        result: torch.Tensor = convolve(
            value, weight, bias, stride, [rows // 2 for rows in padded], dilation, groups
        )
        return result

    return convolution


def looked_up(call: Call) -> Effect:
    """Rows of a table, at places that depend on the inputs: a task has a column of the table."""
    table, places = call.argument("weight"), call.argument("indices")
    if not alone(places, call) or call.argument("sparse"):
        return Whole()
    has_columns = has_slices(table, 1, call.shape[-1])
    channels, sizes = mix_all(places.ids)
    return Mix(
        channels,
        np.ones_like(sizes),
        1,
        len(call.shape) - 1,
        partial=False,
        shared=() if has_columns else (table,),
        slices={"weight": 1} if has_columns else {},
    )


# ------------------------------------------------------------------ matrix by matrix


def matrix_by_matrix(call: Call, *values: Channels | Constant | None) -> Effect:
    """Operands whose matrices, in the last two dimensions, meet those at the same place.

    Whole if channels do not tell places apart: every matrix then needs all channels.
    """
    if any(value is not None and len(value.shape) < 2 for value in values):
        return Whole()
    operands, constants = [], []
    for value in values:
        if isinstance(value, Channels):
            operands.append(_at_places(value.ids, call))
        elif value is not None and value.origins:
            constants.append((value, _at_places(elements_of(value), call)))
    places = range(len(call.shape) - 2)
    if all(constant_along(ids, dim) for ids in operands for dim in places):
        return Whole()
    return Matrices(tuple(operands), tuple(constants))


def product_of_maps(
    call: Call,
    left: Channels | Constant,
    right: Channels | Constant,
    added: Channels | Constant | None = None,
) -> Effect:
    """A product of matrices: matrix by matrix, else by its columns, or by its rows.

    A column of the product needs a column of the right operand and all of the left one; a row needs
    a row of the left one and all of the right one. Where channels tell neither apart, such as
    features of queries and keys, each row reads all channels.
    """
    effect = matrix_by_matrix(call, left, right, added)
    if isinstance(effect, Matrices) or len(call.shape) < 3:
        return effect
    values = [value for value in (left, right, added) if value is not None]
    if any(len(value.shape) < 2 for value in values):
        return effect
    if isinstance(right, Channels) and not constant_along(right.ids, -1):
        return _by_columns(call, left, right, added)
    if isinstance(left, Channels) and not constant_along(left.ids, -2):
        return _by_rows(call, left, right, added)
    of_rows = next((dim for dim in (-2, -1) if _is_divided(call, dim)), None)
    if of_rows is None:
        return effect
    ids = torch.cat([core(value.ids).flatten() for value in values if isinstance(value, Channels)])
    channels, sizes = mix_all(ids)
    shared = tuple(value for value in values if isinstance(value, Constant))
    axis = len(call.shape) + of_rows
    return Mix(channels, np.ones_like(sizes), 1, axis, partial=False, shared=shared)


def _by_columns(call: Call, left: Any, right: Any, added: Any) -> Effect:
    def turned(numbers: torch.Tensor) -> torch.Tensor:  # a matrix of a column for each of them
        return numbers.transpose(-1, -2).unsqueeze(-1)

    return _by_lines(call, -1, (right, turned), (left, _for_each_line), (added, turned))


def _by_rows(call: Call, left: Any, right: Any, added: Any) -> Effect:
    def turned(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.unsqueeze(-2)

    return _by_lines(call, -2, (left, turned), (right, _for_each_line), (added, turned))


def _for_each_line(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.unsqueeze(-3)


def _by_lines(
    call: Call, line: int, *values_and_views: tuple[Any, Callable[[torch.Tensor], torch.Tensor]]
) -> Matrices:
    """Operands as matrices at each place, where the lines along a dimension are places, too."""
    places = (*call.shape[:-2], call.shape[line])
    operands, constants = [], []
    for value, view in values_and_views:
        if isinstance(value, Channels):
            numbers = view(value.ids)
            operands.append(numbers.expand(*places, *numbers.shape[-2:]))
        elif value is not None and value.origins:
            numbers = view(elements_of(value))
            constants.append((value, numbers.expand(*places, *numbers.shape[-2:])))
    return Matrices(tuple(operands), tuple(constants), within=(-3 - line,))


def _is_divided(call: Call, dim: int) -> bool:
    """Whether a dimension of a call's result has several places, as many in every batch."""
    value = call.node.meta.get("val")
    size = call.shape[dim] if value is None else value.shape[dim]
    return isinstance(size, int) and size > 1


def _at_places(numbers: torch.Tensor, call: Call) -> torch.Tensor:
    """Numbers of a tensor's elements, with all places of a call's result.

    Heads may share keys and values: as many heads, next to each other, as each of these has.
    """
    if numbers.dim() > 2 and numbers.shape[-3] not in (1, call.shape[-3]):
        numbers = numbers.repeat_interleave(call.shape[-3] // numbers.shape[-3], -3)
    return numbers.expand(*call.shape[:-2], *numbers.shape[-2:])


def batched_factors(argument: Callable[[str], Any]) -> tuple[Any, Any, Any]:
    """The factors of a product of many matrices, and what is added to it, if anything is."""
    left, right = argument("batch1"), argument("batch2")
    if left is None:
        return argument("self"), argument("mat2"), None
    return left, right, argument("self")


def batched_product(call: Call) -> Effect:
    """Products of many matrices; what is added to them may come first."""
    return product_of_maps(call, *batched_factors(call.argument))


def attention_as_products(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """An attention as its products, softmax and dropout, for tracing, or NotImplemented.

    They are those that torch itself computes on a CPU, in the same order: dropout drops the same.
    An attention of several heads without dropout stays as it is: it is divided by its heads. That
    of one head is not, but its products are, by queries and by features of values.
    """
    has_heads = query.dim() > 3 and query.shape[-3] != 1
    if dropout_p == 0 and has_heads:
        return NotImplemented
    if enable_gqa:
        key, value = (
            aten.repeat_interleave.self_int(shared, query.shape[-3] // shared.shape[-3], -3)
            for shared in (key, value)
        )
    factor = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    weights = aten.matmul.default(query * factor, (key * factor).transpose(-2, -1))
    if is_causal:
        attn_mask = torch.ones(weights.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is None:
        weights = aten.softmax.int(weights, -1)
    else:
        if attn_mask.dtype == torch.bool:
            weights = weights.masked_fill(~attn_mask, -math.inf)
        else:
            weights = weights + attn_mask
        weights = aten._safe_softmax(weights, -1)
    if dropout_p:
        weights = aten.native_dropout(weights, dropout_p, True)[0]
    return aten.matmul.default(weights, value)


def attention(call: Call) -> Effect:
    """An attention of each head; several heads may share keys and values."""
    return matrix_by_matrix(call, *map(call.argument, ("query", "key", "value", "attn_mask")))


def attention_of_stacks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *settings: Any,
    **named: Any,
) -> torch.Tensor:
    """An attention of more than four dimensions, as one of four: torch is slow with more."""
    stacks, of_mask = query.shape[:-3], () if attn_mask is None else attn_mask.shape[:-3]
    if attn_mask is not None and of_mask:
        if any(size != 1 for size in of_mask):
            attn_mask = attn_mask.expand(*stacks, *attn_mask.shape[-3:])
        attn_mask = attn_mask.reshape(-1, *attn_mask.shape[-3:])
    query, key, value = (operand.flatten(0, -4) for operand in (query, key, value))
    attend = aten.scaled_dot_product_attention.default
    made = attend(query, key, value, attn_mask, *settings, **named)
    return aten.unflatten.int(made, 0, stacks)  # type: ignore[no-any-return]


_library: Any = torch.library.Library("hgpart", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "attention_of_stacks(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) "
    "-> Tensor"
)
_library.impl("attention_of_stacks", attention_of_stacks, "CompositeImplicitAutograd")


# ------------------------------------------------------------------ sums by letters


def einsum_as_product(equation: str, operands: Sequence[torch.Tensor], path: Any = None) -> Any:
    """A sum of two operands as a product of matrices, for tracing; else NotImplemented.

    Dimensions of both operands and of the result tell matrices apart, those that are summed are
    contracted, and the others are rows and columns.
    """
    terms, made = letters_of_einsum(equation, [operand.dim() for operand in operands])
    if len(terms) != 2 or any(len({*term}) < len(term) for term in (*terms, made)):
        return NotImplemented
    sizes: dict[str, Any] = {}
    for term, operand in zip(terms, operands, strict=True):
        for letter, size in zip(term, operand.shape, strict=True):
            if sizes.setdefault(letter, size) != size:  # a size of 1 that is repeated
                return NotImplemented
    pairs = [
        _summed_alone(*pair, made) for pair in zip(operands, terms, (*terms[::-1],), strict=True)
    ]
    (left, rows), (right, columns) = pairs
    both = [letter for letter in rows if letter in columns]
    apart = [letter for letter in both if letter in made]
    summed = [letter for letter in both if letter not in made]
    if len(columns) > len(rows):  # the smaller one is the matrix that the other is multiplied by
        (left, rows), (right, columns) = (right, columns), (left, rows)
    own_rows, own_columns = (
        [letter for letter in term if letter not in both] for term in (rows, columns)
    )
    left = _in_order(left, rows, apart, own_rows, summed)
    right = _in_order(right, columns, apart, summed, own_columns)
    first = len(apart)
    if not summed:
        shape = [*left.shape[:first], *left.shape[first:], *[1] * len(own_columns)]
        product = left.reshape(shape) * right.reshape(
            [*right.shape[:first], *[1] * len(own_rows), *right.shape[first:]]
        )
    else:
        left = _as_one(left, first + len(own_rows), len(summed))
        right = _as_one(_as_one(right, first + len(summed), len(own_columns)), first, len(summed))
        if apart or not own_rows:
            left = _as_one(left, first, len(own_rows))
        product = aten.matmul.default(left, right)
        product = product.reshape([sizes[letter] for letter in (*apart, *own_rows, *own_columns)])
    letters = [*apart, *own_rows, *own_columns]
    return product.permute([letters.index(letter) for letter in made])


def _summed_alone(
    operand: torch.Tensor, term: str, other: str, made: str
) -> tuple[torch.Tensor, str]:
    """An operand summed along the dimensions that nothing else has."""
    alone = [at for at, letter in enumerate(term) if letter not in other and letter not in made]
    kept = "".join(letter for at, letter in enumerate(term) if at not in alone)
    return (operand.sum(alone) if alone else operand), kept


def _in_order(operand: torch.Tensor, term: str, *groups: Sequence[str]) -> torch.Tensor:
    return operand.permute([term.index(letter) for group in groups for letter in group])


def _as_one(tensor: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Some dimensions next to each other as one, which has size 1 where there are none."""
    if count == 1:
        return tensor
    return tensor.flatten(first, first + count - 1) if count else tensor.unsqueeze(first)
