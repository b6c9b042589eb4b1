"""How long actions and messages are estimated to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hgpart.errors import check_number
from hgpart.schedules.outline import Chunk
from hgpart.schedules.schedule import Action, Direction

PASSES = {
    Direction.FORWARD: 1,
    Direction.BACKWARD: 2,
    Direction.MAPS: 1,
    Direction.WEIGHTS: 1,
    Direction.UPDATE: 0,  # its time goes with the weights, not with the samples, and is short
}


class CostModel(Protocol):
    """Seconds of actions, and of messages between two parts with nothing else on their way."""

    def action(self, action: Action, chunk: Chunk) -> float:
        """Seconds that an action takes, given its chunk."""

    def travel(self, action: Action, chunk: Chunk, receiver: int, both_ways: bool = False) -> float:
        """Seconds that an action's message to a receiver takes.

        With `both_ways`, while messages travel in the other direction, too.
        """

    def handling(self, action: Action, chunk: Chunk, receiver: int) -> float:
        """Seconds of computing time that sending or receiving this message costs a part."""

    def exchange(self, sender: int, receiver: int, nbytes: float, both_ways: bool = False) -> float:
        """Seconds of a message of weights that several parts have, or of their gradients."""


@dataclass(frozen=True)
class Costs:
    """Rough costs of a micro-batch: all links are alike, and all devices but for their speeds.

    A backward pass counts as two forward passes: a product with the weights, and one with the
    maps.

    Attributes
    ----------
    samples : float
        Samples of a micro-batch.
    work : float
        Seconds per unit of work.
    byte, message : float
        Seconds per byte of a message, and per message.
    step : float
        Seconds per pass through a step, in addition to its work: a backward pass in halves goes
        through it twice.
    speeds : sequence of float, or None
        How many times as fast each part computes; None for all alike.
    """

    samples: float = 1.0
    work: float = 1.25e-11  # 80 G multiply-accumulates a second: a fast core
    byte: float = 5e-10
    message: float = 1e-4
    step: float = 2e-4
    speeds: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, value in vars(self).items():
            if name != "speeds":
                check_number(name, value)

    def action(self, action: Action, chunk: Chunk) -> float:
        """Seconds that an action takes."""
        work = PASSES[action.direction] * chunk.work
        if action.direction is not Direction.WEIGHTS:
            work += chunk.recomputed
        seconds = self.samples * self.work * work + self.step * chunk.steps
        return seconds if self.speeds is None else seconds / self.speeds[action.part]

    def travel(self, action: Action, chunk: Chunk, receiver: int, both_ways: bool = False) -> float:
        """Seconds that an action's message to a receiver takes."""
        nbytes = sum(sent.nbytes for sent in chunk.sends if sent.receiver == receiver)
        return self.message + self.samples * self.byte * nbytes

    def handling(self, action: Action, chunk: Chunk, receiver: int) -> float:
        """Zero: devices compute and send at the same time."""
        return 0.0

    def exchange(self, sender: int, receiver: int, nbytes: float, both_ways: bool = False) -> float:
        """Seconds that a message of weights, or of their gradients, takes."""
        return self.message + self.byte * nbytes
