"""A part's work on a batch, in chunks: all that a schedule needs to know of its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple


class Stretch(NamedTuple):
    """Consecutive steps of which a part drops what they keep for backward.

    Attributes
    ----------
    steps : tuple of str
        Names of the steps, in order.
    offloaded : bool
        Whether what they keep goes to slower memory, from where backward reads it; else backward
        computes the steps a second time, at once, from what the first of them reads.
    """

    steps: tuple[str, ...]
    offloaded: bool = False


@dataclass(frozen=True)
class Sent:
    """A transfer that a chunk sends (forward), or whose gradient it sends back (backward).

    Attributes
    ----------
    transfer : int
        The transfer's number in the placement.
    receiver : int
        The receiving part.
    nbytes : int
        Bytes for a batch of one sample.
    """

    transfer: int
    receiver: int
    nbytes: int


@dataclass(frozen=True)
class Chunk:
    """A run of a part's instructions between two awaits: once begun, nothing can hold it up.

    Attributes
    ----------
    awaits : tuple of int
        Numbers of the transfers (backward: of their gradients) that must have arrived.
    sends : tuple of Sent
        Transfers that depart at the chunk's end, in order.
    work : float
        Work of the chunk's layers in a forward pass of one sample, in any unit.
    recomputed : float
        The same work of the layers that a backward chunk recomputes.
    steps : int
        Number of steps (shares of layers, each with its own autograd graph) that are computed.
    """

    awaits: tuple[int, ...]
    sends: tuple[Sent, ...]
    work: float = 0.0
    recomputed: float = 0.0
    steps: int = 0

    @cached_property
    def messages(self) -> Mapping[int, tuple[int, ...]]:
        """Numbers of the transfers that travel together, by receiver."""
        transfers: dict[int, tuple[int, ...]] = {}
        for sent in self.sends:
            transfers[sent.receiver] = (*transfers.get(sent.receiver, ()), sent.transfer)
        return transfers


@dataclass(frozen=True)
class Outline:
    """A part's program as chunks.

    Attributes
    ----------
    forward, backward : tuple of Chunk
        Chunks in the part's order; backward is divided in other places than forward.
    serial : bool
        Whether a forward pass reads state that the previous one leaves at its end, so that each
        micro-batch waits for the one before.
    dropped : tuple of Stretch
        Stretches of the part's program that do not keep what backward needs of them: it recomputes
        one when it comes to its last step, from what the stretch read, or reads it from slower
        memory.
    owners : tuple of (int, int)
        Parts whose weights this part has copies of, to compute with them for other slices of the
        batch; and the bytes of the gradients that it sends to each of them.
    """

    forward: tuple[Chunk, ...]
    backward: tuple[Chunk, ...]
    serial: bool = False
    dropped: tuple[Stretch, ...] = ()
    owners: tuple[tuple[int, int], ...] = ()

    @property
    def keeping(self) -> Outline:
        """The same outline with nothing dropped."""
        backward = tuple(replace(chunk, recomputed=0.0) for chunk in self.backward)
        return replace(self, backward=backward, dropped=())


class Computation(NamedTuple):
    """One or more instructions of a chunk that share one autograd graph.

    Attributes
    ----------
    place, end : int
        Place of the first instruction in the chunk, and the place after the last.
    weights : tuple of int
        Numbers of the weights (see `Schedule.travels`) of which copies are read; backward adds to
        their gradients.
    sends : tuple of int
        Transfers that depart (backward: whose gradients do).
    """

    place: int
    end: int
    weights: tuple[int, ...]
    sends: tuple[int, ...]


Computations = Sequence[Sequence[Computation]]  # of each chunk


@dataclass(frozen=True, eq=False)
class Uses:
    """The copies of weights that a part reads.

    Attributes
    ----------
    forward, backward : sequence of sequence of Computation
        Computations of each chunk.
    in_halves : sequence of sequence of Computation
        The same for a backward pass in halves, where each instruction has its own graph.
    """

    forward: Computations
    backward: Computations
    in_halves: Computations
