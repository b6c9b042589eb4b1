"""Schedule: a fixed sequence of actions for each part, all cut from one global order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

from hgpart.schedules.outline import Chunk, Outline


class Direction(str, Enum):
    """Kind of an action; the letters are those of the zero bubble paper, except M (its B)."""

    FORWARD = "F"
    BACKWARD = "B"
    MAPS = "M"  # the part of backward that maps need, whose gradients are then sent back
    WEIGHTS = "W"  # the rest of it
    UPDATE = "U"  # update of the part's weights by one batch's gradients: asynchronous training
    # `lower` adds these four where a part has copies of weights that belong to another part, or to
    # itself (then nothing is sent). The action's chunk is the number of the weights.
    SPREAD = "S"  # the owner sends its weights to the part that has the copy
    GATHER = "G"  # that part waits for them and writes them to its copy
    REDUCE = "R"  # that part sends the gradients of its copy to the owner
    COLLECT = "C"  # the owner waits for these gradients and adds them to its own


MOVE_MAPS = (Direction.FORWARD, Direction.BACKWARD, Direction.MAPS)  # or gradients of maps
GO_BACK = (Direction.BACKWARD, Direction.MAPS, Direction.WEIGHTS)
GO_FORWARD = (Direction.FORWARD, Direction.SPREAD, Direction.GATHER)
OF_WEIGHTS = (Direction.SPREAD, Direction.GATHER, Direction.REDUCE, Direction.COLLECT)
# Rules by which each part finds its order itself; by the second, slices have batches in turns.
DYNAMIC, TURNS = "dynamic", "turns"
UPDATING = Chunk((), ())  # an update awaits and sends nothing


class Action(NamedTuple):
    """A part's work on one chunk (or piece of one) of one micro-batch, or a transport of weights.

    Attributes
    ----------
    micro_batch : int
        Micro-batch. For weights that travel in a stream it is their number of updates, for their
        gradients the batch; in a step it is 0 for both.
    chunk : int
        Number of the chunk, or of the weights in `Schedule.travels`.
    piece : (int, int) or None
        Place of the first of the chunk's instructions to do, and the place after the last; None for
        all of them.
    """

    part: int
    direction: Direction
    micro_batch: int
    chunk: int
    piece: tuple[int, int] | None = None

    @property
    def is_of_weights(self) -> bool:
        """Whether it sends or receives weights or their gradients, and computes nothing."""
        return self.direction in OF_WEIGHTS

    @property
    def is_begin(self) -> bool:
        """Whether it is the first action of a part's pass."""
        return self.chunk == 0 and (self.piece is None or self.piece[0] == 0)

    def __str__(self) -> str:
        """The action without its part.

        >>> str(Action(0, Direction.FORWARD, 2, 5, (3, 9)))
        'F2.5[3:9]'
        """
        piece = "" if self.piece is None else f"[{self.piece[0]}:{self.piece[1]}]"
        return f"{self.direction.value}{self.micro_batch}.{self.chunk}{piece}"


class Piece(NamedTuple):
    """One thing that travels, alone or with others in a message.

    Attributes
    ----------
    direction : Direction
        FORWARD for maps and BACKWARD for their gradients (from either half of a backward pass);
        SPREAD for weights and REDUCE for their gradients.
    micro_batch : int
        Micro-batch of the action that sends it.
    number : int
        Number of the transfer, or of the weights.
    """

    direction: Direction
    micro_batch: int
    number: int


class Travel(NamedTuple):
    """Weights of one part (the owner) and their copies in another part, or in the same one."""

    owner: int
    holder: int


class Message(NamedTuple):
    """The pieces that an action sends to one receiver at once.

    Attributes
    ----------
    number : int
        Place in the global order of a step's messages.
    pieces : tuple of Piece
        Pieces of the same direction and micro-batch.
    """

    number: int
    sender: int
    receiver: int
    pieces: tuple[Piece, ...]

    @property
    def direction(self) -> Direction:
        """Direction of all its pieces."""
        return self.pieces[0].direction

    @property
    def micro_batch(self) -> int:
        """Micro-batch of all its pieces."""
        return self.pieces[0].micro_batch

    @property
    def is_of_weights(self) -> bool:
        """Whether it carries weights or their gradients."""
        return self.pieces[0].direction in OF_WEIGHTS


@dataclass(frozen=True, eq=False)
class Schedule:
    """What each part does in which order, in a step or in a stream of batches.

    Attributes
    ----------
    rule : str
        Name of the rule that made it.
    micro_batches : int
        Number of micro-batches; for a stream, of batches.
    outlines : tuple of Outline
        One outline per part.
    order : tuple of Action
        All actions of all parts, each after what it needs.
    in_flight : int or None
        Batches of a stream that a part may have begun and not ended, with an update of its weights
        after each; None for a step, whose caller updates the weights.
    travels : tuple of Travel
        Weights that travel, in a lowered schedule (see `hgpart.schedules.lowering`); `order` says
        when.
    departing : mapping of Action to tuple of int
        The receivers whose message departs at the end of a piece of a chunk, by that piece.
    turns : tuple of tuple of Outline
        Outlines of the parts in each turn, where batches take turns; `outlines` are the first.
    """

    rule: str
    micro_batches: int
    outlines: tuple[Outline, ...]
    order: tuple[Action, ...]
    in_flight: int | None = None
    travels: tuple[Travel, ...] = ()
    departing: Mapping[Action, tuple[int, ...]] = field(default_factory=dict)
    turns: tuple[tuple[Outline, ...], ...] = ()

    @property
    def k(self) -> int:
        """Number of parts."""
        return len(self.outlines)

    @property
    def is_dynamic(self) -> bool:
        """Whether a run takes what is ready; then the order is what its costs make of that."""
        return self.rule in (DYNAMIC, TURNS)

    def outlines_of(self, batch: int) -> tuple[Outline, ...]:
        """Outlines of the parts in a micro-batch, or a batch of a stream."""
        return self.turns[batch % len(self.turns)] if self.turns else self.outlines

    @cached_property
    def sequences(self) -> tuple[tuple[Action, ...], ...]:
        """Actions of each part, in order."""
        sequences: list[list[Action]] = [[] for _ in self.outlines]
        for action in self.order:
            sequences[action.part].append(action)
        return tuple(map(tuple, sequences))

    @cached_property
    def backward(self) -> bool:
        """Whether there are backward passes."""
        return any(action.direction in GO_BACK for action in self.order)

    @cached_property
    def forward_only(self) -> Schedule:
        """The same schedule without backward passes and without gradients of weights."""
        if not self.backward:
            return self
        order = (action for action in self.order if action.direction in GO_FORWARD)
        return replace(self, order=tuple(order))

    @cached_property
    def backward_only(self) -> Schedule:
        """The same schedule without forward passes and without weights that travel."""
        order = (action for action in self.order if action.direction not in GO_FORWARD)
        return replace(self, order=tuple(order))

    @cached_property
    def of_gradients(self) -> Schedule:
        """The same schedule for copies that are up to date, so that no weights are sent."""
        to_copies = (Direction.SPREAD, Direction.GATHER)
        order = (action for action in self.order if action.direction not in to_copies)
        return replace(self, order=tuple(order))

    def keeping(self, parts: Collection[int]) -> Schedule:
        """The same order without recomputation in some parts."""
        outlines = (
            outline.keeping if part in parts else outline
            for part, outline in enumerate(self.outlines)
        )
        return replace(self, outlines=tuple(outlines))

    @cached_property
    def fingerprint(self) -> str:
        """Differs between schedules in which some part does something else, or in another order."""
        content: list[Any] = [[*map(str, sequence)] for sequence in self.sequences]
        if self.in_flight is not None and any(outline.owners for outline in self.outlines):
            content.append(self.staleness)  # which depends on who begins first
        return sha256(repr(content).encode()).hexdigest()[:16]

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """All messages of a step, in the order of departure."""
        messages: list[Message] = []
        for action in self.order:
            for receiver, pieces in self.sends(action).items():
                messages.append(Message(len(messages), action.part, receiver, pieces))
        return tuple(messages)

    def chunk(self, action: Action) -> Chunk:
        """The chunk of an action."""
        if action.direction is Direction.UPDATE or action.is_of_weights:
            return UPDATING
        outline = self.outlines_of(action.micro_batch)[action.part]
        forward = action.direction is Direction.FORWARD
        return (outline.forward if forward else outline.backward)[action.chunk]

    def awaits(self, action: Action) -> tuple[Piece, ...]:
        """Pieces that must have arrived before an action."""
        part, direction, micro_batch, at, piece = action
        if direction in MOVE_MAPS and (piece is None or piece[0] == 0):
            kind = _kind(direction)
            return tuple(Piece(kind, micro_batch, number) for number in self.chunk(action).awaits)
        if direction is Direction.GATHER and self.travels[at].owner != part:
            return (Piece(Direction.SPREAD, micro_batch, at),)
        if direction is Direction.COLLECT and self.travels[at].holder != part:
            return (Piece(Direction.REDUCE, micro_batch, at),)
        return ()

    def sends(self, action: Action) -> Mapping[int, tuple[Piece, ...]]:
        """Pieces that depart at the end of an action, by receiver: one message for each."""
        part, direction, micro_batch, at, piece = action
        if direction in MOVE_MAPS:
            kind, messages = _kind(direction), self.chunk(action).messages
            return {
                receiver: tuple(Piece(kind, micro_batch, number) for number in numbers)
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
        """The largest number of micro-batches whose maps each part keeps at a time."""
        return tuple(map(_most_alive, self.sequences))

    @cached_property
    def under_way(self) -> int:
        """The most micro-batches that some part has begun and not all parts have ended.

        If a part waits until all parts have ended the micro-batch that is this far behind the one
        that it begins, it waits for nothing that comes later in the order: so this can't deadlock.
        In a dynamic order all parts together may have so many, and the last of them waits for none.
        """
        if self.is_dynamic:
            assert self.in_flight is not None
            return self.in_flight * self.k
        return _most_alive(self.order)

    @cached_property
    def staleness(self) -> tuple[tuple[int, ...], ...]:
        """The number of updates that each part's weights lack, for each batch of a stream.

        A batch is computed with the weights that the owner has when the first of the parts that use
        them (the owner, or a part with copies) begins the batch in the one order: they are the same
        in all of these parts. With an `in_flight` of 1 no update is missing.
        """
        updates = [0] * self.k
        lacking: list[dict[int, int]] = [{} for _ in self.outlines]
        for part, direction, batch, chunk, _ in self.order:
            if direction is Direction.UPDATE:
                updates[part] += 1
            elif direction is Direction.FORWARD and chunk == 0:
                for owner in (part, *dict(self.outlines[part].owners)):
                    lacking[owner].setdefault(batch, batch - updates[owner])
        return tuple(tuple(stale for _, stale in sorted(batches.items())) for batches in lacking)


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
    """Differs between placements that have different chunks."""
    content = [
        [[(chunk.awaits, [*chunk.messages.items()]) for chunk in chunks] for chunks in passes]
        for passes in ((outline.forward, outline.backward) for outline in outlines)
    ]
    serial = [outline.serial for outline in outlines]
    return sha256(repr((content, serial)).encode()).hexdigest()[:16]
