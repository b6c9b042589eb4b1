"""What actions and messages are estimated to take."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.schedules.outline import Chunk
from hgpart.schedules.schedule import Direction

PASSES = {
    Direction.FORWARD: 1,
    Direction.BACKWARD: 2,
    Direction.MAPS: 1,
    Direction.WEIGHTS: 1,
    Direction.UPDATE: 0,  # its time goes with the weights, not with the samples, and is short
}


@dataclass(frozen=True)
class Costs:
    """Seconds, of a micro-batch.

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

    def action(self, direction: Direction, chunk: Chunk) -> float:
        """How long a chunk takes."""
        work = PASSES[direction] * chunk.work
        if direction is not Direction.WEIGHTS:
            work += chunk.again
        return self.samples * self.work * work + self.step * chunk.steps

    def travel(self, chunk: Chunk, receiver: int) -> float:
        """How long what a chunk sends takes to a receiver."""
        nbytes = sum(sent.nbytes for sent in chunk.sends if sent.receiver == receiver)
        return self.message + self.samples * self.byte * nbytes
