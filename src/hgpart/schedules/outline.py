"""What a part does with a batch, in chunks: all that a schedule needs to know of its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple


@dataclass(frozen=True)
class Sent:
    """A transfer that a chunk sends, or whose gradient it sends back.

    Attributes
    ----------
    transfer : int
        Its number in the placement.
    receiver : int
        The part that it goes to.
    nbytes : int
        For a batch of one sample.
    """

    transfer: int
    receiver: int
    nbytes: int


@dataclass(frozen=True)
class Chunk:
    """A run of a part's instructions between two awaits: nothing can hold it up once it has begun.

    Attributes
    ----------
    awaits : tuple of int
        Numbers of the transfers that have to be there (backward: of their gradients).
    sends : tuple of Sent
        What is there when it has ended, in order.
    work : float
        Of its layers in a forward pass of one sample, in whatever unit.
    again : float
        Of a backward pass: the same of what it computes again.
    steps : int
        That it computes: shares of layers, each with a graph of its own.
    """

    awaits: tuple[int, ...]
    sends: tuple[Sent, ...]
    work: float = 0.0
    again: float = 0.0
    steps: int = 0

    @cached_property
    def messages(self) -> Mapping[int, tuple[int, ...]]:
        """By receiver, the transfers that travel together."""
        found: dict[int, tuple[int, ...]] = {}
        for sent in self.sends:
            found[sent.receiver] = (*found.get(sent.receiver, ()), sent.transfer)
        return found


@dataclass(frozen=True)
class Outline:
    """A part's program as chunks.

    Attributes
    ----------
    forward, backward : tuple of Chunk
        In the order in which the part goes through them; those of backward are other runs.
    serial : bool
        Whether a forward pass finds state that the one before has left at its end, so that each
        micro-batch has to wait for the one before it.
    again : tuple of int
        The forward chunks that backward computes again, so that only what they read is kept.
    owners : tuple of (int, int)
        Other parts whose weights it has copies of, as it computes with them for other slices of the
        batch; and how many bytes their gradients have, that it sends to each of them.
    """

    forward: tuple[Chunk, ...]
    backward: tuple[Chunk, ...]
    serial: bool = False
    again: tuple[int, ...] = ()
    owners: tuple[tuple[int, int], ...] = ()

    @property
    def keeping(self) -> Outline:
        """The same, where nothing is computed again."""
        backward = tuple(replace(chunk, again=0.0) for chunk in self.backward)
        return replace(self, backward=backward, again=())


class Line(NamedTuple):
    """What is computed at once in a chunk: one instruction, or several with one autograd graph.

    Attributes
    ----------
    place, end : int
        Where its first instruction stands in the chunk, and where the one behind its last does.
    weights : tuple of int
        Numbers of the weights (see `Schedule.travels`) that it reads copies of; backward it adds to
        their gradients.
    sends : tuple of int
        Transfers that it lets depart, or whose gradients it sends back.
    """

    place: int
    end: int
    weights: tuple[int, ...]
    sends: tuple[int, ...]


Lines = Sequence[Sequence[Line]]  # of each chunk


@dataclass(frozen=True, eq=False)
class Uses:
    """What a part reads copies of.

    Attributes
    ----------
    forward, backward : sequence of sequence of Line
        Of each chunk.
    in_halves : sequence of sequence of Line
        Of each chunk of a backward pass in halves, where each instruction has a graph of its own.
    """

    forward: Lines
    backward: Lines
    in_halves: Lines
