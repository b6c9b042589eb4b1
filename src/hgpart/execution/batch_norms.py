"""Batch norms over several tiles of the batch: the operations that steps call instead of the norm.

Each tile has a mean and a variance of its samples and rows; from these alone the statistics of
several tiles together follow (Chan, Golub and LeVeque, The American Statistician 37(3), 1983),
which then normalise all tiles. To the runtime statistics are maps like others, and autograd goes
through all of it: the gradients are those of one norm of the whole batch. Variances are biased. The
statistics of C channels are a tensor of shape (2, C): means, then variances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hgpart.errors import RunError
from hgpart.execution.as_function import first_order
from hgpart.execution.recomputation import notes_statistics

aten = torch.ops.aten


def statistics_of(operand: Tensor) -> Tensor:
    """Mean and variance of each channel (dimension 1).

    Raises
    ------
    RunError
        If the operand has 16 bits per element, too few to combine statistics.

    >>> statistics_of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    tensor([[2., 5.],
            [1., 0.]])
    """
    if operand.element_size() < 4:
        raise RunError(
            f"a norm over several slices or bands is given {operand.dtype}: accepted are float32 "
            "and float64"
        )
    statistics: Tensor = _Statistics.apply(operand)  # type: ignore[no-untyped-call]
    return statistics


def combined(
    pieces: Sequence[Tensor],
    places: Sequence[Tensor | None],
    members: Tensor,
    kinds: Tensor | None,
    samples: Sequence[int],
) -> Tensor:
    """Mean and variance over several pieces, channel by channel.

    Parameters
    ----------
    pieces : sequence of Tensor
        Statistics of each piece.
    places : sequence of Tensor or None
        Where the channels of each piece are in the result; None if it has all, in this order.
    members : int64 Tensor, flat, of shape (pieces, kinds, tiles)
        Whether a tile of the batch is in a piece, for each kind of channels.
    kinds : int64 Tensor, shape (channels,), or None
        Kind of each channel; None if there is only one kind.
    samples : sequence of int
        Samples of each tile, times its rows.

    >>> low, high = torch.tensor([[1.0], [0.0]]), torch.tensor([[5.0], [0.0]])
    >>> combined([low, high], [None, None], torch.tensor([1, 0, 0, 1]), None, [1, 3])
    tensor([[4.],
            [3.]])
    """
    channels = pieces[0].shape[1] if kinds is None else len(kinds)
    stacked = torch.stack(
        [
            piece if place is None else piece.new_zeros(2, channels).index_copy(1, place, piece)
            for piece, place in zip(pieces, places, strict=True)
        ]
    )
    of_tiles = torch.tensor(samples, device=members.device)
    counts = (members.view(len(pieces), -1, len(samples)) * of_tiles).sum(2)
    # Pieces may be of no rows at all: what they are combined into counts for nothing.
    weights = counts.to(stacked.dtype) / counts.sum(0).clamp(min=1)
    if kinds is not None:
        weights = weights[:, kinds]
    means, variances = stacked.unbind(1)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean).square())).sum(0)
    return torch.stack((mean, variance))


def normalised(
    operand: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise an operand with these statistics of each channel (dimension 1)."""
    output: Tensor = _Normalised.apply(operand, statistics, weight, bias, eps)  # type: ignore[no-untyped-call]
    return output


@torch.compiler.disable  # type: ignore[untyped-decorator]
def update_running(
    running_mean: Tensor,
    running_var: Tensor,
    statistics: Tensor,
    samples: Sequence[int],
    values: int,
    momentum: float,
) -> None:
    """Update running statistics as batch norm does, with the unbiased variance.

    Parameters
    ----------
    statistics : Tensor
        Statistics of the batch.
    samples : sequence of int
        Samples of each tile of the batch, times its rows.
    values : int
        Values per channel and sample, and row if rows are divided.
    """
    if not notes_statistics():
        return
    mean, variance = unbiased(statistics, sum(samples) * values)
    running_mean.lerp_(mean.to(running_mean), momentum)
    running_var.lerp_(variance.to(running_var), momentum)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def share_of_next(batches: Tensor) -> float:
    """Weight of the next batch in the mean over all batches, given the number of batches before it.

    >>> share_of_next(torch.tensor(3))
    0.25
    """
    return 1.0 if batches.is_meta else 1.0 / (float(batches) + 1)


def unbiased(statistics: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of `count` values."""
    mean, variance = statistics.detach()
    return mean, variance * (count / (count - 1))


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operand: Tensor) -> Tensor:
        if operand.device.type in ("cpu", "cuda"):
            mean, variance = aten.batch_norm_update_stats(operand, None, None, 0.0)
        else:
            dims = [dim for dim in range(operand.dim()) if dim != 1]
            variance, mean = torch.var_mean(operand, dims, correction=0)
        statistics = torch.stack((mean, variance)).to(operand.dtype)
        ctx.save_for_backward(operand, statistics)
        return statistics

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        operand, (mean, _) = ctx.saved_tensors
        scaled = gradient / (operand.numel() // operand.shape[1])
        slope = 2 * scaled[1]
        # Not slope * operand - slope * mean, which cancels where means are large.
        of_operand: Tensor = torch.addcmul(
            _of_channels(scaled[0], operand),
            operand - _of_channels(mean, operand),
            _of_channels(slope, operand),
        )
        return of_operand


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        operand: Tensor,
        statistics: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(operand, statistics, weight)
        ctx.eps = eps
        cudnn = torch.backends.cudnn.enabled
        mean, variance = statistics
        return torch.batch_norm(operand, weight, bias, mean, variance, False, 0.0, eps, cudnn)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        operand, statistics, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        mean, variance = statistics
        sums = any(wanted[1:4])
        # Torch 2.13 mistakes the layout of a sample that is a slice of a batch.
        if len(operand) == 1:
            gradient, operand = gradient.contiguous(), operand.contiguous()
        of_operand, of_weight, of_bias = aten.native_batch_norm_backward(
            gradient,
            operand,
            weight,
            mean,
            variance,
            None,
            None,
            False,
            ctx.eps,
            (wanted[0], sums, sums),
        )
        of_statistics = None
        if wanted[1]:
            scale = (variance + ctx.eps).rsqrt()
            slope = -scale if weight is None else -scale * weight
            of_statistics = torch.stack((slope * of_bias, slope * scale * of_weight / 2))
        return (
            of_operand if wanted[0] else None,
            of_statistics,
            of_weight if wanted[2] else None,
            of_bias if wanted[3] else None,
            None,
        )


def _of_channels(vector: Tensor, operand: Tensor) -> Tensor:
    return vector.view(1, -1, *[1] * (operand.dim() - 2))
