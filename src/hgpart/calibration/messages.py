"""Connection, peer -> Messages of one size to and from another process, as runs send them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hgpart.run.processes.connection import Connection
from hgpart.work.devices import wait_for

Wait = Callable[[], object]


class Messages:
    """Messages of one size between this process and another, which does the same.

    Receiving begins before sending, as in runs. Small messages go through lanes, if there are any.
    Tensors of a GPU are copied to the host and sent from there, unless it is by NCCL.
    """

    def __init__(self, connection: Connection, peer: int, nbytes: int) -> None:
        self._connection, self._peer = connection, peer
        self._place = connection.device if connection.nccl else torch.device("cpu")
        # Not zeros: pages that nobody has written to are all the same page.
        self._body = torch.ones(nbytes, dtype=torch.uint8, device=connection.device)
        self._inbox = torch.ones(nbytes, dtype=torch.uint8, device=self._place)
        self._doing = f"exchanged messages of {nbytes} bytes with rank {peer}"

    def begin_receiving(self) -> Wait:
        """Be ready to receive a message."""
        return self._connection.hear(self._peer, self._inbox, self._doing)

    def begin_sending(self) -> Wait:
        """Send a message, without waiting for it."""
        return self._connection.tell(self._peer, self._body.to(self._place), self._doing)

    def receive(self, wait: Wait) -> None:
        """Wait until a message is on this process's device."""
        wait()
        self._inbox.to(self._connection.device)
        wait_for(self._connection.device)

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
            departing()

    def both_ways(self, times: int) -> None:
        """Send messages and receive as many, one each way at a time."""
        for _ in range(times):
            arriving, departing = self.begin_receiving(), self.begin_sending()
            self.receive(arriving)
            departing()
