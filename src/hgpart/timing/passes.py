"""A share of a layer, on its own -> seconds of each pass, as a part's runtime goes through them."""

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
    """A clock that shows when a device has done what it was given before."""
    if device.type == "cpu":
        return time.perf_counter

    def now() -> float:
        wait_for(device)
        return time.perf_counter()

    return now


class TimedShare:
    """A share of a layer on one batch of made up operands, to be run again and again.

    The optimizer is plain gradient descent, by torch.

    Parameters
    ----------
    share : ShareAlone
    samples : int
        Of the batch.
    device : torch.device
    """

    def __init__(self, share: ShareAlone, samples: int, device: torch.device) -> None:
        self._module, self._now = share.step.module, clock_of(device)
        self._values = share.values(samples, device)
        self._leaves = [
            value for value in self._values if isinstance(value, Tensor) and value.requires_grad
        ]
        learning = [one for one in self._module.parameters() if one.requires_grad]
        self._optimizer = torch.optim.SGD(learning, lr=0.0) if learning else None
        self._gradients: list[Tensor] = []  # of its results, the same in each run

    def run(self) -> tuple[float, ...]:
        """Go through it once; seconds of forward, maps, weights and update."""
        now = self._now
        begin = now()
        with torch.enable_grad():
            made = self._module(*self._values)
        forward = now() - begin
        outputs = made if isinstance(made, (tuple, list)) else (made,)
        heads = [get_gradient_edge(one) for one in outputs if one.requires_grad]
        if not heads:
            return forward, 0.0, 0.0, 0.0
        if not self._gradients:
            self._gradients = [torch.ones_like(one) for one in outputs if one.requires_grad]
        del made, outputs  # no one holds them in a runtime
        begin = now()
        left = add_map_gradients(heads, self._gradients, self._leaves)
        maps = now()
        for one in left:
            one.add()
        weights = now()
        if self._optimizer is not None:
            self._optimizer.step()
        end = now()
        for leaf in self._leaves:
            leaf.grad = None
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        return forward, maps - begin, weights - maps, end - weights
