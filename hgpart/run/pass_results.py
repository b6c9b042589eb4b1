"""Results of a forward pass -> the same, whose gradients come by that pass's own backward alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hgpart.execution.first_order import first_order


def guarded(results: Sequence[Tensor], check: Callable[[], None]) -> tuple[Tensor, ...]:
    """What a loss can be computed from.

    Parameters
    ----------
    results : sequence of Tensor
        Leaves, which gradients are added to.
    check : callable
        Called before a gradient is; raises an error where none may come.
    """
    found: tuple[Tensor, ...] = _Guarded.apply(check, *results)  # type: ignore[no-untyped-call]
    return found


class _Guarded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, check: Callable[[], None], *results: Tensor) -> tuple[Tensor, ...]:
        ctx.check = check
        ctx.set_materialize_grads(False)
        outputs = tuple(result.detach() for result in results)
        pairs = zip(results, outputs, strict=True)
        ctx.mark_non_differentiable(*(out for leaf, out in pairs if not leaf.requires_grad))
        return outputs

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.check()
        return None, *gradients
