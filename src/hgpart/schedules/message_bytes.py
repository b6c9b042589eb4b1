"""Schedule + part -> bytes of messages in the part's memory while it runs as a process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hgpart.schedules.mail import Mailbox, mail
from hgpart.schedules.schedule import Direction, Message, Piece, Schedule


class MessageMemory(NamedTuple):
    """Bytes of messages in a part's memory.

    Attributes
    ----------
    during : int
        Bytes while an action computes, after what it awaits has arrived.
    after : int
        Bytes at its end, with the messages that it sends.
    """

    during: int
    after: int


def message_bytes(
    schedule: Schedule, part: int, sizes: Sequence[int], held: Collection[Piece] = ()
) -> list[MessageMemory]:
    """Follow a part's messages through its actions, as processes send and receive them.

    Receives are posted ahead. A message that has arrived counts until the part takes it; then it
    is among what the part holds. A message that departs counts until its receiver is known to have
    it.

    Parameters
    ----------
    sizes : sequence of int
        Samples of each micro-batch.
    held : collection of Piece
        Pieces that the part sends alone and holds anyway, so that their message takes no memory.

    Returns
    -------
    list of MessageMemory
        One entry for each action of the part's sequence.
    """
    memory, by_action = _Memory(schedule, part, sizes), list[MessageMemory]()
    for action in schedule.sequences[part]:
        for piece in schedule.awaits(action):
            memory.take(piece)
        during = memory.total
        for pieces in schedule.sends(action).values():
            memory.depart(pieces[0], takes_memory=len(pieces) > 1 or pieces[0] not in held)
        by_action.append(MessageMemory(during, memory.total))
    return by_action


class _Memory(Mailbox):
    """The bytes of a part's messages, counted as they are posted, arrive and depart."""

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
        self.total = 0  # bytes of all messages that are posted, have arrived or are under way
        super().__init__(mail(schedule, part))

    def take(self, piece: Piece) -> None:
        """Open a piece's message, if it is still closed; then the piece counts as the part's."""
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
        """Free a message's memory."""
        self.total -= self._going.pop(message.number)

    def post(self, message: Message) -> None:
        """Take the memory of a message."""
        self.total += sum(self._pieces(message).values())

    def _pieces(self, message: Message) -> dict[Piece, int]:
        size = self._sizes[message.micro_batch]
        return {
            piece: size * self._nbytes[piece.direction, piece.number] for piece in message.pieces
        }
