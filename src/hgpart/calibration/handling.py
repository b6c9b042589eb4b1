"""Connection -> seconds of computing that a byte of a message costs each of its two processes.

Large messages, over gloo, are copied by threads that take time from computing; a GPU that sends by
itself loses nothing. The measurement is how much longer computing takes while messages are sent
both ways, divided by the bytes that a process sends and receives meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hgpart.calibration.messages import Messages
from hgpart.calibration.pairs import Pair
from hgpart.calibration.slowdown import Operation
from hgpart.calibration.steady import USUAL, RoundLimits, steady
from hgpart.machines.machine import Link
from hgpart.run.processes.connection import Connection

MESSAGE, MESSAGES = 2**23, 4  # bytes of a message, and messages each way in a round
COVERED = 4  # computing takes this many times as long as the messages


def handling(
    connection: Connection,
    link: Link,
    operation: Operation,
    on_round: Callable[[], None] = lambda: None,
    rounds: RoundLimits = USUAL,
) -> float:
    """Measure the cost between each even rank and the next one, all pairs at once.

    All processes call this, and all get the result: the mean over them.

    Parameters
    ----------
    connection : Connection
        Two processes or more.
    link : Link
        Link of the processes, which says how long messages take.
    operation : callable
        Computation that goes on while messages travel.
    on_round : callable
        Called before each round.
    """
    pair = Pair(connection, operation)
    peer = pair.peer
    messages = (
        [] if peer is None else [Messages(connection, peer, MESSAGE) for _ in range(MESSAGES)]
    )
    times = pair.times_in(COVERED * MESSAGES * link.seconds_of(MESSAGE, both_ways=True))

    def measure_round() -> tuple[float, ...]:
        on_round()
        connection.gather(None)
        silent = pair.compute(times)
        connection.gather(None)
        begin = time.perf_counter()
        arrivals = [message.begin_receiving() for message in messages]
        departures = [message.begin_sending() for message in messages]
        pair.compute(times)
        for message, arrival, departure in zip(messages, arrivals, departures, strict=True):
            message.receive(arrival)
            departure()
        lost = pair.mean(time.perf_counter() - begin - silent)
        return (lost / (2 * MESSAGES * MESSAGE),)

    return steady(measure_round, rounds)[0]
