"""Connection, peer -> Wire: messages of one size to and from another process, as runs send them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import distributed as dist

from hgpart.run.processes.connection import Connection
from hgpart.work.devices import wait_for

Result = TypeVar("Result")


class Wire:
    """One end of a pair of processes; both send messages of the same size.

    As in `hgpart.run.processes.post`, receives are posted before messages are sent; over gloo, what
    lies on a GPU goes by way of the host.

    Parameters
    ----------
    connection : Connection
    peer : int
    nbytes : int
    """

    def __init__(self, connection: Connection, peer: int, nbytes: int) -> None:
        self._connection, self._peer = connection, peer
        self._place = connection.device if connection.nccl else torch.device("cpu")
        # Not zeros: memory that nobody has written to is one page, again and again.
        self._body = torch.ones(nbytes, dtype=torch.uint8, device=connection.device)
        self._inbox = torch.ones(nbytes, dtype=torch.uint8, device=self._place)
        self._doing = f"exchanged messages of {nbytes} bytes with rank {peer}"

    def post(self) -> dist.Work | None:
        """Be ready to receive."""
        group = self._connection.group(self._peer, self._connection.rank)
        return self._guarded(partial(dist.irecv, self._inbox, self._peer, group))

    def send(self) -> dist.Work | None:
        """Let a message depart."""
        body = self._body.to(self._place)
        group = self._connection.group(self._connection.rank, self._peer)
        return self._guarded(partial(dist.isend, body, self._peer, group))

    def take(self, arriving: dist.Work | None) -> None:
        """Wait until what was posted is here."""
        self.wait(arriving)
        self._inbox.to(self._connection.device)
        wait_for(self._connection.device)

    def wait(self, work: dist.Work | None) -> None:
        """Wait until what was posted has arrived, or what was sent has departed."""
        if work is not None:
            self._guarded(work.wait)

    def there_and_back(self, times: int) -> None:
        """Send messages and receive as many: the lower rank sends first, the other one answers."""
        begins = self._connection.rank < self._peer
        arriving = self.post()
        for left in reversed(range(times)):
            if begins:
                departing = self.send()
            self.take(arriving)
            if left:
                arriving = self.post()
            if not begins:
                departing = self.send()
            self.wait(departing)

    def both_ways(self, times: int) -> None:
        """Send messages and receive as many, two at once."""
        for _ in range(times):
            arriving, departing = self.post(), self.send()
            self.take(arriving)
            self.wait(departing)

    def _guarded(self, call: Callable[[], Result]) -> Result:
        return self._connection.guard(call, self._doing, self._peer)
