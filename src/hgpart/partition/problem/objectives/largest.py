"""The bytes of the part that sends and receives most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hgpart.arrays import Int64
from hgpart.partition.problem.objectives.objective import Objective


@dataclass(frozen=True, eq=False)
class Largest(Objective):
    """Bytes that one part sends and receives, of the part with most."""

    name, number = "largest", 1

    def value(self, traffic: Int64, layer_work: Int64 | None = None) -> float:
        return int((traffic.sum(axis=0) + traffic.sum(axis=1)).max())

    def least(self, volume: int, k: int) -> float:
        return -(-2 * volume // k)

    def in_words(self, value: float, volume: int, in_bytes: Callable[[int], str]) -> str:
        return f"No device sends and receives more than {in_bytes(int(value))}"


LARGEST = Largest()
