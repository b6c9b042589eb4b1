"""Schedule + part -> Mail: the messages that come to a part and leave it, and when memory is free.

What processes do with real messages, and what is foretold of the memory that these take, goes by
the same rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from hgpart.schedules.schedule import OF_WEIGHTS, Message, Piece, Schedule

AHEAD = 8  # receives of maps posted before they are needed; more only takes memory earlier


@dataclass(frozen=True, eq=False)
class Mail:
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


def mail(schedule: Schedule, part: int) -> Mail:
    """Find a part's messages of a rule's schedule, the first time only."""
    known = _known.setdefault(schedule, {})
    if part not in known:
        incoming = tuple(one for one in schedule.messages if one.receiver == part)
        outgoing = [one for one in schedule.messages if one.sender == part]
        known[part] = Mail(
            incoming,
            {piece: one for one in incoming for piece in one.pieces},
            {piece: one for one in outgoing for piece in one.pieces},
            _settled(schedule, part),
            schedule.micro_batches if schedule.in_flight is None else schedule.under_way,
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


class Mailbox:
    """What of a part's messages is posted, and what is on its way, at present.

    Receives are posted, and messages between two parts depart, in the order of the schedule, as
    NCCL tells messages apart by nothing else. Weights and their gradients are posted with what
    comes before them, however many they are: they arrive where they belong.
    """

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self._to_post = deque(mail.incoming)
        self._posted: dict[int, Message] = {}
        self._sent: dict[int, Message] = {}
        self._maps = 0  # posted messages that are no weights
        self._post(AHEAD)

    def post(self, message: Message) -> None:
        """Let a message arrive."""
        raise NotImplementedError

    def settle(self, message: Message) -> None:
        """Forget a message that has departed, or wait until it has."""
        raise NotImplementedError

    def opened(self, piece: Piece) -> Message:
        """The message that a piece comes in, which nobody has opened before."""
        message = self._mail.arriving[piece]
        while message.number not in self._posted:
            self._post(self._maps + 1)
        del self._posted[message.number]
        self._maps -= not message.is_of_weights
        self._post(AHEAD)
        return message

    def came(self, message: Message) -> None:
        """Settle what its sender has received before."""
        for number in self._mail.settled.get(message.number, ()):
            self._settle(number)

    def leaving(self, piece: Piece) -> Message:
        """The message that a piece departs in; others of batches that have ended are settled.

        A part of a stream is not ahead of the others by more than in the schedule's order, with all
        that it has sent.
        """
        ended = piece.micro_batch - self._mail.under_way
        if ended >= 0 and piece.direction not in OF_WEIGHTS:
            for one in [*self._sent.values()]:
                if not one.is_of_weights and one.micro_batch <= ended:
                    self._settle(one.number)
        return self._mail.departing[piece]

    def left(self, message: Message) -> None:
        """Note that a message is on its way."""
        self._sent[message.number] = message

    def settle_all(self) -> None:
        """Settle all that has departed."""
        for number in [*self._sent]:
            self._settle(number)

    def _settle(self, number: int) -> None:
        if number in self._sent:
            self.settle(self._sent.pop(number))

    def _post(self, maps: int) -> None:
        """Post on until so many maps are posted, and what comes then is another one."""
        while self._to_post and (self._maps < maps or self._to_post[0].is_of_weights):
            message = self._to_post.popleft()
            self._posted[message.number] = message
            self._maps += not message.is_of_weights
            self.post(message)
