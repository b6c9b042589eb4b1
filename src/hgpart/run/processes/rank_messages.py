"""Mail + Connection -> RankMessages: a part's messages of a pass, by lanes or torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist

from hgpart.execution.weights.copies import Travelling
from hgpart.run.processes.connection import Connection
from hgpart.run.processes.lanes import Lanes
from hgpart.run.processes.map_types import MapTypes, as_bytes
from hgpart.schedules.mail import Mail, Mailbox
from hgpart.schedules.schedule import OF_WEIGHTS, Direction, Message, Piece


@dataclass(frozen=True)
class MessageSizes:
    """Bytes of a part's messages in a pass, and which of them go through lanes.

    Attributes
    ----------
    of_pieces : mapping of Piece to int
        Bytes of each piece.
    of_messages : mapping of int to int
        Bytes of each message, by number.
    small : frozenset of int
        Numbers of the messages that go through lanes: from one part to another the smallest, as
        many as there is room for. Both parts find the same.
    """

    of_pieces: Mapping[Piece, int]
    of_messages: Mapping[int, int]
    small: frozenset[int]

    @staticmethod
    def of(
        mail: Mail,
        types: MapTypes,
        samples: Sequence[int],
        travelling: Travelling | None,
        lanes: Mapping[int, Lanes],
    ) -> MessageSizes:
        """Those of the mail of a part, for micro-batches with so many samples.

        Parameters
        ----------
        lanes : mapping of int to Lanes
            Lanes to other parts.
        """
        says_types = not types.are_known

        def nbytes(piece: Piece) -> int:
            if piece.direction not in OF_WEIGHTS:
                return types.nbytes(piece.number, samples[piece.micro_batch], says_types)
            assert travelling is not None
            return travelling.copies.nbytes(travelling.exchanges[piece.number])

        messages = {*mail.arriving.values(), *mail.departing.values()}
        of_pieces = {piece: nbytes(piece) for message in messages for piece in message.pieces}
        of_messages = {
            message.number: sum(map(of_pieces.__getitem__, message.pieces)) for message in messages
        }
        small = set[int]()
        for peer, pair in lanes.items():
            going = {message.number for message in messages if message.receiver == peer}
            coming = {message.number for message in messages if message.sender == peer}
            for lane, numbers in ((pair.there, going), (pair.back, coming)):
                small |= lane.fitting({number: of_messages[number] for number in numbers})
        return MessageSizes(of_pieces, of_messages, frozenset(small))


class RankMessages(Mailbox):
    """The messages of a pass, as the `Channel` of a part: each is the bytes of all its pieces.

    Nobody waits for a message to leave before `settle`: gloo's leaves when its receiver has begun
    to receive, and in a lane there is room for it.

    Parameters
    ----------
    types : MapTypes
        The transfers of this part, in the types in which maps travel.
    mail : Mail
        The mail of this part.
    samples : sequence of int
        Samples of each micro-batch.
    sizes : MessageSizes
        Bytes of the messages.
    travelling : Travelling, optional
        The weights that travel.
    in_place : bool
        Whether weights are received where they belong, and gradients where they were in other
        passes. A stream can't do so, because several batches are under way.
    """

    def __init__(
        self,
        connection: Connection,
        types: MapTypes,
        mail: Mail,
        samples: Sequence[int],
        sizes: MessageSizes,
        travelling: Travelling | None = None,
        in_place: bool = True,
    ) -> None:
        self._connection, self._types = connection, types
        self._samples, self._sizes = samples, sizes
        self._says_types = not types.are_known
        self._travelling, self._in_place = travelling, in_place
        # Messages lie on this device while they are sent.
        self._place = connection.device if connection.nccl else torch.device("cpu")
        # The memory of messages that come, None for those in lanes, and what waits for them.
        self._coming: dict[int, tuple[Tensor | None, Callable[[Tensor], object]]] = {}
        self._arrived: dict[Piece, Sequence[Tensor]] = {}
        self._begun: dict[int, dict[Piece, list[Tensor]]] = {}
        self._going: dict[int, tuple[Tensor, dist.Work | None]] = {}
        super().__init__(mail)

    def send(self, piece: Piece, receiver: int, tensors: Sequence[Tensor]) -> None:
        """Send tensors as soon as all pieces of their message are there."""
        message = self.leaving(piece)
        if piece.direction in OF_WEIGHTS:
            pieces = [as_bytes(tensor) for tensor in tensors]
        else:
            where = piece.number, self._samples[piece.micro_batch]
            pieces = self._types.packed(*where, tensors, self._says_types)
            self._types.note(piece.number, tensors)
        begun = self._begun.setdefault(message.number, {})
        begun[piece] = pieces
        if len(begun) == len(message.pieces):
            del self._begun[message.number]
            self._depart(message, [part for sent in message.pieces for part in begun[sent]])

    def _layer(self, piece: Piece) -> str:
        if piece.direction in OF_WEIGHTS:
            assert self._travelling is not None
            return f"weights of {self._travelling.exchanges[piece.number].layer}"
        return self._types.layer(piece.number)

    def _depart(self, message: Message, pieces: Sequence[Tensor]) -> None:
        words = self._words(message, message.receiver)
        is_small = message.number in self._sizes.small
        if not is_small or pieces[0].device != self._place:
            pieces = [(pieces[0] if len(pieces) == 1 else torch.cat([*pieces])).to(self._place)]
        if is_small:
            lane = self._connection.lanes[message.receiver].there
            self._connection.guard(partial(lane.send, message.number, pieces), *words)
            return
        (body,) = pieces
        group = self._connection.group(message.sender, message.receiver)
        call = partial(dist.isend, body, message.receiver, group, message.number)
        work = self._connection.guard(call, *words)
        self._going[message.number] = body, work
        self.left(message)

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        """Wait for a piece, and return its tensors."""
        if piece not in self._arrived:
            self._open(self.opened(piece))
        return self._arrived.pop(piece)

    def _open(self, message: Message) -> None:
        memory, wait = self._coming.pop(message.number)
        # From a lane never into the memory of a copy: autograd would notice the write.
        body = self._new(self._sizes.of_messages[message.number]) if memory is None else memory
        wait(body)
        self.came(message)
        body = body.to(self._connection.device)
        if message.is_of_weights:
            self._arrived[message.pieces[0]] = (body,)
            return
        samples, at = self._samples[message.micro_batch], 0
        for arrived in message.pieces:
            end = at + self._sizes.of_pieces[arrived]
            where = arrived.number, samples
            tensors = self._types.unpacked(*where, body[at:end], self._says_types)
            self._types.note(arrived.number, tensors)
            self._arrived[arrived], at = tensors, end

    def settle(self) -> bool:
        """Wait until everything that was sent has left."""
        self.settle_all()
        return True

    def stop(self) -> None:
        """Do nothing: only a failing rank stops, and nobody here waits for it."""

    def departed(self, message: Message) -> None:
        """Wait until a message has left."""
        _, work = self._going.pop(message.number)
        self._wait(work, message, message.receiver)

    def post(self, message: Message) -> None:
        """Begin to receive a message."""
        words = self._words(message, message.sender)
        if message.number in self._sizes.small:
            lane = self._connection.lanes[message.sender].back
            begin = lane.expect(self._sizes.of_messages[message.number])
            take = partial(lane.receive, begin, message.number)
            guard = self._connection.guard
            self._coming[message.number] = None, lambda memory: guard(partial(take, memory), *words)
            return
        body = self._memory(message)
        group = self._connection.group(message.sender, message.receiver)
        call = partial(dist.irecv, body, message.sender, group, message.number)
        work = self._connection.guard(call, *words)
        self._coming[message.number] = body, lambda _: self._wait(work, message, message.sender)

    def _memory(self, message: Message) -> Tensor:
        """The memory that a message is received into."""
        if not message.is_of_weights or not self._in_place:
            return self._new(self._sizes.of_messages[message.number])
        assert self._travelling is not None
        (piece,), copies = message.pieces, self._travelling.copies
        exchange = self._travelling.exchanges[piece.number]
        if piece.direction is Direction.SPREAD:
            memory = copies.memory(exchange)
            here = memory is not None and memory.device == self._place
            return memory if here and memory is not None else self._new(copies.nbytes(exchange))
        if piece.number not in copies.buffers:
            copies.buffers[piece.number] = self._new(copies.nbytes(exchange))
        return copies.buffers[piece.number]

    def _new(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._place)

    def _wait(self, work: dist.Work | None, message: Message, peer: int) -> None:
        if work is not None:
            self._connection.guard(work.wait, *self._words(message, peer))

    def _words(self, message: Message, peer: int) -> tuple[str, int]:
        back = message.direction in (Direction.BACKWARD, Direction.REDUCE)
        what = f"{'the gradient of ' * back}{self._layer(message.pieces[0])}"
        return f"{'waited for' if peer == message.sender else 'sent'} {what}", peer
