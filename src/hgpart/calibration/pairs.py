"""Connection, an operation -> Pair: two processes that compute and send each other messages."""

from __future__ import annotations

import math
import time
from statistics import fmean

from hgpart.calibration.slowdown import Operation
from hgpart.run.processes.connection import Connection
from hgpart.work.devices import wait_for


class Pair:
    """An even rank and the next one; all pairs do the same at once.

    Parameters
    ----------
    connection : Connection
        Two processes or more.
    operation : callable
        Computation that both ranks do.

    Attributes
    ----------
    peer : int or None
        The other rank; None for the last one of an odd number.
    """

    def __init__(self, connection: Connection, operation: Operation) -> None:
        self._connection, self._operation = connection, operation
        peer = connection.rank ^ 1
        self.peer = peer if peer < connection.k else None

    def compute(self, times: int) -> float:
        """Do the operation some times; returns the seconds that this takes."""
        begin = time.perf_counter()
        for _ in range(times):
            self._operation()
        wait_for(self._connection.device)
        return time.perf_counter() - begin

    def times_in(self, seconds: float) -> int:
        """How often the slowest process can do the operation in some seconds, at least once."""
        slowest: float = max(self._connection.gather(self.compute(1)))
        return math.ceil(seconds / slowest)

    def mean(self, lost: float) -> float:
        """The mean of the seconds lost by processes that have a peer; gains count as 0."""
        losses = self._connection.gather(None if self.peer is None else lost)
        return fmean(max(0.0, seconds) for seconds in losses if seconds is not None)
