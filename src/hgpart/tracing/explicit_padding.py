"""Convolutions whose padding is a word -> the same, padding by numbers.

Of an even kernel, ``padding="same"`` pads a row more behind than in front. A convolution can't, so
zeros are added first, as in torch's own implementation: in a graph it is a pad and a convolution,
which parts can cut like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _padding_by_numbers(convolve: Any) -> Callable[..., Tensor]:
    def convolution(
        value: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sequence[int] = (1,),
        padding: str = "valid",
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> Tensor:
        sizes = weight.shape[2:]
        dilations = [*dilation] * (len(sizes) // len(dilation))
        padded = [
            apart * (size - 1) if padding == "same" else 0
            for size, apart in zip(sizes, dilations, strict=True)
        ]
        if any(rows % 2 for rows in padded):
            behind = [width for rows in reversed(padded) for width in (0, rows % 2)]
            value = aten.constant_pad_nd(value, behind)
        result: Tensor = convolve(
            value, weight, bias, stride, [rows // 2 for rows in padded], dilation, groups
        )
        return result

    return convolution


# Decompositions, as `torch.export` takes them.
EXPLICIT: Mapping[Any, Callable[..., Tensor]] = {
    aten.conv1d.padding: _padding_by_numbers(aten.conv1d),
    aten.conv2d.padding: _padding_by_numbers(aten.conv2d),
    aten.conv3d.padding: _padding_by_numbers(aten.conv3d),
}
