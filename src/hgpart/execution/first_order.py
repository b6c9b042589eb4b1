"""autograd.Functions whose backward passes have no derivatives, and say so.

torch's `once_differentiable` says so only where the incoming gradient requires one. A second
backward pass that begins from constants, as a gradient penalty's does, would find nothing and go
on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from hgpart.errors import PlacementError

R = TypeVar("R")


def first_order(backward: Callable[..., R]) -> Callable[..., R]:
    """Let a backward pass raise a PlacementError under ``create_graph=True``.

    Grad mode in a backward pass means just that: a graph of the gradients is wanted.
    """

    @wraps(backward)
    def checked(*args: object) -> R:
        if torch.is_grad_enabled():
            raise PlacementError(
                "a backward pass with create_graph=True: a placement has no second derivatives, as "
                "gradient penalties need; accepted are backward passes without it, or the model "
                "itself"
            )
        return backward(*args)

    return checked


def outputs_for(ctx: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Outputs of a function for leaves; its backward gives leaves that require it a gradient."""
    ctx.set_materialize_grads(False)
    outputs = tuple(leaf.detach() for leaf in leaves)
    pairs = zip(leaves, outputs, strict=True)
    ctx.mark_non_differentiable(*(out for leaf, out in pairs if not leaf.requires_grad))
    return outputs
