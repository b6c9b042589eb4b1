"""Products: convolutions, products with a matrix, products of many matrices, and attention.

The weight of the first two has a slice for each task; the others work matrix by matrix.
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
    Whole,
    alone,
    has_slices,
)
from hgpart.operators.ids import NO_CHANNEL, constant_along, in_order, mix_all
from hgpart.operators.samples import convolution, product_of_matrices

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

        A product of many matrices works matrix by matrix.
        """
        value, weight, bias = map(call.argument, (self.operand, self.weight, self.bias))
        if not alone(value, call) or (self.is_matrix and len(weight.shape) != 2):
            return matrix_by_matrix(call, value, weight, bias) if self.multiplies_maps else Whole()
        ids, rows, groups = value.ids, self.rows(call), call.argument("groups", 1)
        axis = len(call.shape) + 1 - len(weight.shape)  # 0 where there is no batch
        features = ids.dim() + 1 - len(weight.shape)
        tasks = call.shape[axis]
        if not has_slices(weight, rows, tasks):
            return Whole()
        along = in_order(ids, features)
        if groups == 1:
            channels, sizes = mix_all(ids)
        elif along is not None:
            channels, sizes = along, np.ones_like(along)
        else:
            return Whole()
        slices = {self.weight: rows, self.bias: -1}
        if rows == 1 and groups > 1:  # then the weight counts the tasks within each group
            del slices[self.weight]
        return Mix(
            channels,
            sizes,
            groups,
            axis,
            # Each channel has columns of its own, unless the weight was computed by row.
            partial=along is not None
            and not (weight.origins and weight.computed)
            and bool((along != NO_CHANNEL).all()),
            shared=_shared_bias(bias, tasks),
            slices=slices,
        )

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


def _at_places(numbers: torch.Tensor, call: Call) -> torch.Tensor:
    """Numbers of a tensor's elements, with all places of a call's result.

    Heads may share keys and values: as many heads, next to each other, as each of these has.
    """
    if numbers.dim() > 2 and numbers.shape[-3] not in (1, call.shape[-3]):
        numbers = numbers.repeat_interleave(call.shape[-3] // numbers.shape[-3], -3)
    return numbers.expand(*call.shape[:-2], *numbers.shape[-2:])


def batched_product(call: Call) -> Effect:
    """Products of many matrices; what is added to them may come first."""
    added = call.argument("self") if call.argument("batch1") is not None else None
    left = call.argument("self") if added is None else call.argument("batch1")
    return matrix_by_matrix(call, left, call.argument("mat2", call.argument("batch2")), added)


def attention_with_dropout(
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
    """An attention as its products, softmax and dropout, for tracing; NotImplemented without any.

    They are those that torch itself computes on a CPU, in the same order: dropout drops the same.
    """
    if dropout_p == 0:
        return NotImplemented
    if enable_gqa:
        key, value = (
            shared.repeat_interleave(query.shape[-3] // shared.shape[-3], -3)
            for shared in (key, value)
        )
    factor = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    weights = torch.matmul(query * factor, (key * factor).transpose(-2, -1))
    if is_causal:
        attn_mask = torch.ones(weights.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is None:
        weights = weights.softmax(-1)
    else:
        if attn_mask.dtype == torch.bool:
            weights = weights.masked_fill(~attn_mask, -math.inf)
        else:
            weights = weights + attn_mask
        weights = aten._safe_softmax(weights, -1)
    return torch.matmul(aten.native_dropout(weights, dropout_p, True)[0], value)


def attention(call: Call) -> Effect:
    """An attention of each head; several heads may share keys and values."""
    return matrix_by_matrix(call, *map(call.argument, ("query", "key", "value", "attn_mask")))
