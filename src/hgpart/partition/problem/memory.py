"""CnnHypergraph + parts -> bytes that each part needs; limits of them.

A part keeps its parameters, in as many copies as training has of them (gradients, the optimizer's
state), the maps that it makes, and the maps and partial sums that it receives. A step that ends
before the next begins has those of one batch at most, in however many micro-batches; asynchronous
training those of all batches in flight, and for each batch more a version of the parameters and the
gradients of that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, check_number, check_whole
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.shares import part_shares

COPIES = 4.0  # a parameter, its gradient and Adam's two moments
UNITS = {
    "": 1,
    **{"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
}
DECIMAL = ("B", "kB", "MB", "GB", "TB")
MOST_BYTES = 2**62


@dataclass(frozen=True)
class MemoryLimits:
    """Memory that each part may need.

    Attributes
    ----------
    bytes : tuple of int
        Limit of each part.
    copies : float
        Copies of each parameter that a part keeps: 1 to infer, 2 to train by gradient descent, 3
        with momentum, 4 with Adam.
    in_flight : int
        Number of batches at a time.

    Raises
    ------
    ArgumentError
        If a number is out of range.
    """

    bytes: tuple[int, ...]
    copies: float = COPIES
    in_flight: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        for limit in self.bytes:
            check_whole("memory limit", limit, 0, MOST_BYTES, " bytes")
        check_number("copies of parameters", self.copies, 0, 1000)
        check_whole("batches in flight", self.in_flight, 1, 1000)

    @property
    def each(self) -> MemoryLimits:
        """The share of one batch in flight: whoever keeps to it, keeps to the limits."""
        if self.in_flight == 1:
            return self
        copies = _copies(self.copies, self.in_flight) / self.in_flight
        return MemoryLimits(tuple(limit // self.in_flight for limit in self.bytes), copies)

    @property
    def counted(self) -> str:
        """Description of what is counted.

        >>> MemoryLimits((100,)).counted
        '4 copies of its parameters'
        >>> MemoryLimits((100,), 2, in_flight=3).counted.partition(", ")[2]
        '2 more versions of them with gradients, and the maps of 3 batches in flight'
        """
        copies = f"{self.copies:g} copies of its parameters"
        if self.in_flight == 1:
            return copies
        more = self.in_flight - 1
        return (
            f"{copies}, {more} more version{'s' * (more > 1)} of them with gradients, and the maps "
            f"of {self.in_flight} batches in flight"
        )

    def needed(self, model: CnnHypergraph, parts: Int32) -> Int64:
        """Bytes that each part needs, by `part_memory`."""
        return part_memory(model, parts, len(self.bytes), self.copies, self.in_flight)

    def least(self, parameter_bytes: int, map_bytes: int) -> int:
        """The least bytes that filters need on any device, by their parameters and maps."""
        kept = int(_copies(self.copies, self.in_flight) * parameter_bytes)
        return kept + self.in_flight * map_bytes

    def hold(self, needed: Int64) -> bool:
        """Whether no part needs more than its limit."""
        return bool((needed <= self.bytes).all())


def part_memory(
    model: CnnHypergraph, parts: Int32, k: int, copies: float, in_flight: int = 1
) -> Int64:
    """Return the bytes that each of k parts needs, shape (k,)."""
    shares = part_shares(model, parts, k)
    kept: Int64 = np.ceil(_copies(copies, in_flight) * shares.parameter_bytes).astype(np.int64)
    return kept + in_flight * shares.activation_bytes


def _copies(copies: float, in_flight: int) -> float:
    """Copies for one batch in flight, plus weights and gradients for each further one."""
    return copies + 2 * (in_flight - 1)


def memory_limits(
    texts: Sequence[str], k: int, copies: float = COPIES, in_flight: int = 1
) -> MemoryLimits:
    """Read limits as they are written on a command line: one for each of k parts, or one for all.

    >>> memory_limits(["2GiB"], 2).bytes
    (2147483648, 2147483648)

    Raises
    ------
    ArgumentError
        If a text is not a number of bytes, or there are neither one nor k of them.
    """
    limits = tuple(map(number_of_bytes, texts))
    if len(limits) not in (1, k):
        raise ArgumentError(
            f"{len(limits)} memory limits for k={k}, expected one for all or one for each part"
        )
    return MemoryLimits(limits if len(limits) == k else limits * k, copies, in_flight)


def in_words(count: int) -> str:
    """Write a number of bytes with four digits and its unit.

    >>> in_words(2_412_345_678), in_words(10_000), in_words(999)
    ('2.412 GB', '10 kB', '999 B')
    """
    size, unit = max((UNITS[unit], unit) for unit in DECIMAL if UNITS[unit] <= max(1, count))
    return f"{count / size:.4g} {unit}"


def number_of_bytes(text: str, what: str = "memory") -> int:
    """Read a number of bytes, with its unit; an error names what they are of.

    >>> number_of_bytes("1.5MB"), number_of_bytes("512 MiB"), number_of_bytes("2000")
    (1500000, 536870912, 2000)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2] not in UNITS:
        accepted = ", ".join(unit for unit in UNITS if unit)
        raise ArgumentError(f"{what} {text!r}: accepted is a number with a unit of {accepted}")
    return round(float(match[1]) * UNITS[match[2]])
