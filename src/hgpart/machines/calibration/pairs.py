"""Connection, an operation -> Pair: two processes that compute, and send each other messages."""

from __future__ import annotations

import math
import time
from statistics import fmean

from hgpart.machines.calibration.slowdown import Operation
from hgpart.run.processes.connection import Connection
from hgpart.work.devices import wait_for


class Pair:
    """An even rank and the next one; all pairs do the same at once.

    Parameters
    ----------
    connection : Connection
        Of two processes or more.
    operation : callable
        What is computed.

    Attributes
    ----------
    peer : int or None
        The other rank; None for the last one of an odd number.
    """

    def __init__(self, connection: Connection, operation: Operation) -> None:
        self._connection, self._operation = connection, operation
        other = connection.rank ^ 1
        self.peer = other if other < connection.k else None

    def compute(self, times: int) -> float:
        """Do the operation so many times; the seconds of that."""
        begin = time.perf_counter()
        for _ in range(times):
            self._operation()
        wait_for(self._connection.device)
        return time.perf_counter() - begin

    def times_in(self, seconds: float) -> int:
        """How often the slowest process does it in some seconds, once at least."""
        slowest: float = max(self._connection.gather(self.compute(1)))
        return math.ceil(seconds / slowest)

    def mean(self, lost: float) -> float:
        """Of what processes that have a peer have lost, nothing at least."""
        found = self._connection.gather(None if self.peer is None else lost)
        return fmean(max(0.0, one) for one in found if one is not None)
