"""Connection -> seconds that a message between computing devices costs each of them.

A message through shared memory is copied by the processes themselves. By gloo, between machines,
threads that find all processors busy wait until a time slice ends, and hold up senders and
receivers. This happens to few messages, and then takes as long as many: the measurement is the mean
over exchanges with a moment of computing before each.
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

MESSAGE, EXCHANGES = 2**16, 60  # bytes of a message, and messages each way in a round
ENDS = 4  # ends of messages in an exchange of two: while one is late the others wait for it
MOMENT = 2e-3  # seconds of computing before each exchange


def stall(
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
        Link of the processes: the time that messages take while nothing computes is subtracted.
    operation : callable
        Computation that messages hold up.
    on_round : callable
        Called before each round.
    """
    pair = Pair(connection, operation)
    messages = None if pair.peer is None else Messages(connection, pair.peer, MESSAGE)
    times = pair.times_in(MOMENT)
    travelling = EXCHANGES * link.seconds_of(MESSAGE, both_ways=True)

    def measure_round() -> tuple[float, ...]:
        on_round()
        connection.gather(None)
        silent = pair.compute(EXCHANGES * times)
        connection.gather(None)
        begin = time.perf_counter()
        for _ in range(EXCHANGES):
            if messages is None:
                pair.compute(times)
                continue
            arrival = messages.begin_receiving()
            pair.compute(times)
            departure = messages.begin_sending()
            messages.receive(arrival)
            departure()
        lost = pair.mean(time.perf_counter() - begin - silent - travelling)
        return (lost / (ENDS * EXCHANGES),)

    return steady(measure_round, rounds)[0]
