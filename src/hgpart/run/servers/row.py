"""A row of steps -> its threads, whose errors end the training, and its losses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from hgpart.run.processes.connection import Connection
from hgpart.run.servers.server import Server

LOSS = 3  # tag
ENDING = 5.0  # seconds that threads have to end when the connection has failed


class Row:
    """A row of steps, from its begin to its end in all threads of a process.

    Attributes
    ----------
    losses : list of float
        In the first process, the loss of each step that all workers have done.
    """

    def __init__(self, connection: Connection, server: Server | None) -> None:
        self.losses: list[float] = []
        self._connection, self._server = connection, server
        self._own: SimpleQueue[float | None] = SimpleQueue()
        self._sent: list[tuple[Any, Tensor]] = []
        self._threads: list[Thread] = []
        self._error: BaseException | None = None

    def start(self, doing: str, peer: int | None, function: Callable[[], object]) -> None:
        """Call a function in a thread, whose lost connections are those to a peer."""

        def run() -> None:
            try:
                function()
            except RuntimeError as error:
                self._fail(self._connection.lost(error, doing, peer))
            except BaseException as error:
                self._fail(error)

        self._threads.append(Thread(target=run, name=f"hgpart {doing}", daemon=True))
        self._threads[-1].start()

    def tell_loss(self, value: float) -> None:
        """Tell the first process this worker's share of a step's loss."""
        if self._connection.rank == 0:
            self._own.put(value)
        else:
            number = torch.tensor([value], dtype=torch.float64)
            send = partial(dist.isend, number, 0, tag=LOSS)
            self._sent.append((self._connection.guard(send, "told rank 0 a loss", 0), number))

    def hear_losses(self, steps: int, workers: int, on_loss: Callable[[float], object]) -> None:
        """Add up, in the first process, the workers' shares of the loss of each step."""
        number = torch.empty(1, dtype=torch.float64)
        for _ in range(steps):
            total = self._own.get()
            if total is None:
                return
            for worker in range(1, workers):
                dist.recv(number, worker, tag=LOSS)
                total += float(number)
            self.losses.append(total)
            on_loss(total)

    def join(self) -> None:
        """Wait for the end of all threads; raises what one of them has raised."""
        for work, _ in self._sent:
            work.wait()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def failed(self, error: BaseException) -> BaseException:
        """End all threads because of an error; returns the first one."""
        self._fail(error)
        for thread in self._threads:
            thread.join(ENDING)
        assert self._error is not None
        return self._error

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            if self._server is not None:
                self._server.fail()
            self._own.put(None)
            self._connection.fail(error)
