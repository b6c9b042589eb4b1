"""Connection -> seconds that a message between devices that compute costs each of them.

Threads of gloo that find all processors computing wait until a time slice ends, and keep those that
send or wait. That happens to few messages, and takes as long as many: what is measured is the mean
of exchanges with a moment of computing before each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hgpart.machines.calibration.pairs import Pair
from hgpart.machines.calibration.slowdown import Operation
from hgpart.machines.calibration.steady import steady
from hgpart.machines.calibration.wire import Wire
from hgpart.machines.machine import Link
from hgpart.run.processes.connection import Connection

MESSAGE, EXCHANGES = 2**16, 60  # bytes of each, and how many each way in a round
ENDS = 4  # of an exchange: two messages, and while one end is late the others wait for it
MOMENT = 2e-3  # seconds of computing before each


def stall(
    connection: Connection,
    link: Link,
    operation: Operation,
    on_round: Callable[[], None] = lambda: None,
) -> float:
    """Measure it between each even rank and the next one, all at once.

    All processes call it, and have the result: the mean over them.

    Parameters
    ----------
    connection : Connection
        Of two processes or more.
    link : Link
        What messages take by it where nothing computes does not count.
    operation : callable
        What is computed.
    on_round : callable
        Told when a round begins.
    """
    pair = Pair(connection, operation)
    wire = None if pair.peer is None else Wire(connection, pair.peer, MESSAGE)
    times = pair.times_in(MOMENT)
    travelling = EXCHANGES * link.seconds_of(MESSAGE, both_ways=True)

    def a_round() -> tuple[float, ...]:
        on_round()
        connection.gather(None)
        silent = pair.compute(EXCHANGES * times)
        connection.gather(None)
        begin = time.perf_counter()
        for _ in range(EXCHANGES):
            if wire is None:
                pair.compute(times)
                continue
            arriving = wire.post()
            pair.compute(times)
            departing = wire.send()
            wire.take(arriving)
            wire.wait(departing)
        lost = pair.mean(time.perf_counter() - begin - silent - travelling)
        return (lost / (ENDS * EXCHANGES),)

    return steady(a_round)[0]
