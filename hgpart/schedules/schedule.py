"""Schedule: for each part a fixed sequence of actions, all of them cut from one global order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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


UPDATING = Chunk((), ())  # what an update awaits and sends


class Action(NamedTuple):
    """One chunk of one micro-batch in a part."""

    part: int
    direction: Direction
    micro_batch: int
    chunk: int

    def __str__(self) -> str:
        """Without the part.

        >>> str(Action(0, Direction.FORWARD, 2, 5))
        'F2.5'
        """
        return f"{self.direction.value}{self.micro_batch}.{self.chunk}"


class Message(NamedTuple):
    """What an action sends to one receiver: it travels as one.

    Attributes
    ----------
    number : int
        Its place in the global order of a step's messages.
    micro_batch, sender, receiver : int
    backward : bool
        Whether it is gradients.
    transfers : tuple of int
    """

    number: int
    micro_batch: int
    sender: int
    receiver: int
    backward: bool
    transfers: tuple[int, ...]


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
    """

    rule: str
    micro_batches: int
    outlines: tuple[Outline, ...]
    order: tuple[Action, ...]
    in_flight: int | None = None

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
        return any(action.direction is not Direction.FORWARD for action in self.order)

    @cached_property
    def forward_only(self) -> Schedule:
        """The same without backward passes."""
        if not self.backward:
            return self
        order = (action for action in self.order if action.direction is Direction.FORWARD)
        return replace(self, order=tuple(order))

    @cached_property
    def backward_only(self) -> Schedule:
        """The same without forward passes."""
        order = (action for action in self.order if action.direction is not Direction.FORWARD)
        return replace(self, order=tuple(order))

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
            if action.direction not in (Direction.WEIGHTS, Direction.UPDATE):
                backward = action.direction is not Direction.FORWARD
                for receiver, transfers in self.chunk(action).messages.items():
                    facts = action.micro_batch, action.part, receiver, backward, transfers
                    found.append(Message(len(found), *facts))
        return tuple(found)

    def chunk(self, action: Action) -> Chunk:
        """The chunk of an action."""
        if action.direction is Direction.UPDATE:
            return UPDATING
        outline = self.outlines[action.part]
        forward = action.direction is Direction.FORWARD
        return (outline.forward if forward else outline.backward)[action.chunk]

    @cached_property
    def alive(self) -> tuple[int, ...]:
        """The most micro-batches of which each part keeps maps at the same time."""
        return tuple(_most_alive(sequence) for sequence in self.sequences)

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
        for part, direction, batch, chunk in self.order:
            if direction is Direction.UPDATE:
                updates[part] += 1
            elif direction is Direction.FORWARD and chunk == 0:
                for owner in (part, *dict(self.outlines[part].owners)):
                    found[owner].setdefault(batch, batch - updates[owner])
        return tuple(tuple(stale for _, stale in sorted(one.items())) for one in found)


def _most_alive(sequence: Sequence[Action]) -> int:
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
