"""Connection -> seconds that a message between devices that compute costs each of them.

Threads of gloo that find all processors computing wait until a time slice ends, and keep those that
send or wait. That happens to few messages, and takes as long as many: what is measured is the mean
of exchanges with a moment of computing before each of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from hgpart.machines.calibration.slowdown import Operation
from hgpart.machines.calibration.steady import steady
from hgpart.machines.calibration.wire import Wire
from hgpart.machines.machine import Link
from hgpart.run.processes.connection import Connection
from hgpart.work.devices import wait_for

MESSAGE, EXCHANGES = 2**16, 60  # bytes of each, and how many each way in a round
ENDS = 4  # of an exchange: two messages, and while one end is late the others wait for it
MOMENT = 2e-3  # seconds of computing before each


def stall(
    connection: Connection,
    link: Callable[[int, int], Link],
    operation: Operation,
    on_round: Callable[[], None] = lambda: None,
) -> float:
    """Measure it between each even rank and the next one, all at once.

    All processes call it, and have the result: the mean over them.

    Parameters
    ----------
    connection : Connection
        Of two processes or more.
    link : callable
        The link of a pair of processes: what messages take where nothing computes does not count.
    operation : callable
        What is computed.
    on_round : callable
        Told when a round begins.
    """
    rank = connection.rank
    peer = rank + 1 if rank % 2 == 0 else rank - 1
    wire = Wire(connection, peer, MESSAGE) if peer < connection.k else None

    def compute(times: int) -> None:
        for _ in range(times):
            operation()
        wait_for(connection.device)

    def seconds(times: int) -> float:
        begin = time.perf_counter()
        compute(times)
        return time.perf_counter() - begin

    times = math.ceil(MOMENT / max(connection.gather(seconds(1))))
    travelling = link(0, 1).seconds_of(MESSAGE, both_ways=True)

    def a_round() -> tuple[float, ...]:
        on_round()
        connection.gather(None)
        silent = seconds(EXCHANGES * times)
        connection.gather(None)
        begin = time.perf_counter()
        for _ in range(EXCHANGES):
            arriving = wire.post() if wire is not None else None
            compute(times)
            if wire is not None:
                departing = wire.send()
                wire.take(arriving)
                wire.wait(departing)
        lost = time.perf_counter() - begin - silent - EXCHANGES * travelling
        found = connection.gather(None if wire is None else lost)
        each = [max(0.0, one) for one in found if one is not None]
        return (sum(each) / len(each) / (ENDS * EXCHANGES),)

    return steady(a_round)[0]
