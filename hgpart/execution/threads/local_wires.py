"""Queues between threads: what parts of one process send each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from hgpart.execution.transfers import Transfer


class StoppedError(Exception):
    """Another part failed: there is nothing to wait for any more."""


class LocalWires:
    """All transfers of one batch between the threads of one process: a `Wire` for each of them.

    Parameters
    ----------
    devices : sequence of torch.device
        Of each part.
    numbers : collection of int
        Of the transfers.
    """

    def __init__(self, devices: Sequence[torch.device], numbers: Collection[int]) -> None:
        self._devices = devices
        self._maps: dict[int, SimpleQueue[Any]] = {number: SimpleQueue() for number in numbers}
        self._gradients: dict[int, SimpleQueue[Any]] = {number: SimpleQueue() for number in numbers}
        self._stopped = False

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let tensors depart."""
        self._put(self._maps[transfer.number], tensors, self._devices[transfer.receiver])

    def receive(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for what the sender sent."""
        return self._get(self._maps[transfer.number], self._devices[transfer.receiver])

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let a gradient depart for the sender."""
        self._put(self._gradients[transfer.number], tensors, self._devices[transfer.sender])

    def receive_gradient(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for the receiver's gradient."""
        return self._get(self._gradients[transfer.number], self._devices[transfer.sender])

    def stop(self) -> None:
        """Wake all that wait and let none wait again."""
        self._stopped = True
        for queue in chain(self._maps.values(), self._gradients.values()):
            queue.put(None)

    def _put(
        self, queue: SimpleQueue[Any], tensors: Sequence[Tensor], device: torch.device
    ) -> None:
        self._check()
        tensors = [tensor.contiguous() for tensor in tensors]  # as they arrive in processes
        if device.type != "cpu":  # a copy to a CPU waits, so whoever needs it makes it
            tensors = [tensor.to(device, non_blocking=True) for tensor in tensors]
        queue.put(tensors)

    def _get(self, queue: SimpleQueue[Any], device: torch.device) -> Sequence[Tensor]:
        self._check()
        tensors = queue.get()
        self._check()
        return [tensor.to(device) for tensor in tensors]

    def _check(self) -> None:
        if self._stopped:
            raise StoppedError
