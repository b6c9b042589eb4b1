"""Mail + Connection -> Post: one part's messages of a step, over torch.distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist

from hgpart.errors import RunError
from hgpart.execution.transfers import Transfer
from hgpart.run.processes.connection import Connection
from hgpart.schedules.mail import Mail, Mailbox
from hgpart.schedules.schedule import Direction, Message, Piece


def as_bytes(tensor: Tensor) -> Tensor:
    """A tensor's elements, one after the other, as they are to be read.

    Of a conjugate, or an imaginary part of one, torch keeps the memory and notes the difference.

    >>> as_bytes(torch.tensor([1.0 + 2.0j]).conj().imag).view(torch.float32)
    tensor([-2.])
    """
    made = tensor.resolve_conj().resolve_neg().contiguous()
    return made.as_strided((made.numel(),), (1,)).view(torch.uint8)  # of one element, any stride


class Post(Mailbox):
    """The messages of one step; a message is bytes: all that a chunk sends to one part.

    Nobody waits for a message to depart before `finish`: gloo's leaves when its receiver has posted
    the receive.

    Parameters
    ----------
    connection : Connection
    transfers : mapping of int to Transfer
        Those of this part, by number.
    mail : Mail
        Of this part.
    sizes : sequence of int
        Samples of each micro-batch.
    """

    def __init__(
        self,
        connection: Connection,
        transfers: Mapping[int, Transfer],
        mail: Mail,
        sizes: Sequence[int],
    ) -> None:
        self._connection, self._transfers, self._sizes = connection, transfers, sizes
        # Where messages lie while they travel.
        self._place = connection.device if connection.nccl else torch.device("cpu")
        self._coming: dict[int, tuple[Tensor, dist.Work | None]] = {}
        self._arrived: dict[Piece, tuple[Tensor, ...]] = {}
        self._begun: dict[int, dict[Piece, list[Tensor]]] = {}
        self._going: dict[int, tuple[Tensor, dist.Work | None]] = {}
        super().__init__(mail)

    def wires(self) -> list[MicroBatchWire]:
        """The part's ends, for each micro-batch."""
        return [MicroBatchWire(self, micro_batch) for micro_batch in range(len(self._sizes))]

    def send(self, piece: Piece, tensors: Sequence[Tensor]) -> None:
        """Let tensors depart, when all that travels with them is there."""
        message = self.leaving(piece)
        transfer, pieces = self._transfers[piece.number], [as_bytes(tensor) for tensor in tensors]
        size, wanted = sum(map(len, pieces)), transfer.nbytes(self._sizes[piece.micro_batch])
        if size != wanted:  # the receiver waits for as many
            raise RunError(
                f"{transfer.layer} sends {size} bytes, accepted is {wanted}, as it was placed "
                "(autocast changes types)"
            )
        begun = self._begun.setdefault(message.number, {})
        begun[piece] = pieces
        if len(begun) == len(message.pieces):
            del self._begun[message.number]
            self._depart(message, [one for each in message.pieces for one in begun[each]])

    def _depart(self, message: Message, pieces: Sequence[Tensor]) -> None:
        body = (pieces[0] if len(pieces) == 1 else torch.cat([*pieces])).to(self._place)
        group = self._connection.group(message.sender, message.receiver)
        call = partial(dist.isend, body, message.receiver, group, message.number)
        work = self._connection.guard(call, *self._words(message, message.receiver))
        self._going[message.number] = body, work
        self.left(message)

    def receive(self, piece: Piece) -> tuple[Tensor, ...]:
        """Wait for what was sent."""
        if piece not in self._arrived:
            self._open(self.opened(piece))
        return self._arrived.pop(piece)

    def _open(self, message: Message) -> None:
        body, work = self._coming.pop(message.number)
        self._wait(work, message, message.sender)
        self.came(message)
        body, size, at = body.to(self._connection.device), self._sizes[message.micro_batch], 0
        for one in message.pieces:
            found = []
            for tensor in self._transfers[one.number].tensors:
                piece = body[at : at + tensor.nbytes(size)]
                at += len(piece)
                if piece.storage_offset() % tensor.dtype.itemsize:
                    piece = piece.clone()
                found.append(piece.view(tensor.dtype).view(tensor.shape(size)))
            self._arrived[one] = tuple(found)

    def finish(self) -> None:
        """Wait until all that was sent has departed."""
        self.settle_all()

    def settle(self, message: Message) -> None:
        """Wait until a message has departed."""
        _, work = self._going.pop(message.number)
        self._wait(work, message, message.receiver)

    def post(self, message: Message) -> None:
        """Let a message arrive."""
        samples = self._sizes[message.micro_batch]
        size = sum(self._transfers[one.number].nbytes(samples) for one in message.pieces)
        body = torch.empty(size, dtype=torch.uint8, device=self._place)
        group = self._connection.group(message.sender, message.receiver)
        call = partial(dist.irecv, body, message.sender, group, message.number)
        work = self._connection.guard(call, *self._words(message, message.sender))
        self._coming[message.number] = body, work

    def _wait(self, work: dist.Work | None, message: Message, peer: int) -> None:
        if work is not None:
            self._connection.guard(work.wait, *self._words(message, peer))

    def _words(self, message: Message, peer: int) -> tuple[str, int]:
        layer = self._transfers[message.pieces[0].number].layer
        what = f"{'the gradient of ' * (message.direction is Direction.BACKWARD)}{layer}"
        return f"{'waited for' if peer == message.sender else 'sent'} {what}", peer


class MicroBatchWire:
    """A part's ends of all its transfers, for one micro-batch of a step: a `Wire`."""

    def __init__(self, post: Post, micro_batch: int) -> None:
        self.post, self._micro_batch = post, micro_batch

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let tensors depart."""
        self.post.send(Piece(Direction.FORWARD, self._micro_batch, transfer.number), tensors)

    def receive(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Wait for what the sender sent."""
        return self.post.receive(Piece(Direction.FORWARD, self._micro_batch, transfer.number))

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let a gradient depart for the sender."""
        self.post.send(Piece(Direction.BACKWARD, self._micro_batch, transfer.number), tensors)

    def receive_gradient(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Wait for the receiver's gradient."""
        return self.post.receive(Piece(Direction.BACKWARD, self._micro_batch, transfer.number))
