"""The volume: all bytes that travel between parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hgpart.arrays import Int64
from hgpart.partition.problem.objectives.objective import Objective


@dataclass(frozen=True, eq=False)
class Volume(Objective):
    """All bytes that travel."""

    name, number, is_volume = "volume", 0, True

    def value(self, traffic: Int64, layer_work: Int64 | None = None) -> float:
        return int(traffic.sum())

    def least(self, volume: int, k: int) -> float:
        return volume

    def in_words(self, value: float, volume: int, in_bytes: Callable[[int], str]) -> None:
        return None


VOLUME = Volume()
