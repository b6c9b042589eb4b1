"""Connection, peer -> Messages of one size to and from another process, as runs send them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import distributed as dist

from hgpart.run.processes.connection import Connection
from hgpart.work.devices import wait_for

Result = TypeVar("Result")


class Messages:
    """Messages of one size between this process and another, which does the same.

    Receiving begins before sending, as in runs. Over gloo, tensors of a GPU are copied to the host
    and sent from there.
    """

    def __init__(self, connection: Connection, peer: int, nbytes: int) -> None:
        self._connection, self._peer = connection, peer
        self._place = connection.device if connection.nccl else torch.device("cpu")
        # Not zeros: pages that nobody has written to are all the same page.
        self._body = torch.ones(nbytes, dtype=torch.uint8, device=connection.device)
        self._inbox = torch.ones(nbytes, dtype=torch.uint8, device=self._place)
        self._doing = f"exchanged messages of {nbytes} bytes with rank {peer}"

    def begin_receiving(self) -> dist.Work | None:
        """Be ready to receive a message."""
        group = self._connection.group(self._peer, self._connection.rank)
        return self._guarded(partial(dist.irecv, self._inbox, self._peer, group))

    def begin_sending(self) -> dist.Work | None:
        """Send a message, without waiting for it."""
        body = self._body.to(self._place)
        group = self._connection.group(self._connection.rank, self._peer)
        return self._guarded(partial(dist.isend, body, self._peer, group))

    def receive(self, arriving: dist.Work | None) -> None:
        """Wait until a message is on this process's device."""
        self.wait(arriving)
        self._inbox.to(self._connection.device)
        wait_for(self._connection.device)

    def wait(self, work: dist.Work | None) -> None:
        """Wait until a message has arrived in the host's memory, or has been sent."""
        if work is not None:
            self._guarded(work.wait)

    def there_and_back(self, times: int) -> None:
        """Send messages and receive as many: the lower rank sends first, the other answers."""
        begins = self._connection.rank < self._peer
        arriving = self.begin_receiving()
        for left in reversed(range(times)):
            if begins:
                departing = self.begin_sending()
            self.receive(arriving)
            if left:
                arriving = self.begin_receiving()
            if not begins:
                departing = self.begin_sending()
            self.wait(departing)

    def both_ways(self, times: int) -> None:
        """Send messages and receive as many, one each way at a time."""
        for _ in range(times):
            arriving, departing = self.begin_receiving(), self.begin_sending()
            self.receive(arriving)
            self.wait(departing)

    def _guarded(self, call: Callable[[], Result]) -> Result:
        return self._connection.guard(call, self._doing, self._peer)
