"""Schedule + part -> the bytes of messages that lie in its memory while it runs, as a process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hgpart.schedules.mail import Mailbox, mail
from hgpart.schedules.schedule import Direction, Message, Piece, Schedule


class InMemory(NamedTuple):
    """Bytes of messages in a part's memory.

    Attributes
    ----------
    during : int
        While an action computes, when what it awaits has arrived.
    after : int
        At its end, with what it sends.
    """

    during: int
    after: int


def message_bytes(
    schedule: Schedule, part: int, sizes: Sequence[int], held: Collection[Piece] = ()
) -> list[InMemory]:
    """Follow a part's messages through its actions, as processes send and receive them.

    Receives are posted ahead. What has arrived counts until the part takes it; from then on it is
    among what the part holds. What departs counts until its receiver is known to have it.

    Parameters
    ----------
    schedule : Schedule
    part : int
    sizes : sequence of int
        Samples of each micro-batch.
    held : collection of Piece
        What the part sends by itself and holds anyway, so that its message takes no memory more.

    Returns
    -------
    list of InMemory
        Of each action of the part's sequence.
    """
    memory, found = _Memory(schedule, part, sizes), list[InMemory]()
    for action in schedule.sequences[part]:
        for piece in schedule.awaits(action):
            memory.take(piece)
        during = memory.total
        for pieces in schedule.sends(action).values():
            memory.depart(pieces[0], takes_memory=len(pieces) > 1 or pieces[0] not in held)
        found.append(InMemory(during, memory.total))
    return found


class _Memory(Mailbox):
    """What lies in a part's memory."""

    def __init__(self, schedule: Schedule, part: int, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._nbytes = {
            (direction, sent.transfer): sent.nbytes
            for outline in schedule.outlines
            for direction, chunks in (
                (Direction.FORWARD, outline.forward),
                (Direction.BACKWARD, outline.backward),
            )
            for chunk in chunks
            for sent in chunk.sends
        }
        self._arrived: dict[Piece, int] = {}
        self._going: dict[int, int] = {}  # by message
        self.total = 0  # bytes of all that is posted, has arrived or is on its way
        super().__init__(mail(schedule, part))

    def take(self, piece: Piece) -> None:
        """Open the message with a piece, if that is closed; the piece is the part's from now on."""
        if piece not in self._arrived:
            message = self.opened(piece)
            self.came(message)
            self._arrived |= self._pieces(message)
        self.total -= self._arrived.pop(piece)

    def depart(self, piece: Piece, takes_memory: bool) -> None:
        """Send the message with a piece, with or without memory of its own."""
        message = self.leaving(piece)
        size = takes_memory * sum(self._pieces(message).values())
        self._going[message.number] = size
        self.total += size
        self.left(message)

    def departed(self, message: Message) -> None:
        """Its memory is free."""
        self.total -= self._going.pop(message.number)

    def post(self, message: Message) -> None:
        """Memory for it is taken."""
        self.total += sum(self._pieces(message).values())

    def _pieces(self, message: Message) -> dict[Piece, int]:
        size = self._sizes[message.micro_batch]
        return {one: size * self._nbytes[one.direction, one.number] for one in message.pieces}
