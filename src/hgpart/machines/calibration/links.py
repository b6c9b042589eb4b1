"""Connection, two of its processes -> Link: seconds of messages, one way and both ways at once.

No two clocks are compared: one way is half of a message and its answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hgpart.machines.calibration.steady import rising, steady
from hgpart.machines.calibration.wire import Wire
from hgpart.machines.machine import Link
from hgpart.run.processes.connection import Connection

SIZES = tuple(4**power for power in range(5, 14))  # bytes: 1 KB to 64 MB
LONGEST = 0.5  # seconds of a message that is not followed by a longer one
ROUND_BYTES, MOST_MESSAGES = 2**21, 50  # of a round, each way


def link_between(
    connection: Connection,
    one: int,
    other: int,
    on_size: Callable[[], None] = lambda: None,
) -> Link:
    """Measure the link of two processes; all processes call it, and have the result.

    Messages become longer until they take half a second.

    Parameters
    ----------
    connection : Connection
    one, other : int
    on_size : callable
        Told when the next size is measured.
    """
    sizes: list[int] = []
    times: list[tuple[float, ...]] = []
    for nbytes in SIZES:
        if len(times) > 1 and times[-1][1] > LONGEST:
            break
        on_size()
        times.append(_seconds(connection, one, other, nbytes))
        sizes.append(nbytes)
    seconds, both_ways = (rising(column) for column in zip(*times, strict=True))
    return Link(tuple(sizes), seconds, both_ways)


def _seconds(connection: Connection, one: int, other: int, nbytes: int) -> tuple[float, ...]:
    """Seconds of a message, and of two that cross."""
    peer = {one: other, other: one}.get(connection.rank)
    wire = None if peer is None else Wire(connection, peer, nbytes)
    first = None if peer is None else Wire(connection, peer, 1)
    messages = max(1, min(MOST_MESSAGES, ROUND_BYTES // nbytes))

    def a_round() -> tuple[float, ...]:
        own = None
        if wire is not None and first is not None:
            first.both_ways(1)  # so that they begin together
            crossing = _timed(wire.both_ways, messages)
            first.both_ways(1)
            own = _timed(wire.there_and_back, messages) / 2, crossing
        found = [figures for figures in connection.gather(own) if figures is not None]
        return tuple(map(max, zip(*found, strict=True)))

    return steady(a_round)


def _timed(exchange: Callable[[int], None], times: int) -> float:
    begin = time.perf_counter()
    exchange(times)
    return (time.perf_counter() - begin) / times
