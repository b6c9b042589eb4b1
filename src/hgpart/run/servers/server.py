"""Gradients that workers push -> updated weights, which they fetch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Any

import torch
from torch import Tensor, nn

from hgpart.errors import RunError
from hgpart.run.servers.serving import Serving

Update = Callable[..., Any]  # called with a part and a step: updates it, returns the step's rate
TICK = torch.zeros(1)  # what is sent where nothing is, to say that a step is done


class Server:
    """Some parameters, and what the workers have pushed of them; a thread for each calls this.

    Parameters
    ----------
    part : int
        What `Update` calls these parameters.

    Attributes
    ----------
    parameters : sequence of nn.Parameter
        The parameters, with the weights of all updates so far.
    staleness : list of list of int
        For each worker, and each of its pushes in the present row of steps, the number of updates
        that its gradients lacked.
    busy : float
        Seconds of updates in these steps.
    """

    def __init__(
        self, part: int, parameters: Sequence[nn.Parameter], serving: Serving, workers: int
    ) -> None:
        self.part, self.parameters, self._serving = part, parameters, serving
        self.staleness: list[list[int]] = [[] for _ in range(workers)]
        self.busy = 0.0
        self._done, self._fetched = [0] * workers, [0] * workers
        self._updates, self._failed = 0, False
        self._pushed: dict[int, Tensor] = {}
        self._changed = Condition()
        self._update: Update = lambda part, step: None

    def begin(self, update: Update) -> None:
        """Begin a row of steps."""
        self._update, self.busy = update, 0.0
        for of_worker in self.staleness:
            of_worker.clear()

    def push(self, worker: int, step: int, last: bool, body: Tensor) -> None:
        """Take what a worker sends after a step, the last of its row or not.

        All gradients of a step of synchronous servers are added up in the order of the workers,
        whoever is first, so that equal trainings have equal bits.
        """
        with self._changed:
            if self._serving.waits_for_all:
                self._pushed[worker] = body
                if len(self._pushed) == len(self._done):
                    first, *others = (self._pushed.pop(rank) for rank in range(len(self._done)))
                    for other in others:
                        first += other
                    self._learn(first, step)
            elif self._serving.pushes(step, last):
                self.staleness[worker].append(self._updates - self._fetched[worker])
                self._learn(body, step)
            self._done[worker] = step + 1
            self._changed.notify_all()

    def _learn(self, gradients: Tensor, step: int) -> None:
        start = time.perf_counter()
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, torch.split(gradients, sizes), strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype)
        self._update(self.part, step)
        for parameter in self.parameters:
            parameter.grad = None
        self._updates += 1
        self.busy += time.perf_counter() - start

    def answer(self, worker: int, step: int, last: bool) -> Tensor:
        """What a worker is sent behind a step, when all have done what it must wait for.

        Raises
        ------
        RunError
            If this process fails meanwhile.
        """
        least = self._serving.least_done(step, last)
        with self._changed:
            self._changed.wait_for(lambda: self._failed or min(self._done) >= least)
            if self._failed:
                raise RunError("the training has ended")
            if not self._serving.fetches(step, last):
                return TICK
            self._fetched[worker] = self._updates
            return flat(self.parameters)

    def fail(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """A copy of all their numbers, on the CPU, in one row.

    >>> flat([torch.zeros(2, 1), torch.ones(2)])
    tensor([0., 0., 1., 1.])
    """
    return torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors])
