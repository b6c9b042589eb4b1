"""Queues between threads: what parts of one process send each other."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from hgpart.schedules.schedule import Piece


class StoppedError(Exception):
    """Another part failed: there is nothing to wait for any more."""


class LocalWires:
    """All that travels in one pass between the threads of one process: `Wires` of all parts.

    Parameters
    ----------
    devices : sequence of torch.device
        Of each part.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._queues: dict[Piece, SimpleQueue[Any]] = {}
        self._changing = Lock()
        self._is_stopped = False

    def send(self, piece: Piece, receiver: int, tensors: Sequence[Tensor]) -> None:
        """Let tensors depart."""
        tensors = [tensor.contiguous() for tensor in tensors]  # as they arrive in processes
        device = self._devices[receiver]
        if device.type != "cpu":  # a copy to a CPU waits, so whoever needs it makes it
            tensors = [tensor.to(device, non_blocking=True) for tensor in tensors]
        self._queue(piece).put(tensors)

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        """Wait for what was sent."""
        found: Sequence[Tensor] | None = self._queue(piece).get()
        if found is None:
            raise StoppedError
        with self._changing:
            del self._queues[piece]
        return found

    def settle(self) -> bool:
        """What was sent is there."""
        return False

    def stop(self) -> None:
        """Wake all that wait and let none wait again."""
        with self._changing:
            self._is_stopped = True
            for queue in self._queues.values():
                queue.put(None)

    def _queue(self, piece: Piece) -> SimpleQueue[Any]:
        with self._changing:
            if self._is_stopped:
                raise StoppedError
            return self._queues.setdefault(piece, SimpleQueue())
