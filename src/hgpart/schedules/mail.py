"""Schedule + part -> Mail: the messages that come to a part and leave it, and when memory is free.

Processes, which send and receive them, and the forecast of the memory that they take go by one
`Mailbox`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from hgpart.schedules.schedule import Message, Piece, Schedule

AHEAD = 8  # receives that are posted before they are needed; more only takes memory earlier


@dataclass(frozen=True, eq=False)
class Mail:
    """A part's messages of a step; the same for all steps.

    Attributes
    ----------
    incoming : tuple of Message
        In the order in which all senders together let them depart.
    arriving, departing : mapping
        The message that carries a piece, by that piece.
    settled : mapping of int to tuple of int
        The messages that the sender of an incoming message must have received before it let that
        one depart, by the number of that one.
    under_way : int
        `Schedule.under_way` of a stream; all that a step has.
    ahead : frozenset of int
        Numbers of the incoming messages of which few are posted ahead. In a step those of weights
        are not among them, which arrive where they belong.
    """

    incoming: tuple[Message, ...]
    arriving: Mapping[Piece, Message]
    departing: Mapping[Piece, Message]
    settled: Mapping[int, tuple[int, ...]]
    under_way: int
    ahead: frozenset[int]


def mail(schedule: Schedule, part: int) -> Mail:
    """Find a part's messages of a rule's schedule, the first time only."""
    known = _known.setdefault(schedule, {})
    if part not in known:
        incoming = tuple(one for one in schedule.messages if one.receiver == part)
        outgoing = [one for one in schedule.messages if one.sender == part]
        is_step = schedule.in_flight is None
        known[part] = Mail(
            incoming,
            {piece: one for one in incoming for piece in one.pieces},
            {piece: one for one in outgoing for piece in one.pieces},
            _settled(schedule, part),
            schedule.micro_batches if is_step else schedule.under_way,
            frozenset(one.number for one in incoming if not (is_step and one.is_of_weights)),
        )
    return known[part]


_known: WeakKeyDictionary[Schedule, dict[int, Mail]] = WeakKeyDictionary()


def _settled(schedule: Schedule, part: int) -> dict[int, tuple[int, ...]]:
    """Go through the order: what others have received of the part when they send to it."""
    on_the_way = {
        (one.receiver, piece): one.number
        for one in schedule.messages
        if one.sender == part
        for piece in one.pieces
    }
    numbers = iter(schedule.messages)
    received: dict[int, set[int]] = {other: set() for other in range(schedule.k)}
    seen, found = set[int](), {}
    for action in schedule.order:
        other = action.part
        for piece in schedule.awaits(action):
            number = on_the_way.get((other, piece))
            if number is not None and number not in seen:
                seen.add(number)
                received[other].add(number)
        for receiver in schedule.sends(action):
            message = next(numbers)
            if receiver == part and received[other]:
                found[message.number] = tuple(sorted(received[other]))
                received[other] = set()
    return found


class Mailbox(ABC):
    """What of a part's messages is posted, and what is on its way, at present.

    Receives are posted, and messages between two parts depart, in the order of the schedule, as
    NCCL tells messages apart by nothing else.
    """

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self._to_post = deque(mail.incoming)
        self._posted: set[int] = set()
        self._ahead = 0
        self._sent: dict[int, Message] = {}
        self._post_ahead()

    @abstractmethod
    def post(self, message: Message) -> None:
        """Let a message arrive."""

    @abstractmethod
    def departed(self, message: Message) -> None:
        """Let go of a message that is on its way, when it has departed."""

    def opened(self, piece: Piece) -> Message:
        """The message that a piece comes in, which nobody has opened before."""
        message = self._mail.arriving[piece]
        while message.number not in self._posted:
            self._post()
        self._posted.remove(message.number)
        self._ahead -= message.number in self._mail.ahead
        self._post_ahead()
        return message

    def came(self, message: Message) -> None:
        """Settle what its sender has received before."""
        for number in self._mail.settled.get(message.number, ()):
            self._settle(number)

    def leaving(self, piece: Piece) -> Message:
        """The message that a piece departs in; those of batches that have ended are settled first.

        A part of a stream is not ahead of the others by more than in the schedule's order, with all
        maps that it has sent. Weights are known to have come when their holder sends something.
        """
        message = self._mail.departing[piece]
        ended = piece.micro_batch - self._mail.under_way
        if ended >= 0 and not message.is_of_weights:
            for one in [*self._sent.values()]:
                if not one.is_of_weights and one.micro_batch <= ended:
                    self._settle(one.number)
        return message

    def left(self, message: Message) -> None:
        """Note that a message is on its way."""
        self._sent[message.number] = message

    def settle_all(self) -> None:
        """Settle all that is on its way."""
        for number in [*self._sent]:
            self._settle(number)

    def _settle(self, number: int) -> None:
        if number in self._sent:
            self.departed(self._sent.pop(number))

    def _post_ahead(self) -> None:
        ahead = self._mail.ahead
        while self._to_post and (self._ahead < AHEAD or self._to_post[0].number not in ahead):
            self._post()

    def _post(self) -> None:
        message = self._to_post.popleft()
        self._posted.add(message.number)
        self._ahead += message.number in self._mail.ahead
        self.post(message)
