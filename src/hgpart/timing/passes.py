"""A share of a layer, alone -> seconds of each pass, as a part's runtime goes through them."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from hgpart.execution.weights.gradients import add_map_gradients
from hgpart.timing.share_alone import ShareAlone
from hgpart.work.devices import wait_for


def clock_of(device: torch.device) -> Callable[[], float]:
    """A clock that waits until a device has done the work it was given, then tells the time."""
    if device.type == "cpu":
        return time.perf_counter

    def now() -> float:
        wait_for(device)
        return time.perf_counter()

    return now


class TimedShare:
    """A share of a layer with a batch of made-up operands, to be run repeatedly.

    The optimizer is plain gradient descent, by torch.

    Parameters
    ----------
    samples : int
        Samples in the batch.
    """

    def __init__(self, share: ShareAlone, samples: int, device: torch.device) -> None:
        self._module, self._now = share.step.module, clock_of(device)
        self._values = share.values(samples, device)
        self._leaves = [
            value for value in self._values if isinstance(value, Tensor) and value.requires_grad
        ]
        learning = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.SGD(learning, lr=0.0) if learning else None
        self._gradients: list[Tensor] = []  # of the results, the same in each run

    def run(self) -> tuple[float, ...]:
        """Run the share once; returns seconds of forward, maps, weights and update."""
        now = self._now
        begin = now()
        with torch.enable_grad():
            made = self._module(*self._values)
        forward = now() - begin
        outputs = made if isinstance(made, (tuple, list)) else (made,)
        heads = [get_gradient_edge(out) for out in outputs if out.requires_grad]
        if not heads:
            return forward, 0.0, 0.0, 0.0
        if not self._gradients:
            self._gradients = [torch.ones_like(out) for out in outputs if out.requires_grad]
        del made, outputs  # a runtime does not hold them either
        begin = now()
        left = add_map_gradients(heads, self._gradients, self._leaves)
        maps = now()
        for product in left:
            product.add()
        weights = now()
        if self._optimizer is not None:
            self._optimizer.step()
        end = now()
        for leaf in self._leaves:
            leaf.grad = None
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        return forward, maps - begin, weights - maps, end - weights
