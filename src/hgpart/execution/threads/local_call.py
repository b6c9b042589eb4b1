"""Runtime of all parts + inputs -> LocalCall: a pass of all parts in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hgpart.execution.as_function import inputs_with_gradients, results_of
from hgpart.execution.runtime import Runtime


class LocalCall:
    """A pass of all parts; results are ordered by the share of the batch that they belong to."""

    def __init__(self, runtime: Runtime, values: Mapping[str, Any], in_grad_mode: bool) -> None:
        self._output_parts = runtime.output_parts
        self._pass = runtime.forward(values, 0, in_grad_mode)

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

    def backward(
        self, gradients: Sequence[Tensor | None], weights: bool
    ) -> Mapping[str, Tensor | None]:
        """Go back in all parts; the gradient of an input is the sum over parts that read it."""
        outputs = self._output_parts
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
    in_grad_mode, inputs = torch.is_grad_enabled(), inputs_with_gradients(values)
    if in_grad_mode and (inputs or _learns(runtime)):
        return results_of(LocalCall(runtime, values, in_grad_mode), inputs)
    with torch.no_grad():
        return LocalCall(runtime, values, in_grad_mode).taken_results()


def _learns(runtime: Runtime) -> bool:
    modules = (program.module for program in runtime.programs.values())
    parameters = chain.from_iterable(module.parameters() for module in modules)
    return any(parameter.requires_grad for parameter in parameters)
