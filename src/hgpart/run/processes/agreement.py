"""The call that each rank begins -> whether all begin the same, before anything of it is sent."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist

from hgpart.run.processes.begun import Begun, check_same
from hgpart.run.processes.connection import NEVER, Connection

TAG = NEVER + 1  # tag of the messages here


class Agreement:
    """Compares what ranks begin, from pass to pass.

    A rank hears only from ranks that are going to send to it, and waits for no others to begin, so
    that in a row of passes without gradients the first parts may be ahead of the last. If the batch
    is in slices it hears from all. Without this check, gloo would end the process on a message of
    unexpected size.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._going: list[tuple[int, Tensor, dist.Work | None]] = []

    def check(self, own: Begun, senders: Collection[int], receivers: Collection[int]) -> None:
        """Tell receivers what this rank begins, and hear from senders what they begin.

        Raises
        ------
        ArgumentError
            If a sender begins something else.
        """
        connection = self._connection
        arriving = []
        for peer in senders:
            body = torch.empty(len(own), dtype=torch.int64)
            call = partial(dist.irecv, body, peer, tag=TAG)
            arriving.append((peer, body, connection.guard(call, _heard(peer), peer)))
        for peer in receivers:
            body = torch.tensor(own, dtype=torch.int64)
            call = partial(dist.isend, body, peer, tag=TAG)
            self._going.append((peer, body, connection.guard(call, _told(peer), peer)))
        for peer, body, work in arriving:
            if work is not None:
                connection.guard(work.wait, _heard(peer), peer)
            check_same({connection.rank: own, peer: Begun(*body.tolist())})

    def settle(self) -> None:
        """Wait until all receivers have heard; they have, if they got what this rank sent."""
        for peer, _, work in self._going:
            if work is not None:
                self._connection.guard(work.wait, _told(peer), peer)
        self._going.clear()


def _heard(peer: int) -> str:
    return f"waited for rank {peer} to begin"


def _told(peer: int) -> str:
    return f"sent rank {peer} what it begins"
