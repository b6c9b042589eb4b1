"""Norms over channels as two operators: statistics of the channels, and what is done with them.

A layer norm, RMS norm or group norm of many channels is traced as `layer_statistics` or
`group_statistics`, and `normalised`. The latter works channel by channel. Of the former, each part
can compute what its own channels add: then a few numbers per place travel, not the maps.

The statistics of a place are its mean and (biased) variance, or its mean square alone, in the last
dimension of a tensor. They are of 32 bits at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# Mean and variance, to the part that combines them and back: norms of no more channels than these
# numbers stay what they are, as the maps themselves are no more.
NUMBERS_A_PLACE = 4

# ------------------------------------------------------------------ the operators


@torch.library.custom_op("hgpart::layer_statistics", mutates_args=())
def layer_statistics(operand: Tensor, dims: int, centred: bool) -> Tensor:
    """Statistics along the last `dims` dimensions, which are kept: mean and variance.

    If they are not `centred`, the mean square.
    """
    return _statistics(operand, range(-dims, 0), centred)


@torch.library.custom_op("hgpart::group_statistics", mutates_args=())
def group_statistics(operand: Tensor, groups: int) -> Tensor:
    """Mean and variance of each group of channels (dimension 1), for each sample."""
    return _grouped_statistics(operand, groups)


@torch.library.custom_op("hgpart::normalised", mutates_args=())
def normalised(
    operand: Tensor,
    mean: Tensor | None,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalise an operand by statistics that broadcast to it, then scale and shift it."""
    result = operand.to(variance.dtype)
    result = (result if mean is None else result - mean) * (variance + eps).rsqrt()
    if weight is not None and bias is not None:
        result = torch.addcmul(bias, result, weight)
    elif weight is not None:
        result = result * weight
    elif bias is not None:
        result = result + bias
    return result.to(operand.dtype)


def _statistics(operand: Tensor, dims: Sequence[int], centred: bool) -> Tensor:
    operand = operand.to(_type_of_statistics(operand))
    if not centred:
        return operand.square().mean([*dims], keepdim=True).unsqueeze(-1)
    mean = operand.mean([*dims], keepdim=True)
    # var_mean goes through the operand once, and takes ten times as long on a CPU.
    variance = (operand - mean).square().mean([*dims], keepdim=True)
    return torch.stack((mean, variance), -1)


def _grouped_statistics(operand: Tensor, groups: int) -> Tensor:
    apart = operand.unflatten(1, (groups, -1))  # type: ignore[no-untyped-call]
    return _statistics(apart, range(2, apart.dim()), True).squeeze(2)


def _type_of_statistics(operand: Tensor) -> torch.dtype:
    return torch.promote_types(operand.dtype, torch.float32)


@layer_statistics.register_fake
def _(operand: Tensor, dims: int, centred: bool) -> Tensor:
    shape = (*operand.shape[:-dims], *[1] * dims, 2 if centred else 1)
    return operand.new_empty(shape, dtype=_type_of_statistics(operand))


@group_statistics.register_fake
def _(operand: Tensor, groups: int) -> Tensor:
    shape = (operand.shape[0], groups, *[1] * (operand.dim() - 2), 2)
    return operand.new_empty(shape, dtype=_type_of_statistics(operand))


@normalised.register_fake
def _(
    operand: Tensor,
    mean: Tensor | None,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    return torch.empty_like(operand)


# What operators compute, in operators of torch alone: for programs that run without hgpart.
AS_TORCH: Mapping[Any, Callable[..., Tensor]] = {
    operator._opoverload: operator._init_fn
    for operator in (layer_statistics, group_statistics, normalised)
}

# ------------------------------------------------------------------ statistics of parts


def combined_channels(pieces: Sequence[Tensor], counts: Tensor, axis: int, tasks: int) -> Tensor:
    """Statistics of all channels, from those of some channels each.

    They are means and variances in the last dimension (Chan, Golub and LeVeque, The American
    Statistician 37(3), 1983), or mean squares alone.

    Parameters
    ----------
    counts : int64 Tensor, flat, of shape (pieces, tasks)
        Channels in each piece.
    axis : int
        Dimension of the pieces that counts the tasks.

    >>> low, high = torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0, 0.0]])
    >>> combined_channels([low, high], torch.tensor([1, 3]), 0, 1)
    tensor([[4., 3.]])
    """
    stacked = torch.stack([*pieces])
    by_piece = counts.view(len(pieces), tasks).to(stacked.dtype)
    shape = [1] * stacked.dim()
    shape[0], shape[1 + axis] = len(pieces), tasks
    weights = (by_piece / by_piece.sum(0)).view(shape)
    if stacked.shape[-1] == 1:
        return (weights * stacked).sum(0)
    weights = weights[..., 0]
    means, variances = stacked.unbind(-1)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean).square())).sum(0)
    return torch.stack((mean, variance), -1)


# ------------------------------------------------------------------ gradients of the operators


def _keep_operand(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)
    ctx.given = inputs[1:]


def _back_to_layer(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    operand, statistics = ctx.saved_tensors
    dims, centred = ctx.given
    return _to_operand(operand, statistics, gradient, range(-dims, 0), centred), None, None


def _back_to_groups(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    operand, statistics = ctx.saved_tensors
    apart = operand.unflatten(1, (ctx.given[0], -1))
    dims = range(2, apart.dim())
    given = (statistics.unsqueeze(2), gradient.unsqueeze(2))
    return _to_operand(apart, *given, dims, True).flatten(1, 2), None


def _to_operand(
    operand: Tensor, statistics: Tensor, gradient: Tensor, dims: Sequence[int], centred: bool
) -> Tensor:
    """The gradient of what statistics along some dimensions are of."""
    scaled = gradient / math.prod(operand.shape[dim] for dim in dims)
    values = operand.to(statistics.dtype)
    if not centred:
        result = 2 * values * scaled[..., 0]
    else:
        # Not the slope times the operand less that times the mean, which cancels for large means.
        apart = values - statistics[..., 0]
        result = torch.addcmul(scaled[..., 0], apart, 2 * scaled[..., 1])
    return result.to(operand.dtype)


def _keep_all(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _back_from_normalised(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    operand, mean, variance, weight, bias = ctx.saved_tensors
    needs = ctx.needs_input_grad
    gradient = gradient.to(variance.dtype)
    scale = (variance + ctx.eps).rsqrt()
    unit = operand.to(variance.dtype)
    unit = (unit if mean is None else unit - mean) * scale
    of_unit = gradient if weight is None else gradient * weight
    of_operand = of_unit * scale

    def reduced(needed: bool, like: Tensor | None, of: Tensor) -> Tensor | None:
        if not needed or like is None:
            return None
        return of.sum_to_size(like.shape).to(like.dtype)

    return (
        of_operand.to(operand.dtype) if needs[0] else None,
        reduced(needs[1], mean, -of_operand),
        reduced(needs[2], variance, of_operand * unit * scale / -2) if needs[2] else None,
        reduced(needs[3], weight, gradient * unit) if needs[3] else None,
        reduced(needs[4], bias, gradient),
        None,
    )


layer_statistics.register_autograd(_back_to_layer, setup_context=_keep_operand)
group_statistics.register_autograd(_back_to_groups, setup_context=_keep_operand)
normalised.register_autograd(_back_from_normalised, setup_context=_keep_all)
for _operator in (layer_statistics, group_statistics, normalised):  # as autocast does with norms
    _operator.register_autocast("cuda", torch.float32)


# ------------------------------------------------------------------ how norms are traced


def layer_norm(
    value: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    """A layer norm as two operators, for tracing; NotImplemented for few elements."""
    if math.prod(normalized_shape) <= NUMBERS_A_PLACE:
        return NotImplemented
    mean, variance = layer_statistics(value, len(normalized_shape), True).unbind(-1)
    return normalised(value, mean, variance, weight, bias, eps)


def rms_norm(
    value: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    """An RMS norm as two operators, for tracing; NotImplemented for few elements."""
    if math.prod(normalized_shape) <= NUMBERS_A_PLACE:
        return NotImplemented
    square = layer_statistics(value, len(normalized_shape), False).select(-1, 0)
    eps = torch.finfo(value.dtype).eps if eps is None else eps
    return normalised(value, None, square, weight, None, eps)


def group_norm(
    value: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """A group norm as two operators, for tracing; NotImplemented for few channels in a group."""
    size = value.shape[1] // num_groups
    if size <= NUMBERS_A_PLACE:
        return NotImplemented
    of_groups = group_statistics(value, num_groups).unbind(-1)
    mean, variance = (numbers.repeat_interleave(size, 1) for numbers in of_groups)
    shape = [-1, *[1] * (value.dim() - 2)]
    vectors = (None if vector is None else vector.view(shape) for vector in (weight, bias))
    return normalised(value, mean, variance, *vectors, eps)
