"""Schedule: for each part a fixed sequence of actions, all of them cut from one global order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

from hgpart.schedules.outline import Chunk, Outline


class Direction(str, Enum):
    """What an action does; the letters are those of the zero bubble paper, but for M (its B)."""

    FORWARD = "F"
    BACKWARD = "B"
    MAPS = "M"  # backward as far as maps need it, which are then sent back
    WEIGHTS = "W"  # the rest of it
    UPDATE = "U"  # of the part's weights, by the gradients of one batch: asynchronous training
    # These four are added by `lower`, where a part has copies of weights that belong to another
    # part, or to itself (then nothing is sent). The action's chunk is the number of the weights.
    SPREAD = "S"  # the owner sends its weights to the part that has the copy
    GATHER = "G"  # that part waits for them, and puts them into its copy
    REDUCE = "R"  # it sends the gradients of its copy to the owner
    COLLECT = "C"  # the owner waits for these, and adds them to its own


MOVE_MAPS = (Direction.FORWARD, Direction.BACKWARD, Direction.MAPS)  # or gradients of maps
GO_BACK = (Direction.BACKWARD, Direction.MAPS, Direction.WEIGHTS)
GO_FORWARD = (Direction.FORWARD, Direction.SPREAD, Direction.GATHER)
OF_WEIGHTS = (Direction.SPREAD, Direction.GATHER, Direction.REDUCE, Direction.COLLECT)
UPDATING = Chunk((), ())  # what an update awaits and sends


class Action(NamedTuple):
    """One chunk of one micro-batch in a part, or some of its instructions; or what travels.

    Attributes
    ----------
    part : int
    direction : Direction
    micro_batch : int
        Where weights travel in a stream, how many updates they have had; where their gradients do,
        the batch. In a step both are 0.
    chunk : int
        Where weights travel, their number in `Schedule.travels`.
    piece : (int, int) or None
        The first of the chunk's instructions that it does, and the one behind the last; None if it
        does all.
    """

    part: int
    direction: Direction
    micro_batch: int
    chunk: int
    piece: tuple[int, int] | None = None

    @property
    def is_of_weights(self) -> bool:
        """Whether nothing is computed, but weights or their gradients travel."""
        return self.direction in OF_WEIGHTS

    @property
    def is_begin(self) -> bool:
        """Whether a part begins a pass with it."""
        return self.chunk == 0 and (self.piece is None or self.piece[0] == 0)

    def __str__(self) -> str:
        """Without the part.

        >>> str(Action(0, Direction.FORWARD, 2, 5, (3, 9)))
        'F2.5[3:9]'
        """
        piece = "" if self.piece is None else f"[{self.piece[0]}:{self.piece[1]}]"
        return f"{self.direction.value}{self.micro_batch}.{self.chunk}{piece}"


class Piece(NamedTuple):
    """What travels by itself, or with others in a message.

    Attributes
    ----------
    direction : Direction
        FORWARD are maps, BACKWARD their gradients, whatever half of a backward pass sends them;
        SPREAD are weights, REDUCE their gradients.
    micro_batch : int
        As of the action that sends it.
    number : int
        Of the transfer, or of the weights.
    """

    direction: Direction
    micro_batch: int
    number: int


class Travel(NamedTuple):
    """Weights that belong to one part and of which another has copies, or the same one."""

    owner: int
    holder: int


class Message(NamedTuple):
    """What an action sends to one receiver: it travels as one.

    Attributes
    ----------
    number : int
        Its place in the global order of a step's messages.
    sender, receiver : int
    pieces : tuple of Piece
        All of one direction and micro-batch.
    """

    number: int
    sender: int
    receiver: int
    pieces: tuple[Piece, ...]

    @property
    def direction(self) -> Direction:
        """Of its pieces."""
        return self.pieces[0].direction

    @property
    def micro_batch(self) -> int:
        """Of its pieces."""
        return self.pieces[0].micro_batch

    @property
    def is_of_weights(self) -> bool:
        """Whether it is weights, or gradients of them."""
        return self.pieces[0].direction in OF_WEIGHTS


@dataclass(frozen=True, eq=False)
class Schedule:
    """When each part does what in a step, or with a stream of batches.

    Attributes
    ----------
    rule : str
        What made it.
    micro_batches : int
        Of a stream, its batches.
    outlines : tuple of Outline
        Of each part.
    order : tuple of Action
        All actions of all parts; each stands behind what it needs.
    in_flight : int or None
        How many batches of a stream each part may have begun at a time, where it updates its
        weights behind each; None for a step, which leaves that to its caller.
    travels : tuple of Travel
        Of a schedule that was lowered (see `hgpart.schedules.lowering`): the weights that travel;
        `order` says when.
    departing : mapping of Action to tuple of int
        For each piece of a chunk, the receivers whose message departs at its end.
    """

    rule: str
    micro_batches: int
    outlines: tuple[Outline, ...]
    order: tuple[Action, ...]
    in_flight: int | None = None
    travels: tuple[Travel, ...] = ()
    departing: Mapping[Action, tuple[int, ...]] = field(default_factory=dict)

    @property
    def k(self) -> int:
        """Number of parts."""
        return len(self.outlines)

    @cached_property
    def sequences(self) -> tuple[tuple[Action, ...], ...]:
        """What each part does, in order."""
        found: list[list[Action]] = [[] for _ in self.outlines]
        for action in self.order:
            found[action.part].append(action)
        return tuple(map(tuple, found))

    @cached_property
    def backward(self) -> bool:
        """Whether there are backward passes."""
        return any(action.direction in GO_BACK for action in self.order)

    @cached_property
    def forward_only(self) -> Schedule:
        """The same without backward passes, and gradients of weights."""
        if not self.backward:
            return self
        order = (action for action in self.order if action.direction in GO_FORWARD)
        return replace(self, order=tuple(order))

    @cached_property
    def backward_only(self) -> Schedule:
        """The same without forward passes, and weights."""
        order = (action for action in self.order if action.direction not in GO_FORWARD)
        return replace(self, order=tuple(order))

    @cached_property
    def of_gradients(self) -> Schedule:
        """The same where copies are like weights, which have not changed, and need none."""
        there = (Direction.SPREAD, Direction.GATHER)
        return replace(self, order=tuple(one for one in self.order if one.direction not in there))

    def keeping(self, parts: Collection[int]) -> Schedule:
        """The same order, where backward computes nothing again in some parts."""
        outlines = enumerate(self.outlines)
        kept = tuple(one.keeping if part in parts else one for part, one in outlines)
        return replace(self, outlines=kept)

    @cached_property
    def fingerprint(self) -> str:
        """Tells what each part does, and in which order, from others."""
        content: list[Any] = [[*map(str, sequence)] for sequence in self.sequences]
        if self.in_flight is not None and any(outline.owners for outline in self.outlines):
            content.append(self.staleness)  # which depends on who begins first
        return sha256(repr(content).encode()).hexdigest()[:16]

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """All that travels in a step, in the order of departure."""
        found: list[Message] = []
        for action in self.order:
            for receiver, pieces in self.sends(action).items():
                found.append(Message(len(found), action.part, receiver, pieces))
        return tuple(found)

    def chunk(self, action: Action) -> Chunk:
        """The chunk of an action."""
        if action.direction is Direction.UPDATE or action.is_of_weights:
            return UPDATING
        outline = self.outlines[action.part]
        forward = action.direction is Direction.FORWARD
        return (outline.forward if forward else outline.backward)[action.chunk]

    def awaits(self, action: Action) -> tuple[Piece, ...]:
        """What has to have come before an action."""
        part, direction, micro_batch, at, piece = action
        if direction in MOVE_MAPS and (piece is None or piece[0] == 0):
            kind = _kind(direction)
            return tuple(Piece(kind, micro_batch, one) for one in self.chunk(action).awaits)
        if direction is Direction.GATHER and self.travels[at].owner != part:
            return (Piece(Direction.SPREAD, micro_batch, at),)
        if direction is Direction.COLLECT and self.travels[at].holder != part:
            return (Piece(Direction.REDUCE, micro_batch, at),)
        return ()

    def sends(self, action: Action) -> Mapping[int, tuple[Piece, ...]]:
        """What departs at the end of an action, by receiver: a message for each."""
        part, direction, micro_batch, at, piece = action
        if direction in MOVE_MAPS:
            kind, messages = _kind(direction), self.chunk(action).messages
            return {
                receiver: tuple(Piece(kind, micro_batch, one) for one in numbers)
                for receiver, numbers in messages.items()
                if piece is None or receiver in self.departing[action]
            }
        if direction in (Direction.SPREAD, Direction.REDUCE):
            owner, holder = self.travels[at]
            receiver = holder if direction is Direction.SPREAD else owner
            if receiver != part:
                return {receiver: (Piece(direction, micro_batch, at),)}
        return {}

    @cached_property
    def alive(self) -> tuple[int, ...]:
        """The most micro-batches of which each part keeps maps at the same time."""
        return tuple(map(_most_alive, self.sequences))

    @cached_property
    def under_way(self) -> int:
        """The most micro-batches that some part has begun and not all have ended, at a time.

        If a part waits for all to have ended one that is as far behind the one that it begins, it
        waits for nothing that comes later in the order: so that can't come to a stop.
        """
        return _most_alive(self.order)

    @cached_property
    def staleness(self) -> tuple[tuple[int, ...], ...]:
        """Of each part, for each batch of a stream: updates that its weights are without.

        The weights are those that the part has when it begins the batch or, where other parts have
        copies of some, when the first of all these does, in the one order: so a batch has the same
        in all of them. With `Schedule.in_flight` of 1 there are none: the weights are those that
        all batches before have updated.
        """
        updates = [0] * self.k
        found: list[dict[int, int]] = [{} for _ in self.outlines]
        for part, direction, batch, chunk, _ in self.order:
            if direction is Direction.UPDATE:
                updates[part] += 1
            elif direction is Direction.FORWARD and chunk == 0:
                for owner in (part, *dict(self.outlines[part].owners)):
                    found[owner].setdefault(batch, batch - updates[owner])
        return tuple(tuple(stale for _, stale in sorted(one.items())) for one in found)


def _kind(direction: Direction) -> Direction:
    return Direction.FORWARD if direction is Direction.FORWARD else Direction.BACKWARD


def _most_alive(actions: Sequence[Action]) -> int:
    sequence = [action for action in actions if not action.is_of_weights]
    last: Mapping[int, int] = {action.micro_batch: at for at, action in enumerate(sequence)}
    alive, most = set[int](), 0
    for at, action in enumerate(sequence):
        alive.add(action.micro_batch)
        most = max(most, len(alive))
        if last[action.micro_batch] == at:
            alive.remove(action.micro_batch)
    return most


def outlines_fingerprint(outlines: Sequence[Outline]) -> str:
    """Tells the chunks of a placement from those of others."""
    content = [
        [[(chunk.awaits, [*chunk.messages.items()]) for chunk in chunks] for chunks in both]
        for both in ((outline.forward, outline.backward) for outline in outlines)
    ]
    serial = [outline.serial for outline in outlines]
    return sha256(repr((content, serial)).encode()).hexdigest()[:16]
