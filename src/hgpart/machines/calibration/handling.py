"""Connection -> seconds of computing that a byte of a message costs each of its two processes.

Messages over gloo are copied by threads that take time from those that compute; a GPU that sends by
itself loses nothing. What is measured is the time that computing takes longer while messages travel
both ways, by the bytes that a process sends and receives meanwhile.
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

MESSAGE, MESSAGES = 2**20, 32  # bytes of each, and how many travel each way in a round
COVERED = 4  # times as long as they travel, computing takes


def handling(
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
        Which says how long messages travel.
    operation : callable
        What is computed meanwhile.
    on_round : callable
        Told when a round begins.
    """
    pair = Pair(connection, operation)
    peer = pair.peer
    wires = [] if peer is None else [Wire(connection, peer, MESSAGE) for _ in range(MESSAGES)]
    times = pair.times_in(COVERED * MESSAGES * link.seconds_of(MESSAGE, both_ways=True))

    def a_round() -> tuple[float, ...]:
        on_round()
        connection.gather(None)
        silent = pair.compute(times)
        connection.gather(None)
        begin = time.perf_counter()
        arriving = [wire.post() for wire in wires]
        departing = [wire.send() for wire in wires]
        pair.compute(times)
        for wire, coming, going in zip(wires, arriving, departing, strict=True):
            wire.take(coming)
            wire.wait(going)
        lost = pair.mean(time.perf_counter() - begin - silent)
        return (lost / (2 * MESSAGES * MESSAGE),)

    return steady(a_round)[0]
