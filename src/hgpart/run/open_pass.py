"""RunningPass + Together -> OpenPass: a process's forward pass, with a backward of its own.

What it returns is in nobody's autograd graph but the caller's: other ranks hear of a gradient in
`DistributedModel.backward` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hgpart.errors import ArgumentError, RunError
from hgpart.execution.first_order import first_order, outputs_for
from hgpart.execution.runtime import RunningPass
from hgpart.placement.batches.micro_batches import check_loss
from hgpart.run.together import Together


class OpenPass:
    """A forward pass of this process, of which a backward pass is to go on.

    Parameters
    ----------
    forward : RunningPass
    together : Together
    result_ranks : sequence of int
        Those that make results.
    """

    def __init__(
        self, forward: RunningPass, together: Together, result_ranks: Sequence[int]
    ) -> None:
        self._forward, self._together = forward, together
        self._makers = sorted({*result_ranks})
        (step,) = forward.runs.values()
        self._leaves: tuple[Tensor, ...] = step.results.pop(0, ())
        self._goes_back = False

    def results(self) -> tuple[Tensor, ...]:
        """What a loss can be computed from; it is not kept here, as its graph has this pass."""
        return guarded(self._leaves, self._check)

    def backward(self, loss: Tensor | None) -> None:
        """Add to gradients, where results are by a loss; see `DistributedModel.backward`."""
        rank, makers = self._together.rank, self._makers
        if (rank in makers) != (loss is not None):
            said = f"rank{'s' * (len(makers) > 1)} {' and '.join(map(str, makers))}"
            raise ArgumentError(
                f"rank {rank} got {'no' if loss is None else 'a'} loss: accepted is one on "
                f"{said}, where results are, and None on the others"
            )
        if loss is not None:
            check_loss(loss, any(leaf.requires_grad for leaf in self._leaves))
            self._goes_back = True
            try:
                if loss.requires_grad:
                    loss.backward()  # type: ignore[no-untyped-call]
            finally:
                self._goes_back = False
        gradients = [leaf.grad for leaf in self._leaves]
        self._forward.backward({rank: gradients} if rank in makers else {})

    def _check(self) -> None:
        """Raise a RunError if results get gradients that others know nothing of.

        They go on to the other ranks in its own backward alone, of which there is one.
        """
        if self._goes_back:
            return
        if self._together.is_passing:
            raise RunError(
                "a loss of what an earlier forward pass returned: accepted is one of the last pass "
                "in grad mode alone, whose backward comes before the next pass, or of one pass of "
                "both batches"
            )
        with self._together.whole_pass():
            raise RunError(
                "loss.backward() of what a DistributedModel returned, of which other ranks do not "
                "hear: accepted is model.backward(loss), in all processes"
            )


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
        return outputs_for(ctx, results)

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.check()
        return None, *gradients
