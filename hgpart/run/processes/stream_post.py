"""Copies + Connection -> StreamPost: the weights and gradients of a stream, between processes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from hgpart.execution.transfers import Transfer
from hgpart.placement.shares.copies import Copies
from hgpart.run.processes.connection import Connection
from hgpart.schedules.schedule import Schedule

FIRST_OF_STREAM = 2**27  # tags of messages of a stream's weights: those of state are below
APART = 2**10  # messages through one transfer that may be on their way at a time: tags for so many

Name = tuple[int, bool]  # of an exchange, and whether it is gradients


class StreamPost:
    """One part's ends of the exchanges that keep copies like weights, batch by batch: a `Wire`.

    The next message of each exchange is always expected. One departs when that of as many batches
    before as there may be in flight is with its receiver, which by then nothing keeps from it: a
    part begins a batch with the weights of so many before, in front of its gradients.

    Parameters
    ----------
    connection : Connection
        Over gloo, which tells messages apart by tags.
    copies : Copies
    schedule : Schedule
        Of the stream.
    """

    def __init__(self, connection: Connection, copies: Copies, schedule: Schedule) -> None:
        self._connection, self._copies = connection, copies
        self._in_flight = schedule.in_flight or 1
        self._coming: dict[Name, tuple[Tensor, dist.Work | None]] = {}
        self._going: defaultdict[Name, deque[tuple[Tensor, dist.Work | None]]] = defaultdict(deque)
        self._sent: defaultdict[Name, int] = defaultdict(int)
        self._received: defaultdict[Name, int] = defaultdict(int)
        # Behind the last batch no weights depart.
        self._messages = {True: schedule.micro_batches, False: schedule.micro_batches - 1}
        for number, one in enumerate(copies.weights):
            if one.owner != one.holder == connection.rank:
                self._expect((number, False), one.owner)
            elif one.holder != one.owner == connection.rank:
                self._expect((number, True), one.holder)

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let weights depart."""
        self._send((transfer.number, False), transfer.receiver, *tensors)

    def receive(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for weights."""
        return [self._taken((transfer.number, False), transfer.sender)]

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let gradients depart."""
        self._send((transfer.number, True), transfer.sender, *tensors)

    def receive_gradient(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for gradients."""
        return [self._taken((transfer.number, True), transfer.receiver)]

    def finish(self) -> None:
        """Wait until all that was sent has departed."""
        for name, going in self._going.items():
            while going:
                self._settle(name)

    def _send(self, name: Name, receiver: int, body: Tensor) -> None:
        if len(self._going[name]) == self._in_flight:
            self._settle(name)
        body = body.cpu()
        tag = self._tag(name, self._sent[name])
        self._sent[name] += 1
        call = partial(dist.isend, body, receiver, tag=tag)
        self._going[name].append((body, self._guarded(call, name, receiver, "sent")))

    def _settle(self, name: Name) -> None:
        _, work = self._going[name].popleft()
        one = self._copies.weights[name[0]]
        if work is not None:
            self._guarded(work.wait, name, one.owner if name[1] else one.holder, "sent")

    def _expect(self, name: Name, sender: int) -> None:
        if self._received[name] < self._messages[name[1]]:
            body = torch.empty(
                self._copies.nbytes(self._copies.weights[name[0]]), dtype=torch.uint8
            )
            tag = self._tag(name, self._received[name])
            call = partial(dist.irecv, body, sender, tag=tag)
            self._coming[name] = body, self._guarded(call, name, sender, "waited for")

    def _taken(self, name: Name, sender: int) -> Tensor:
        body, work = self._coming.pop(name)
        if work is not None:
            self._guarded(work.wait, name, sender, "waited for")
        self._received[name] += 1
        self._expect(name, sender)
        return body.to(self._connection.device)

    def _guarded(self, call: Callable[[], Any], name: Name, peer: int, doing: str) -> Any:
        what = f"{'the gradient of ' * name[1]}weights of {self._copies.weights[name[0]].layer}"
        return self._connection.guard(call, f"{doing} {what}", peer)

    def _tag(self, name: Name, message: int) -> int:
        number, backward = name
        return FIRST_OF_STREAM + (number * APART + message % APART) * 2 + backward
