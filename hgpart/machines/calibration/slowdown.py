"""Connection, an operation -> Slowdown: how its time grows while other processes do the same.

On shared cores two processes that compute are slower than one, for they share caches, memory and
power, and messages take time from both. Each round compares with its own begin, so that a machine
that gets slower meanwhile is as slow for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import torch
from torch.nn import functional

from hgpart.machines.calibration.steady import steady
from hgpart.machines.calibration.wire import Wire
from hgpart.machines.machine import Link, Slowdown
from hgpart.run.processes.connection import Connection
from hgpart.work.devices import wait_for

COMPUTING = 0.15  # seconds that a figure of a round takes
FEWEST, MOST = 4, 7  # rounds
MESSAGE = 2**20  # bytes of what travels meanwhile
Operation = Callable[[], None]


def convolution(device: torch.device) -> Operation:
    """Make a convolution, forward and backward, which a CPU does in some milliseconds."""
    samples = 1 if device.type == "cpu" else 64
    maps = torch.randn(samples, 64, 56, 56, device=device, requires_grad=True)
    filters = torch.randn(64, 64, 3, 3, device=device, requires_grad=True)
    gradient = torch.randn(samples, 64, 56, 56, device=device)

    def run() -> None:
        result = functional.conv2d(maps, filters, padding=1)
        torch.autograd.grad(result, (maps, filters), gradient)

    return run


def norm(device: torch.device) -> Operation:
    """Make a batch norm, forward and backward, of maps that no cache holds."""
    samples = 4 if device.type == "cpu" else 64
    maps = torch.randn(samples, 64, 112, 112, device=device, requires_grad=True)
    scale = torch.ones(64, device=device, requires_grad=True)
    gradient = torch.randn_like(maps)

    def run() -> None:
        result = functional.batch_norm(maps, None, None, scale, training=True)
        torch.autograd.grad(result, (maps, scale), gradient)

    return run


def slowdown(
    connection: Connection,
    nodes: Sequence[int],
    link: Callable[[int, int], Link],
    operation: Operation,
    on_round: Callable[[], None] = lambda: None,
) -> Slowdown:
    """Measure an operation alone, together with others of the node, and while messages travel.

    All processes call it, and have the result: means over those that compute.

    Parameters
    ----------
    connection : Connection
    nodes : sequence of int
        How many of the processes are on each node, in their order.
    link : callable
        The link of a pair of processes, which says how many messages keep it busy.
    operation : callable
    on_round : callable
        Told when a round begins.
    """
    bench = _Bench(connection, nodes, operation)
    traffic = _traffic(connection, link, bench)

    def a_round() -> tuple[float, ...]:
        on_round()
        return bench.a_round(traffic)

    *together, while_sending = steady(a_round, FEWEST, MOST)
    # More processes do not make one faster, nor do messages: what a measurement says else is noise.
    return Slowdown(tuple(accumulate([1.0, *together], max)), max(1.0, while_sending))


@dataclass(frozen=True)
class _Traffic:
    """What travels from each even rank to the next one while they compute.

    Attributes
    ----------
    wire : Wire or None
        This process's end; None for the last of an odd number.
    messages : int
        That take longer than an operation.
    operations : int
        Each of which begins when these have arrived.
    """

    wire: Wire | None
    messages: int
    operations: int


def _traffic(connection: Connection, link: Callable[[int, int], Link], bench: _Bench) -> _Traffic:
    bench.seconds()  # the first ones take longer
    seconds = max(connection.gather(bench.seconds_of_all()))
    low = connection.rank - connection.rank % 2
    operations = max(2, round(COMPUTING / seconds))
    if low + 1 == connection.k:
        return _Traffic(None, 0, operations)
    wire = Wire(connection, 2 * low + 1 - connection.rank, MESSAGE)
    messages = math.ceil(1.5 * seconds / link(low, low + 1).seconds_of(MESSAGE))
    return _Traffic(wire, messages, operations)


class _Bench:
    """An operation in the processes of a run, some of which do it at a time.

    Parameters
    ----------
    connection : Connection
    nodes : sequence of int
    operation : callable
    """

    def __init__(self, connection: Connection, nodes: Sequence[int], operation: Operation) -> None:
        self._connection, self._operation = connection, operation
        places = [(size, at) for size in nodes for at in range(size)]
        self._of_node, self._at = places[connection.rank]
        self._most = max(nodes)

    def a_round(self, traffic: _Traffic) -> tuple[float, ...]:
        """How many times as long as alone while 2, 3, ... compute; and as all while they send."""
        alone = math.nan
        for at in range(self._most):
            self._connection.gather(None)
            if at == self._at:
                alone = self.seconds()
        ratios: list[float | None] = []
        for count in range(2, self._most + 1):
            self._connection.gather(None)
            computes = self._at < count <= self._of_node
            ratios.append(self.seconds() / alone if computes else None)
        silent, sending = self.seconds_of_all(), self._while_sending(traffic)
        ratios.append(None if sending is None else sending / silent)
        columns = zip(*self._connection.gather(ratios), strict=True)
        return tuple(fmean(ratio for ratio in column if ratio is not None) for column in columns)

    def seconds_of_all(self) -> float:
        """Of one operation, while all do it."""
        self._connection.gather(None)
        return self.seconds()

    def seconds(self) -> float:
        """Of one operation: as many are done as take a while."""
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < COMPUTING:
            self._do()
            count += 1
        return (time.perf_counter() - begin) / count

    def _while_sending(self, traffic: _Traffic) -> float | None:
        """Of one operation, while all do it and messages travel."""
        self._connection.gather(None)
        wire, spent = traffic.wire, 0.0
        if wire is None:
            self.seconds()
            return None
        start = wire.send if self._connection.rank % 2 == 0 else wire.post
        for _ in range(traffic.operations):
            travelling = [start() for _ in range(traffic.messages)]
            begin = time.perf_counter()
            self._do()
            spent += time.perf_counter() - begin
            for work in travelling:
                wire.wait(work)
        return spent / traffic.operations

    def _do(self) -> None:
        self._operation()
        wait_for(self._connection.device)
