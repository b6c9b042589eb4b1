"""Transport: how what parts send comes to others, be they threads of a process or processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hgpart.execution.program import PartProgram
from hgpart.execution.weights.copies import Travelling
from hgpart.schedules.schedule import Piece, Schedule


class Wires(Protocol):
    """The ends of all that parts here send and receive in one pass, or in half of one."""

    def send(self, piece: Piece, receiver: int, tensors: Sequence[Tensor]) -> None:
        """Let tensors depart, at once; they are not changed afterwards.

        Pieces that travel together depart when all of them are there. Of weights there is one
        tensor, of bytes.
        """

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        """Wait for what was sent, each piece once; it may be on another device."""

    def settle(self) -> bool:
        """Wait until all that was sent has departed; whether that takes time."""

    def stop(self) -> None:
        """Wake all that wait, and let none wait again."""


class Executor(Protocol):
    """Runs jobs of parts."""

    def __call__(
        self, jobs: Sequence[Callable[[], Any]], stop: Callable[[], object]
    ) -> Sequence[Any]:
        """Run a job for each part; `stop` wakes those that wait, if one fails."""


class Batches(Protocol):
    """The batches of a stream, for each part."""

    def of(self, part: int) -> Iterator[Any]:
        """What a part gets, when it may begin it."""

    def end(self, part: int) -> None:
        """Note that a part has ended a batch."""

    def stop(self) -> None:
        """Wake all that wait, and let none wait again."""


class Transport(Protocol):
    """How the parts in this process reach each other, and those in other processes.

    Attributes
    ----------
    parts : sequence of int
        The parts in this process.
    """

    parts: Sequence[int]

    def device(self, part: int) -> torch.device:
        """Where a part is that is here."""

    def gather(self, value: Any) -> list[Any]:
        """What each process has; all call it."""

    def so_on_any(self, here: Sequence[bool]) -> Sequence[bool]:
        """Whether each of some things is so in any process; all call it."""

    def add_later(self, value: float, parts: Collection[int]) -> Callable[[], float]:
        """Add up what the processes of some parts have; all call it.

        Nobody waits before calling what is returned.
        """

    def open(
        self,
        schedule: Schedule,
        programs: Mapping[int, PartProgram],
        sizes: Sequence[int],
        travelling: Travelling | None,
    ) -> Wires:
        """Begin to send and receive what a schedule says.

        Parameters
        ----------
        schedule : Schedule
        programs : mapping of int to PartProgram
            The programs of the parts in this process.
        sizes : sequence of int
            Samples of each micro-batch.
        travelling : Travelling, optional
            The weights that travel in it.
        """

    def batches(self, source: Iterator[Any], under_way: int) -> Batches:
        """Divide the batches of a stream; so many are under way at a time."""

    def executor(self) -> Executor:
        """What runs a job for each part that is here, in their order, on GPUs' present streams."""
