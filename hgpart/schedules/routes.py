"""Schedule + part -> Routes: the messages that come to a part and leave it in a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hgpart.schedules.schedule import Direction, Message, Schedule

AHEAD = 8  # receives that are posted before they are needed; more only takes memory earlier

Piece = tuple[int, bool, int]  # micro-batch, whether it is a gradient, transfer


@dataclass(frozen=True, eq=False)
class Routes:
    """A part's messages of a step; the same for all steps.

    Attributes
    ----------
    incoming : tuple of Message
        In the order in which all senders together let them depart.
    arriving, departing : mapping
        By what they carry.
    settled : mapping of int to tuple of int
        By number of an incoming message, those that left for its sender and that it must have
        received before it let this one depart.
    under_way : int
        `Schedule.under_way` of a stream; all that a step has.
    """

    incoming: tuple[Message, ...]
    arriving: Mapping[Piece, Message]
    departing: Mapping[Piece, Message]
    settled: Mapping[int, tuple[int, ...]]
    under_way: int


def routes(schedule: Schedule, part: int) -> Routes:
    """Find a part's messages."""
    incoming = tuple(one for one in schedule.messages if one.receiver == part)
    outgoing = [one for one in schedule.messages if one.sender == part]
    return Routes(
        incoming,
        {piece: one for one in incoming for piece in _pieces(one)},
        {piece: one for one in outgoing for piece in _pieces(one)},
        _settled(schedule, part),
        schedule.micro_batches if schedule.in_flight is None else schedule.under_way,
    )


def _pieces(message: Message) -> list[Piece]:
    return [(message.micro_batch, message.backward, number) for number in message.transfers]


def _settled(schedule: Schedule, part: int) -> dict[int, tuple[int, ...]]:
    """Go through the order: what others have received of the part when they send to it."""
    on_the_way = {
        (one.receiver, piece): one.number
        for one in schedule.messages
        if one.sender == part
        for piece in _pieces(one)
    }
    numbers = iter(schedule.messages)
    received: dict[int, set[int]] = {other: set() for other in range(schedule.k)}
    seen, found = set[int](), {}
    for action in schedule.order:
        other, direction, micro_batch, _ = action
        if direction in (Direction.WEIGHTS, Direction.UPDATE):
            continue
        chunk, backward = schedule.chunk(action), direction is not Direction.FORWARD
        for transfer in chunk.awaits:
            number = on_the_way.get((other, (micro_batch, backward, transfer)))
            if number is not None and number not in seen:
                seen.add(number)
                received[other].add(number)
        for receiver in chunk.messages:
            message = next(numbers)
            if receiver == part and received[other]:
                found[message.number] = tuple(sorted(received[other]))
                received[other] = set()
    return found
