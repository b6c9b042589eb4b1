"""Shape, type -> a tensor to compute with, whose numbers take no longer than real ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hgpart.operators.calls import has_gradients


def drawn(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers from 0 to 1, so that roots and variances are valid; integers, indices, are 0."""
    draw = torch.rand if has_gradients(dtype) else torch.zeros
    return draw(tuple(shape), dtype=dtype, device=device)


def weight(like: Tensor) -> Tensor:
    """A weight that leaves maps about as large as they are; vectors are 1.

    Maps that become smaller layer by layer would end as numbers so near 0 that they take longer.
    Integers stay as they are, unless they are on the meta device.
    """
    if not has_gradients(like.dtype):
        return torch.zeros(like.shape, dtype=like.dtype) if like.is_meta else like
    made = torch.ones(like.shape, dtype=like.dtype)
    if like.dim() > 1:
        made.normal_(0.0, (2 * len(like) / max(1, like.numel())) ** 0.5)
    return made
