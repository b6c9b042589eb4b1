"""What actions and messages are estimated to take."""

from __future__ import annotations

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
    """Seconds of actions, and of messages between two parts while nothing else travels there."""

    def action(self, action: Action, chunk: Chunk) -> float:
        """How long an action takes, which is a chunk's."""

    def travel(self, action: Action, chunk: Chunk, receiver: int, both_ways: bool = False) -> float:
        """How long what an action sends takes to a receiver.

        With `both_ways`, while messages travel the other way, too.
        """

    def handling(self, action: Action, chunk: Chunk, receiver: int) -> float:
        """Seconds of computing that the same message costs each of its two parts on its way."""

    def exchange(self, sender: int, receiver: int, nbytes: float, both_ways: bool = False) -> float:
        """Seconds of weights that several parts have, or of their gradients."""


@dataclass(frozen=True)
class Costs:
    """Guesses, of a micro-batch: any two devices and links are alike.

    A backward pass counts twice what a forward pass does: a product with the weights, and one with
    the maps.

    Attributes
    ----------
    samples : float
        Of a micro-batch.
    work : float
        Seconds of a unit of work.
    byte, message : float
        Seconds of a message's bytes, and of any message besides.
    step : float
        Seconds that any pass through a step takes besides its work: a backward pass in halves goes
        through it twice.
    """

    samples: float = 1.0
    work: float = 1.25e-11  # 80 G multiply-accumulates a second: a fast core
    byte: float = 5e-10
    message: float = 1e-4
    step: float = 2e-4

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, value in vars(self).items():
            check_number(name, value)

    def action(self, action: Action, chunk: Chunk) -> float:
        """How long an action takes."""
        work = PASSES[action.direction] * chunk.work
        if action.direction is not Direction.WEIGHTS:
            work += chunk.again
        return self.samples * self.work * work + self.step * chunk.steps

    def travel(self, action: Action, chunk: Chunk, receiver: int, both_ways: bool = False) -> float:
        """How long what an action sends takes to a receiver."""
        nbytes = sum(sent.nbytes for sent in chunk.sends if sent.receiver == receiver)
        return self.message + self.samples * self.byte * nbytes

    def handling(self, action: Action, chunk: Chunk, receiver: int) -> float:
        """Nothing: devices compute and send at once."""
        return 0.0

    def exchange(self, sender: int, receiver: int, nbytes: float, both_ways: bool = False) -> float:
        """How long weights that several parts have take, or their gradients."""
        return self.message + self.byte * nbytes
