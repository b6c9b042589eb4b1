"""Connection -> Link, AllReduce: seconds of messages of two processes, and of all adding up.

No two clocks are compared: one way is half the time of a message and its answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import distributed as dist

from hgpart.calibration.messages import Messages
from hgpart.calibration.steady import USUAL, RoundLimits, rising, steady
from hgpart.machines.machine import AllReduce, Link
from hgpart.run.processes.connection import Connection
from hgpart.work.devices import wait_for

SIZES = tuple(4**power for power in range(5, 14))  # bytes: 1 KB to 64 MB
LONGEST = 0.5  # seconds of a message that no longer one follows
ROUND_BYTES, MOST_MESSAGES = 2**21, 50  # for a round, each way


def link_between(
    connection: Connection,
    rank: int,
    other_rank: int,
    on_size: Callable[[], None] = lambda: None,
    *,
    sizes: Sequence[int] = SIZES,
    rounds: RoundLimits = USUAL,
) -> Link:
    """Measure the link of two processes; all processes call this, and all get the result.

    Messages become longer until they take half a second.

    Parameters
    ----------
    rank, other_rank : int
        The two processes.
    on_size : callable
        Called before each size is measured.
    sizes : sequence of int
        Bytes of the messages, ascending.
    """
    known, columns = by_size(
        lambda nbytes: _of_messages(connection, rank, other_rank, nbytes, rounds), on_size, sizes
    )
    return Link(known, *columns)


def by_size(
    seconds: Callable[[int], tuple[float, ...]],
    on_size: Callable[[], None],
    sizes: Sequence[int],
) -> tuple[tuple[int, ...], list[tuple[float, ...]]]:
    """Sizes up to the first that takes half a second, by the last figure; each figure's seconds."""
    times: list[tuple[float, ...]] = []
    for nbytes in sizes:
        if len(times) > 1 and times[-1][-1] > LONGEST:
            break
        on_size()
        times.append(seconds(nbytes))
    return tuple(sizes[: len(times)]), [rising(column) for column in zip(*times, strict=True)]


def _of_messages(
    connection: Connection, rank: int, other_rank: int, nbytes: int, rounds: RoundLimits
) -> tuple[float, ...]:
    """Seconds of a message, and of two that cross."""
    peer = {rank: other_rank, other_rank: rank}.get(connection.rank)
    messages = None if peer is None else Messages(connection, peer, nbytes)
    signals = None if peer is None else Messages(connection, peer, 1)
    count = max(1, min(MOST_MESSAGES, ROUND_BYTES // nbytes))

    def measure_round() -> tuple[float, ...]:
        own = None
        if messages is not None and signals is not None:
            signals.both_ways(1)  # so that they begin together
            crossing = _timed(messages.both_ways, count)
            signals.both_ways(1)
            own = _timed(messages.there_and_back, count) / 2, crossing
        measured = [figures for figures in connection.gather(own) if figures is not None]
        return tuple(map(max, zip(*measured, strict=True)))

    return steady(measure_round, rounds)


def _timed(exchange: Callable[[int], None], times: int) -> float:
    begin = time.perf_counter()
    exchange(times)
    return (time.perf_counter() - begin) / times


def all_reduce(connection: Connection, on_size: Callable[[], None] = lambda: None) -> AllReduce:
    """Measure all-reduces of 32-bit floats; all processes call this, and all get the result.

    Parameters
    ----------
    on_size : callable
        Called before each size is measured.
    """
    sizes, columns = by_size(lambda nbytes: _of_sums(connection, nbytes), on_size, SIZES)
    return AllReduce(sizes, *columns)


def _of_sums(connection: Connection, nbytes: int) -> tuple[float, ...]:
    own = torch.zeros(nbytes // 4, device=connection.device)
    place = connection.device if connection.nccl else torch.device("cpu")
    times = max(1, min(MOST_MESSAGES, ROUND_BYTES // nbytes))

    def add_up() -> None:
        body = own.to(place)
        dist.all_reduce(body)
        body.to(connection.device)

    def measure_round() -> tuple[float, ...]:
        connection.gather(None)
        begin = time.perf_counter()
        for _ in range(times):
            connection.guard(add_up, f"added up {nbytes} bytes of each")
        wait_for(connection.device)
        return (max(connection.gather((time.perf_counter() - begin) / times)),)

    return steady(measure_round)
