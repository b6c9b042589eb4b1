"""The base class of objectives: the questions that each of them answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from hgpart.arrays import Float64, Int64
from hgpart.errors import ArgumentError
from hgpart.files.json_files import JsonObject


class Objective(ABC):
    """A measure of the parts' traffic, and for seconds of their work; less is better.

    Attributes
    ----------
    number : int
        The number of the objective in native/goal.hpp.
    default_eps : float
        Imbalance allowed where nobody says how much.
    is_volume : bool
        Whether it is the volume itself, which every search begins with.
    in_seconds : bool
        Whether its value is the seconds of a step, which depend on the layers' work.
    links : float64 array, shape (k, k), or None
        Cost of a byte from part s to part r at ``[s, r]``; None where all links are alike.
    seconds : float
        All work of a step; 0 where work does not count.
    micro_batches : int
        Micro-batches of a step.
    speeds : tuple of k floats, or None
        How many times as fast each part's device works as one that takes `seconds`; None for as
        fast, and where work does not count.
    """

    name: ClassVar[str]
    number: ClassVar[int]
    default_eps: ClassVar[float] = 0.1
    is_volume: ClassVar[bool] = False
    in_seconds: ClassVar[bool] = False
    links: Float64 | None = None
    seconds: float = 0.0
    micro_batches: int = 1
    speeds: tuple[float, ...] | None = None

    @abstractmethod
    def value(self, traffic: Int64, layer_work: Int64 | None = None) -> float:
        """Return the value.

        Parameters
        ----------
        traffic : int64 array, shape (k, k)
            Bytes that part s sends to part r at ``[s, r]``.
        layer_work : int64 array, shape (layers, k), optional
            Work of each layer in each part; needed where the value is seconds.
        """

    @abstractmethod
    def least(self, volume: int, k: int) -> float:
        """Return a lower bound of the value, where at least `volume` bytes travel."""

    @abstractmethod
    def in_words(self, value: float, volume: int, in_bytes: Callable[[int], str]) -> str | None:
        """Say what a partition of some value and volume costs; None if the volume says it all."""

    def in_micro_batches(self, count: int) -> Objective:
        """Return the same for a step in so many micro-batches, where they count."""
        return self

    def check(self, k: int, speeds: Sequence[float] | None) -> None:
        """Raise an ArgumentError if it can't be of k devices of these speeds."""
        if self.links is not None and len(self.links) != k:
            raise ArgumentError(f"link costs of {len(self.links)} devices, expected k={k}")

    def record(self) -> dict[str, Any]:
        """Return its fields in a plan file."""
        return {"objective": self.name, "links": None}

    @classmethod
    def read(cls, head: JsonObject, k: int) -> Objective:
        """Make it of the fields of a plan file for k devices.

        Raises
        ------
        FormatError
            If a field is missing or not as it should be.
        """
        return cls()
