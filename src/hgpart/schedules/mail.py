"""Schedule + part -> Mail: the messages that a part gets and sends, and when memory is free.

Processes, which send and receive them, and the forecast of the memory that they take both
use a `Mailbox`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from hgpart.schedules.schedule import Message, Piece, Schedule

AHEAD = 8  # receives posted before they are needed; more would only take memory earlier


@dataclass(frozen=True, eq=False)
class Mail:
    """A part's messages of a step; they are the same in all steps.

    Attributes
    ----------
    incoming : tuple of Message
        Messages to the part, in the order in which all senders together let them depart.
    arriving, departing : mapping
        The message that carries a piece, by piece.
    settled : mapping of int to tuple of int
        Numbers of the part's messages that the sender of an incoming message must have received
        before sending it, by the number of the incoming message.
    under_way : int
        `Schedule.under_way` of a stream; all micro-batches of a step.
    ahead : frozenset of int
        Numbers of the incoming messages that are posted only `AHEAD` at a time. In a step weights
        are not among them, as they arrive in the memory of the copies.
    """

    incoming: tuple[Message, ...]
    arriving: Mapping[Piece, Message]
    departing: Mapping[Piece, Message]
    settled: Mapping[int, tuple[int, ...]]
    under_way: int
    ahead: frozenset[int]


def mail(schedule: Schedule, part: int) -> Mail:
    """Messages of a part by a rule's schedule; they are found once and remembered."""
    known = _known.setdefault(schedule, {})
    if part not in known:
        incoming = tuple(message for message in schedule.messages if message.receiver == part)
        outgoing = [message for message in schedule.messages if message.sender == part]
        is_step = schedule.in_flight is None
        known[part] = Mail(
            incoming,
            {piece: message for message in incoming for piece in message.pieces},
            {piece: message for message in outgoing for piece in message.pieces},
            _settled(schedule, part),
            schedule.micro_batches if is_step else schedule.under_way,
            frozenset(
                message.number for message in incoming if not (is_step and message.is_of_weights)
            ),
        )
    return known[part]


_known: WeakKeyDictionary[Schedule, dict[int, Mail]] = WeakKeyDictionary()


def _settled(schedule: Schedule, part: int) -> dict[int, tuple[int, ...]]:
    """Go through the order: what the other parts have received when they send to this part."""
    on_the_way = {
        (message.receiver, piece): message.number
        for message in schedule.messages
        if message.sender == part
        for piece in message.pieces
    }
    numbers = iter(schedule.messages)
    received: dict[int, set[int]] = {sender: set() for sender in range(schedule.k)}
    seen, settled = set[int](), {}
    for action in schedule.order:
        sender = action.part
        for piece in schedule.awaits(action):
            number = on_the_way.get((sender, piece))
            if number is not None and number not in seen:
                seen.add(number)
                received[sender].add(number)
        for receiver in schedule.sends(action):
            message = next(numbers)
            if receiver == part and received[sender]:
                settled[message.number] = tuple(sorted(received[sender]))
                received[sender] = set()
    return settled


class Mailbox(ABC):
    """A part's messages at present: which receives are posted, and which sends are under way.

    Receives are posted, and messages between two parts depart, in the order of the schedule: NCCL
    tells messages apart by nothing else.
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
        """Begin to receive a message."""

    @abstractmethod
    def departed(self, message: Message) -> None:
        """Wait until a message has departed, and let go of it."""

    def opened(self, piece: Piece) -> Message:
        """The message that carries a piece, which must not have been opened before."""
        message = self._mail.arriving[piece]
        while message.number not in self._posted:
            self._post()
        self._posted.remove(message.number)
        self._ahead -= message.number in self._mail.ahead
        self._post_ahead()
        return message

    def came(self, message: Message) -> None:
        """Settle the messages that its sender has received before it sent this one."""
        for number in self._mail.settled.get(message.number, ()):
            self._settle(number)

    def leaving(self, piece: Piece) -> Message:
        """The message in which a piece departs; those of batches that have ended are settled first.

        So a part of a stream keeps the maps that it has sent for no longer than the schedule's
        order needs. Weights are known to have arrived when their holder sends something.
        """
        message = self._mail.departing[piece]
        ended = piece.micro_batch - self._mail.under_way
        if ended >= 0 and not message.is_of_weights:
            for sent in [*self._sent.values()]:
                if not sent.is_of_weights and sent.micro_batch <= ended:
                    self._settle(sent.number)
        return message

    def left(self, message: Message) -> None:
        """Remember that a message is under way."""
        self._sent[message.number] = message

    def settle_all(self) -> None:
        """Settle all messages that are under way."""
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
