"""Routes + Connection -> Post: one part's messages of a step, over torch.distributed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist

from hgpart.errors import RunError
from hgpart.execution.transfers import Transfer
from hgpart.run.processes.connection import Connection
from hgpart.schedules.routes import AHEAD, Routes
from hgpart.schedules.schedule import Message


def as_bytes(tensor: Tensor) -> Tensor:
    """A tensor's elements, one after the other, as they are to be read.

    Of a conjugate, or an imaginary part of one, torch keeps the memory and notes the difference.

    >>> as_bytes(torch.tensor([1.0 + 2.0j]).conj().imag).view(torch.float32)
    tensor([-2.])
    """
    made = tensor.resolve_conj().resolve_neg().contiguous()
    return made.as_strided((made.numel(),), (1,)).view(torch.uint8)  # of one element, any stride


class Post:
    """The messages of one step; a message is bytes: all that a chunk sends to one part.

    Receives are posted, and messages between two parts depart, in the order of the schedule, as
    NCCL tells messages apart by nothing else. Nobody waits for a message to depart before `finish`:
    gloo's leaves when its receiver has posted the receive. But a part of a stream is not ahead of
    the others by more than in the schedule's order, with all that it has sent.

    Parameters
    ----------
    connection : Connection
    transfers : mapping of int to Transfer
        Those of this part, by number.
    routes : Routes
        Of this part.
    sizes : sequence of int
        Samples of each micro-batch.
    """

    def __init__(
        self,
        connection: Connection,
        transfers: Mapping[int, Transfer],
        routes: Routes,
        sizes: Sequence[int],
    ) -> None:
        self._connection, self._transfers = connection, transfers
        self._routes, self._sizes = routes, sizes
        # Where messages lie while they travel.
        self._place = connection.device if connection.nccl else torch.device("cpu")
        self._to_post = deque(routes.incoming)
        self._posted: dict[int, tuple[Tensor, dist.Work | None]] = {}
        self._arrived: dict[tuple[int, bool, int], tuple[Tensor, ...]] = {}
        self._begun: dict[int, dict[int, list[Tensor]]] = {}
        self._sent: dict[int, tuple[Message, Tensor, dist.Work | None]] = {}
        self._post(AHEAD)

    def wires(self) -> list[MicroBatchWire]:
        """The part's ends, for each micro-batch."""
        return [MicroBatchWire(self, micro_batch) for micro_batch in range(len(self._sizes))]

    def send(
        self, micro_batch: int, backward: bool, transfer: Transfer, tensors: Sequence[Tensor]
    ) -> None:
        """Let tensors depart, when all that travels with them is there."""
        message = self._routes.departing[micro_batch, backward, transfer.number]
        pieces = [as_bytes(tensor) for tensor in tensors]
        while self._sent and self._oldest().micro_batch <= micro_batch - self._routes.under_way:
            self._settle(self._oldest().number)
        size, wanted = sum(map(len, pieces)), transfer.nbytes(self._sizes[micro_batch])
        if size != wanted:  # the receiver waits for as many
            raise RunError(
                f"{transfer.layer} sends {size} bytes, accepted is {wanted}, as it was placed "
                "(autocast changes types)"
            )
        begun = self._begun.setdefault(message.number, {})
        begun[transfer.number] = pieces
        if len(begun) == len(message.transfers):
            del self._begun[message.number]
            self._depart(message, [one for number in message.transfers for one in begun[number]])

    def _depart(self, message: Message, pieces: Sequence[Tensor]) -> None:
        body = (pieces[0] if len(pieces) == 1 else torch.cat([*pieces])).to(self._place)
        target = message.receiver
        group = self._connection.group(message.sender, target)
        call = partial(dist.isend, body, target, group, message.number)
        work = self._connection.guard(call, *self._words(message, target))
        self._sent[message.number] = message, body, work

    def receive(self, micro_batch: int, backward: bool, transfer: Transfer) -> tuple[Tensor, ...]:
        """Wait for what was sent."""
        key = micro_batch, backward, transfer.number
        if key not in self._arrived:
            self._open(self._routes.arriving[key])
        return self._arrived.pop(key)

    def _open(self, message: Message) -> None:
        while message.number not in self._posted:
            self._post(1)
        body, work = self._posted.pop(message.number)
        self._post(AHEAD - len(self._posted))
        self._wait(work, message, message.sender)
        for number in self._routes.settled.get(message.number, ()):
            self._settle(number)
        body, size, at = body.to(self._connection.device), self._sizes[message.micro_batch], 0
        for number in message.transfers:
            found = []
            for tensor in self._transfers[number].tensors:
                piece = body[at : at + tensor.nbytes(size)]
                at += len(piece)
                if piece.storage_offset() % tensor.dtype.itemsize:
                    piece = piece.clone()
                found.append(piece.view(tensor.dtype).view(tensor.shape(size)))
            self._arrived[message.micro_batch, message.backward, number] = tuple(found)

    def finish(self) -> None:
        """Wait until all that was sent has departed."""
        for number in [*self._sent]:
            self._settle(number)

    def _oldest(self) -> Message:
        return next(iter(self._sent.values()))[0]

    def _settle(self, number: int) -> None:
        if number in self._sent:
            message, _, work = self._sent.pop(number)
            self._wait(work, message, message.receiver)

    def _post(self, count: int) -> None:
        for _ in range(min(count, len(self._to_post))):
            message = self._to_post.popleft()
            samples = self._sizes[message.micro_batch]
            size = sum(self._transfers[number].nbytes(samples) for number in message.transfers)
            body = torch.empty(size, dtype=torch.uint8, device=self._place)
            group = self._connection.group(message.sender, message.receiver)
            call = partial(dist.irecv, body, message.sender, group, message.number)
            work = self._connection.guard(call, *self._words(message, message.sender))
            self._posted[message.number] = body, work

    def _wait(self, work: dist.Work | None, message: Message, peer: int) -> None:
        if work is not None:
            self._connection.guard(work.wait, *self._words(message, peer))

    def _words(self, message: Message, peer: int) -> tuple[str, int]:
        layer = self._transfers[message.transfers[0]].layer
        what = f"{'the gradient of ' * message.backward}{layer}"
        return f"{'waited for' if peer == message.sender else 'sent'} {what}", peer


class MicroBatchWire:
    """A part's ends of all its transfers, for one micro-batch of a step: a `Wire`."""

    def __init__(self, post: Post, micro_batch: int) -> None:
        self.post, self._micro_batch = post, micro_batch

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let tensors depart."""
        self.post.send(self._micro_batch, False, transfer, tensors)

    def receive(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Wait for what the sender sent."""
        return self.post.receive(self._micro_batch, False, transfer)

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let a gradient depart for the sender."""
        self.post.send(self._micro_batch, True, transfer, tensors)

    def receive_gradient(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Wait for the receiver's gradient."""
        return self.post.receive(self._micro_batch, True, transfer)
