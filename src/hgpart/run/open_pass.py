"""RunningPass + Together -> OpenPass: a process's forward pass, with a backward of its own.

Only the caller's autograd graph holds its results: other ranks learn of a gradient only by
`DistributedModel.backward`.
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
    """A forward pass of this process that a backward pass can follow.

    Parameters
    ----------
    result_ranks : sequence of int
        Ranks that make results.
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
        """Results for a loss; they are not kept here, because their graph refers to this pass."""
        return guarded(self._leaves, self._check)

    def backward(self, loss: Tensor | None) -> None:
        """Add to gradients, by a loss where results are; see `DistributedModel.backward`."""
        rank, makers = self._together.rank, self._makers
        if (rank in makers) != (loss is not None):
            result_ranks = f"rank{'s' * (len(makers) > 1)} {' and '.join(map(str, makers))}"
            raise ArgumentError(
                f"rank {rank} got {'no' if loss is None else 'a'} loss: accepted is one on "
                f"{result_ranks}, where results are, and None on the others"
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
        """Raise a RunError if results get gradients that other ranks do not know of.

        Only its own backward, of which there is one, sends gradients on to them.
        """
        if self._goes_back:
            return
        if self._together.is_passing:
            raise RunError(
                "the loss depends on the result of an earlier forward pass: accepted is a loss of "
                "the last pass in grad mode alone, whose backward comes before the next pass, or "
                "of one pass over both batches"
            )
        with self._together.whole_pass():
            raise RunError(
                "loss.backward() on the result of a DistributedModel does not reach other ranks: "
                "accepted is model.backward(loss), in all processes"
            )


def guarded(results: Sequence[Tensor], check: Callable[[], None]) -> tuple[Tensor, ...]:
    """Results whose gradients are checked before they are added.

    Parameters
    ----------
    results : sequence of Tensor
        Leaves that gradients are added to.
    check : callable
        Called before a gradient is added; raises an error if none may come.
    """
    checked: tuple[Tensor, ...] = _Guarded.apply(check, *results)  # type: ignore[no-untyped-call]
    return checked


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
