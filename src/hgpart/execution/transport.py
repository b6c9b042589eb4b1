"""Transport: what carries messages between parts, in threads of one process or in processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hgpart.execution.program import PartProgram
from hgpart.execution.weights.copies import Travelling
from hgpart.schedules.dynamic.order import Ready
from hgpart.schedules.schedule import Action, Piece, Schedule


class Channel(Protocol):
    """What the parts in this process send and receive in one pass, or in half of one."""

    def send(self, piece: Piece, receiver: int, tensors: Sequence[Tensor]) -> None:
        """Send tensors, without waiting; they are not changed afterwards.

        Pieces of one message depart when all of them are there. Weights are one tensor of bytes.
        """

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        """Wait for a piece, once for each; its tensors may be on another device."""

    def settle(self) -> bool:
        """Wait until all that was sent has departed; returns whether that can take time."""

    def stop(self) -> None:
        """Wake all that wait, and let nothing wait any more."""


class QueuedChannel(Channel, Protocol):
    """What also tells what has arrived, for a schedule whose order is dynamic."""

    def has(self, piece: Piece) -> bool:
        """Whether a piece has arrived."""

    def wait_for(self, find: Ready) -> Sequence[Action]:
        """What `find` finds, now or as soon as something else has arrived."""


class Executor(Protocol):
    """Runs one job per part."""

    def __call__(
        self, jobs: Sequence[Callable[[], Any]], stop: Callable[[], object]
    ) -> Sequence[Any]:
        """Run the jobs; if one fails, `stop` wakes those that wait."""


class StreamBatches(Protocol):
    """The batches of a stream, as each part gets them."""

    def of(self, part: int) -> Iterator[Any]:
        """Batches of a part, each as soon as the part may begin it."""

    def end(self, part: int) -> None:
        """Note that a part has ended a batch."""

    def stop(self) -> None:
        """Wake all that wait, and let nothing wait any more."""


class Transport(Protocol):
    """Carries messages between the parts of this process and those of other processes.

    Attributes
    ----------
    parts : sequence of int
        The parts in this process.
    """

    parts: Sequence[int]

    def device(self, part: int) -> torch.device:
        """Device of a part in this process."""

    def gather(self, value: Any) -> list[Any]:
        """Collect the values of all processes; all of them call it."""

    def so_on_any(self, here: Sequence[bool]) -> Sequence[bool]:
        """For each flag, whether it is set in any process; all of them call it."""

    def add_later(self, value: float, parts: Collection[int]) -> Callable[[], float]:
        """Add up the values of the processes that have these parts; all of them call it.

        The returned function gives the sum, and only then waits for it.
        """

    def open(
        self,
        schedule: Schedule,
        programs: Mapping[int, PartProgram],
        sizes: Sequence[int],
        travelling: Travelling | None,
        autocast: torch.dtype | None = None,
    ) -> Channel:
        """Begin to send and receive the messages of a schedule; by a `QueuedChannel` if dynamic.

        Parameters
        ----------
        programs : mapping of int to PartProgram
            Programs of the parts in this process.
        sizes : sequence of int
            Samples of each micro-batch.
        travelling : Travelling, optional
            Weights that travel in the schedule.
        autocast : torch.dtype, optional
            The type of autocast in the pass's forward, which decides the types of maps.
        """

    def batches(self, source: Iterator[Any], under_way: int) -> StreamBatches:
        """Divide the batches of a stream among the parts, with at most `under_way` at a time."""

    def executor(self) -> Executor:
        """An executor for the parts of this process, in their order, on GPUs' current streams."""

    def close(self) -> None:
        """End the threads that passes have started, if any; the next pass starts new ones."""
