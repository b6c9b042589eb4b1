"""Connection, an operation -> Slowdown: how its time grows while other processes do the same.

On shared cores two processes that compute are slower than one, because they share caches, memory
and power. Each round compares with its own beginning, so that a machine that becomes slower
meanwhile is slower for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean

import torch
from torch.nn import functional

from hgpart.calibration.steady import RoundLimits, steady
from hgpart.machines.machine import Slowdown
from hgpart.run.processes.connection import Connection
from hgpart.work.devices import wait_for

COMPUTING = 0.15  # seconds that a figure of a round takes
ROUNDS = RoundLimits(4, 7)
Operation = Callable[[], None]


def convolution(device: torch.device) -> Operation:
    """Make a convolution, forward and backward, that takes a CPU some milliseconds."""
    samples = 1 if device.type == "cpu" else 64
    maps = torch.randn(samples, 64, 56, 56, device=device, requires_grad=True)
    filters = torch.randn(64, 64, 3, 3, device=device, requires_grad=True)
    gradient = torch.randn(samples, 64, 56, 56, device=device)

    def run() -> None:
        result = functional.conv2d(maps, filters, padding=1)
        torch.autograd.grad(result, (maps, filters), gradient)

    return run


def norm(device: torch.device) -> Operation:
    """Make a batch norm, forward and backward, of maps too large for any cache."""
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
    operation: Operation,
    on_round: Callable[[], None] = lambda: None,
    rounds: RoundLimits = ROUNDS,
) -> Slowdown:
    """Measure an operation alone, and together with others on the node.

    All processes call this, and all get the result: means over those that compute.

    Parameters
    ----------
    nodes : sequence of int
        Numbers of processes on each node, in their order.
    on_round : callable
        Called before each round.
    """
    if max(nodes) == 1:
        return Slowdown()
    bench = OperationTimer(connection, nodes, operation)
    bench.seconds()  # the first ones take longer

    def measure_round() -> tuple[float, ...]:
        on_round()
        return bench.a_round()

    together = steady(measure_round, rounds)
    # More processes do not make an operation faster: a measurement that says so is noise.
    return Slowdown(tuple(accumulate([1.0, *together], max)))


class OperationTimer:
    """An operation that some of a run's processes do at a time."""

    def __init__(self, connection: Connection, nodes: Sequence[int], operation: Operation) -> None:
        self._connection, self._operation = connection, operation
        places = [(size, at) for size in nodes for at in range(size)]
        self._of_node, self._at = places[connection.rank]
        self._most = max(nodes)

    def a_round(self) -> tuple[float, ...]:
        """Factors by which the operation slows down while 2, 3, ... processes do it."""
        alone = self.alone()
        ratios: list[float | None] = []
        for count in range(2, self._most + 1):
            self._connection.gather(None)
            computes = self._at < count <= self._of_node
            ratios.append(self.seconds() / alone if computes else None)
        columns = zip(*self._connection.gather(ratios), strict=True)
        return tuple(fmean(ratio for ratio in column if ratio is not None) for column in columns)

    def alone(self) -> float:
        """Seconds of the operation in this process, while the others of its node do nothing."""
        alone = math.nan
        for at in range(self._most):
            self._connection.gather(None)
            if at == self._at:
                alone = self.seconds()
        return alone

    def seconds(self) -> float:
        """Seconds of an operation: the mean over as many as take a while."""
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < COMPUTING:
            self._operation()
            wait_for(self._connection.device)
            count += 1
        return (time.perf_counter() - begin) / count
