"""Runtime + inputs -> results that take part in the caller's autograd."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hgpart.execution.first_order import first_order, outputs_for
from hgpart.execution.runtime import Runtime


class _Call:
    """A pass of all parts; results are ordered by the share of the batch that they belong to."""

    def __init__(self, runtime: Runtime, values: Mapping[str, Any], learns: bool) -> None:
        self._output_parts = runtime.output_parts
        self._pass = runtime.forward(values, 0, learns)
        self.gradients: tuple[Tensor | None, ...] = ()

    def taken_results(self) -> tuple[Tensor, ...]:
        """Take the results out of the parts' runs, in the order of the shares."""
        outputs, runs = self._output_parts, self._pass.runs
        results = {part: runs[part].results.pop(0) for part in {*outputs}}
        by_part = {part: iter(tensors) for part, tensors in results.items()}
        return tuple(
            next(by_part[part])
            for part in outputs
            for _ in range(len(results[part]) // outputs.count(part))
        )

    def backward(self, weights: bool) -> dict[str, Tensor | None]:
        """Go back with the gradients of the results; return the gradients of inputs."""
        outputs, gradients = self._output_parts, self.gradients
        count = len(gradients) // len(outputs)
        by_part: dict[int, list[Tensor | None]] = {part: [] for part in outputs}
        for share, part in enumerate(outputs):
            by_part[part] += gradients[share * count : (share + 1) * count]
        self._pass.backward(by_part, weights)
        total: dict[str, Tensor | None] = {}
        runs = self._pass.runs.values()
        for name, gradient in chain.from_iterable(run.input_gradients.items() for run in runs):
            so_far = total.get(name)
            if so_far is not None and gradient is not None:
                gradient = so_far + gradient.to(so_far.device)
            total[name] = so_far if gradient is None else gradient
        return total


def called(runtime: Runtime, values: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Run several parts; the results are those of `LocalRuntime.run`."""
    learns = torch.is_grad_enabled()
    if not learns or not _requires(runtime, values):
        with torch.no_grad():
            return _Call(runtime, values, learns).taken_results()
    call = _Call(runtime, values, learns)
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    inputs = {name: value for name, value in tensors.items() if value.requires_grad}
    start = torch.empty((), requires_grad=True)
    token = _Forward.apply(call, tuple(inputs), start, *inputs.values())  # type: ignore[no-untyped-call]
    results: tuple[Tensor, ...] = _Results.apply(call, token)  # type: ignore[no-untyped-call]
    return results


def _requires(runtime: Runtime, values: Mapping[str, Any]) -> bool:
    programs = runtime.programs.values()
    parameters = chain.from_iterable(program.module.parameters() for program in programs)
    tensors = (value for value in values.values() if isinstance(value, Tensor))
    return any(tensor.requires_grad for tensor in chain(tensors, parameters))


# Two functions, because of GPUs: autograd runs the backward of `_Results` in the thread of the
# results' device. If it waited for the parts there, their own backward could not use that thread.
# `_Forward` returns a token on the CPU, so its backward runs in the caller's thread.


class _Forward(torch.autograd.Function):
    """Inputs -> a token that stands for the results."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, names: tuple[str, ...], start: Tensor, *inputs: Tensor
    ) -> Tensor:
        ctx.call, ctx.names = call, names
        ctx.devices = [tensor.device for tensor in inputs]
        return torch.zeros_like(start)

    @staticmethod
    @first_order
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:
        # `start` stands for the parameters: torch.autograd.grad of inputs leaves it out.
        weights = torch._C._will_engine_execute_node(ctx.next_functions[0][0])
        gradients = ctx.call.backward(weights)
        ctx.call.gradients = ()
        by_name = (gradients.get(name) for name in ctx.names)
        pairs = zip(by_name, ctx.devices, strict=True)
        to_inputs = (
            None if gradient is None else gradient.to(device) for gradient, device in pairs
        )
        return (None, None, None, *to_inputs)


class _Results(torch.autograd.Function):
    """A token -> the results."""

    @staticmethod
    def forward(ctx: Any, call: _Call, token: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        return outputs_for(ctx, call.taken_results())

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, Tensor]:
        ctx.call.gradients = gradients
        return None, torch.zeros(())
