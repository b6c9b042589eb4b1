"""The call that each rank begins -> whether all begin the same, before anything of it is sent."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from hgpart.run.processes.begun import Begun, check_same
from hgpart.run.processes.connection import Connection


class Agreement:
    """Compares what ranks begin, from pass to pass.

    A rank hears only from ranks that are going to send to it, and waits for no others to begin, so
    that in a row of passes without gradients the first parts may be ahead of the last. If the batch
    is in slices it hears from all. Without this check, gloo would end the process on a message of
    unexpected size.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._going: list[Callable[[], object]] = []

    def check(self, own: Begun, senders: Collection[int], receivers: Collection[int]) -> None:
        """Tell receivers what this rank begins, and hear from senders what they begin.

        Raises
        ------
        ArgumentError
            If a sender begins something else.
        """
        connection, heard = self._connection, {}
        for peer in senders:
            numbers = torch.empty(len(own), dtype=torch.int64)
            doing = f"waited for rank {peer} to begin"
            heard[peer] = numbers, connection.hear(peer, numbers, doing)
        body = torch.tensor(own, dtype=torch.int64)
        for peer in receivers:
            doing = f"sent rank {peer} what it begins"
            self._going.append(connection.tell(peer, body, doing))
        for peer, (numbers, wait) in heard.items():
            wait()
            check_same({connection.rank: own, peer: Begun(*numbers.tolist())})

    def settle(self) -> None:
        """Wait until all receivers have heard; they have, if they got what this rank sent."""
        for wait in self._going:
            wait()
        self._going.clear()
