"""Model -> LBFGS: torch's L-BFGS, whose products go over the parameters of all processes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from hgpart.run.distributed import in_processes


class LBFGS(torch.optim.LBFGS):
    """L-BFGS for a model in processes, which all take the steps of one.

    Each process keeps the history of all gradients, as the whole model's optimizer does, and
    changes its own parameters.

    Parameters
    ----------
    model : nn.Module
        Any module, a `Placement`, or a `DistributedModel`, for which all processes call ``step``.
        Its closure returns a loss, which may be a stand-in.
    options
        Options of torch's.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> optimizer = LBFGS(model, line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (model.weight - 3).square().sum()
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure) > 0, round(model.weight.item(), 4)
    (tensor(True), 3.0)
    """

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self._model = in_processes(model)
        learned = [weight for weight in model.parameters() if weight.requires_grad]
        if not learned and self._model is not None:  # state belongs to the first parameter
            dtype, device = self._model.placement.dtype, self._model.connection.device
            learned = [nn.Parameter(torch.empty(0, dtype=dtype, device=device))]
        super().__init__(learned, **options)
        own = sum(weight.numel() for weight in learned)
        counts = [own] if self._model is None else self._model.connection.gather(own)
        rank = 0 if self._model is None else self._model.connection.rank
        ends = [*accumulate(counts, initial=0)]
        self._own, self._count = slice(ends[rank], ends[rank + 1]), ends[-1]

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Take a step; the closure computes a loss and its gradients, as torch's."""

        def known() -> Any:
            loss = closure()
            return loss if self._model is None else self._model.value(loss)

        return super().step(known)  # type: ignore[no-untyped-call]

    def _gather_flat_grad(self) -> Tensor:
        own: Tensor = super()._gather_flat_grad()  # type: ignore[no-untyped-call]
        if self._model is None:
            return own
        whole = own.new_zeros(self._count)
        whole[self._own] = own
        return self._model.connection.sum_of(whole)

    def _add_grad(self, step_size: Any, update: Tensor) -> None:
        super()._add_grad(step_size, update[self._own])
