"""Schedule + part -> the bytes of messages that lie in its memory while it runs, as a process."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from hgpart.schedules.routes import AHEAD, Piece, routes
from hgpart.schedules.schedule import Direction, Message, Schedule


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
        if action.direction in (Direction.WEIGHTS, Direction.UPDATE):
            found.append(InMemory(memory.total, memory.total))
            continue
        micro_batch, backward = action.micro_batch, action.direction is not Direction.FORWARD
        chunk = schedule.chunk(action)
        for number in chunk.awaits:
            memory.take((micro_batch, backward, number))
        during = memory.total
        for numbers in chunk.messages.values():
            first = micro_batch, backward, numbers[0]
            memory.depart(first, takes_memory=len(numbers) > 1 or first not in held)
        found.append(InMemory(during, memory.total))
    return found


class _Memory:
    """What lies in a part's memory, as `hgpart.run.processes.post.Post` has it."""

    def __init__(self, schedule: Schedule, part: int, sizes: Sequence[int]) -> None:
        self._routes, self._sizes = routes(schedule, part), sizes
        self._nbytes = {
            (backward, sent.transfer): sent.nbytes
            for outline in schedule.outlines
            for backward, chunks in ((False, outline.forward), (True, outline.backward))
            for chunk in chunks
            for sent in chunk.sends
        }
        self._to_post = deque(self._routes.incoming)
        self._posted: dict[int, int] = {}  # by message
        self._arrived: dict[Piece, int] = {}
        self._sent: dict[int, tuple[Message, int]] = {}
        self.total = 0  # bytes of all of these
        self._post(AHEAD)

    def take(self, piece: Piece) -> None:
        """Open the message with a piece, if that is closed; the piece is the part's from now on."""
        if piece not in self._arrived:
            message = self._routes.arriving[piece]
            while message.number not in self._posted:
                self._post(1)
            del self._posted[message.number]
            self._post(AHEAD - len(self._posted))
            for number in self._routes.settled.get(message.number, ()):
                self._settle(number)
            self._arrived |= self._pieces(message)
        self.total -= self._arrived.pop(piece)

    def depart(self, piece: Piece, takes_memory: bool) -> None:
        """Send the message with a piece, with or without memory of its own."""
        ended = piece[0] - self._routes.under_way
        while self._sent and (oldest := next(iter(self._sent.values()))[0]).micro_batch <= ended:
            self._settle(oldest.number)
        message = self._routes.departing[piece]
        size = takes_memory * sum(self._pieces(message).values())
        self._sent[message.number] = message, size
        self.total += size

    def _settle(self, number: int) -> None:
        if number in self._sent:
            self.total -= self._sent.pop(number)[1]

    def _post(self, count: int) -> None:
        for _ in range(min(count, len(self._to_post))):
            message = self._to_post.popleft()
            size = sum(self._pieces(message).values())
            self._posted[message.number] = size
            self.total += size

    def _pieces(self, message: Message) -> dict[Piece, int]:
        of, backward = message.micro_batch, message.backward
        return {
            (of, backward, number): self._sizes[of] * self._nbytes[backward, number]
            for number in message.transfers
        }
