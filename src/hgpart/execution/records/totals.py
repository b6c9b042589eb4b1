"""What parts did: bytes and messages that they sent, seconds that they worked and waited."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add

import numpy as np

from hgpart.arrays import Int64


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes and messages that were really sent, counted at the sender.

    Attributes
    ----------
    forward_bytes, forward_messages, backward_bytes, backward_messages : int64 arrays, (k, k)
        Counts from the part of the row to the part of the column, of the transfers of the
        communication volume.
    uncounted_bytes : int64 array, shape (k, k)
        Bytes of all other transfers, in both directions.
    """

    forward_bytes: Int64
    forward_messages: Int64
    backward_bytes: Int64
    backward_messages: Int64
    uncounted_bytes: Int64

    @classmethod
    def none(cls, k: int) -> Traffic:
        """No traffic yet, among k parts."""
        return cls(*(np.zeros((k, k), np.int64) for _ in fields(cls)))

    def count(self, ends: tuple[int, int], nbytes: int, *, backward: bool, counted: bool) -> None:
        """Count a message from one part to another; `counted`: in the communication volume."""
        if not counted:
            self.uncounted_bytes[ends] += nbytes
        elif backward:
            self.backward_bytes[ends] += nbytes
            self.backward_messages[ends] += 1
        else:
            self.forward_bytes[ends] += nbytes
            self.forward_messages[ends] += 1

    def __add__(self, other: Traffic) -> Traffic:
        """The sum of both.

        >>> traffic = Traffic.none(k=2)
        >>> traffic.forward_bytes[0, 1] = 8
        >>> (traffic + traffic).forward_bytes.sum()
        np.int64(16)
        """
        return Traffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, steps: int) -> Traffic:
        """The traffic of several equal steps."""
        return Traffic(*(getattr(self, f.name) * steps for f in fields(self)))


@dataclass
class Timing:
    """Seconds that a part worked and waited for messages; on a GPU, the host's."""

    forward_busy: float = 0.0
    forward_waiting: float = 0.0
    backward_busy: float = 0.0
    backward_waiting: float = 0.0

    @property
    def busy(self) -> float:
        """Seconds of work in both directions."""
        return self.forward_busy + self.backward_busy

    @property
    def waiting(self) -> float:
        """Seconds of waiting in both directions."""
        return self.forward_waiting + self.backward_waiting

    def add(self, direction: str, seconds: float, waiting: float) -> None:
        """Add the seconds of an action, including those of waiting."""
        busy = getattr(self, f"{direction}_busy") + seconds - waiting
        setattr(self, f"{direction}_busy", busy)
        setattr(self, f"{direction}_waiting", getattr(self, f"{direction}_waiting") + waiting)

    def __add__(self, other: Timing) -> Timing:
        """The sum of both.

        >>> Timing(forward_busy=1.0) + Timing(forward_busy=0.5, backward_waiting=2.0)
        Timing(forward_busy=1.5, forward_waiting=0.0, backward_busy=0.0, backward_waiting=2.0)
        """
        return Timing(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, eq=False)
class Totals:
    """What several parts did.

    Attributes
    ----------
    timings : tuple of Timing
        One for each part.
    traffic : Traffic
        Traffic of all of them.
    """

    timings: tuple[Timing, ...]
    traffic: Traffic

    @classmethod
    def none(cls, parts: int, k: int) -> Totals:
        """Nothing done yet, by some of k parts."""
        return cls(tuple(Timing() for _ in range(parts)), Traffic.none(k))

    def __add__(self, other: Totals) -> Totals:
        """The sum of both, part by part."""
        return Totals((*map(add, self.timings, other.timings),), self.traffic + other.traffic)
