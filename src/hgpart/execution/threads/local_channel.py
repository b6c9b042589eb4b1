"""Queues between threads: messages between the parts of one process."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Condition
from typing import Any

import torch
from torch import Tensor

from hgpart.schedules.dynamic.order import Ready
from hgpart.schedules.schedule import Action, Piece


class StoppedError(Exception):
    """Another part failed, so there is nothing to wait for."""


class LocalChannel:
    """All messages of one pass between the threads of one process: the `Channel` of all parts.

    Parameters
    ----------
    devices : sequence of torch.device
        Device of each part.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._queues: dict[Piece, SimpleQueue[Any]] = {}
        self._changing = Condition()
        self._is_stopped = False

    def send(self, piece: Piece, receiver: int, tensors: Sequence[Tensor]) -> None:
        """Send tensors."""
        tensors = [tensor.contiguous() for tensor in tensors]  # as processes receive them
        device = self._devices[receiver]
        if device.type != "cpu":  # a copy to a CPU waits, so the receiver makes it
            tensors = [tensor.to(device, non_blocking=True) for tensor in tensors]
        self._queue(piece).put(tensors)
        with self._changing:
            self._changing.notify_all()

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        """Wait for a piece."""
        tensors: Sequence[Tensor] | None = self._queue(piece).get()
        if tensors is None:
            raise StoppedError
        with self._changing:
            del self._queues[piece]
        return tensors

    def has(self, piece: Piece) -> bool:
        """Whether a piece has arrived."""
        queue = self._queues.get(piece)
        return queue is not None and not queue.empty()

    def wait_for(self, find: Ready) -> Sequence[Action]:
        """What `find` finds, now or as soon as something else has arrived."""
        with self._changing:
            while (ready := find()) is None:
                if self._is_stopped:
                    raise StoppedError
                self._changing.wait()
        return ready

    def settle(self) -> bool:
        """Nothing to wait for: what was sent has arrived."""
        return False

    def stop(self) -> None:
        """Wake all that wait, and let nothing wait any more."""
        with self._changing:
            self._is_stopped = True
            for queue in self._queues.values():
                queue.put(None)
            self._changing.notify_all()

    def _queue(self, piece: Piece) -> SimpleQueue[Any]:
        with self._changing:
            if self._is_stopped:
                raise StoppedError
            return self._queues.setdefault(piece, SimpleQueue())
