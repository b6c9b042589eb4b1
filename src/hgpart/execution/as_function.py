"""CalledPass + inputs -> results that take part in the caller's autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from hgpart.errors import PlacementError

R = TypeVar("R")


class CalledPass(Protocol):
    """A forward pass that was called like a function, in grad mode."""

    def taken_results(self) -> tuple[Tensor, ...]:
        """Results of the pass, which keeps them no longer; asked for once."""

    def backward(
        self, gradients: Sequence[Tensor | None], weights: bool
    ) -> Mapping[str, Tensor | None]:
        """Go back with the gradients of the results; return the gradients of inputs by name.

        Without `weights`, parameters get no gradients.
        """


def results_of(call: CalledPass, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Results whose backward pass is that of the call.

    Parameters
    ----------
    inputs : mapping of str to Tensor
        Inputs that get gradients, by name.
    """
    start, gradients = torch.empty((), requires_grad=True), list[Sequence[Tensor | None]]()
    token = _Forward.apply(call, gradients, (*inputs,), start, *inputs.values())  # type: ignore[no-untyped-call]
    results: tuple[Tensor, ...] = _Results.apply(call, gradients, token)  # type: ignore[no-untyped-call]
    return results


def inputs_with_gradients(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors among values that require gradients."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}


def first_order(backward: Callable[..., R]) -> Callable[..., R]:
    """Let a backward pass raise a PlacementError under ``create_graph=True``.

    Grad mode in a backward pass means just that: a graph of the gradients is wanted. torch's
    `once_differentiable` says so only where the incoming gradient requires one. A second backward
    pass that begins from constants, as a gradient penalty's does, would find nothing and go on.
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


# Two functions, because of GPUs: autograd runs the backward of `_Results` in the thread of the
# results' device. If it waited for the parts there, their own backward could not use that thread.
# `_Forward` returns a token on the CPU, so its backward runs in the caller's thread.


class _Forward(torch.autograd.Function):
    """Inputs -> a token that stands for the results."""

    @staticmethod
    def forward(
        ctx: Any,
        call: CalledPass,
        gradients: list[Sequence[Tensor | None]],
        names: tuple[str, ...],
        start: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        ctx.call, ctx.gradients, ctx.names = call, gradients, names
        ctx.devices = [tensor.device for tensor in inputs]
        return torch.zeros_like(start)

    @staticmethod
    @first_order
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:
        # `start` stands for the parameters: torch.autograd.grad of inputs leaves it out.
        weights = torch._C._will_engine_execute_node(ctx.next_functions[0][0])
        by_input = ctx.call.backward(ctx.gradients.pop(), weights)
        pairs = zip(map(by_input.get, ctx.names), ctx.devices, strict=True)
        to_inputs = (
            None if gradient is None else gradient.to(device) for gradient, device in pairs
        )
        return (None, None, None, None, *to_inputs)


class _Results(torch.autograd.Function):
    """A token -> the results."""

    @staticmethod
    def forward(
        ctx: Any, call: CalledPass, gradients: list[Sequence[Tensor | None]], token: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.gradients = gradients
        return outputs_for(ctx, call.taken_results())

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None, Tensor]:
        ctx.gradients.append(gradients)
        return None, None, torch.zeros(())
