"""CalledPass + inputs -> results that take part in the caller's autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor

from hgpart.execution.first_order import first_order, outputs_for
from hgpart.execution.runtime import Runtime


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


def learns(runtime: Runtime) -> bool:
    """Whether a parameter of the parts in this process requires gradients."""
    modules = (program.module for program in runtime.programs.values())
    parameters = chain.from_iterable(module.parameters() for module in modules)
    return any(parameter.requires_grad for parameter in parameters)


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
