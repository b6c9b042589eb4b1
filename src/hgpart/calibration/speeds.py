"""Connection, devices -> the same devices with their speeds, where processes differ in these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hgpart.calibration.slowdown import Operation, OperationTimer
from hgpart.calibration.steady import RoundLimits, steady
from hgpart.machines.machine import Device
from hgpart.run.processes.connection import Connection

ROUNDS = RoundLimits(3, 5)
NOISE = 1.15  # times as fast as another: less is no difference between devices


def with_speeds(
    connection: Connection,
    nodes: Sequence[int],
    devices: Sequence[Device],
    operation: Operation,
) -> list[Device]:
    """Measure how fast each process does an operation while the others of its node do nothing.

    All processes call this, and all get the result. Speeds are relative to the first process, on
    whose device layers are timed; all are 1 where the fastest and the slowest hardly differ.
    """
    bench = OperationTimer(connection, nodes, operation)
    bench.seconds()  # the first ones take longer

    def measure_round() -> tuple[float, ...]:
        return tuple(connection.gather(bench.alone()))

    seconds = steady(measure_round, ROUNDS)
    if max(seconds) < NOISE * min(seconds):
        return [*devices]
    return [
        replace(device, speed=float(f"{seconds[0] / own:.3g}"))
        for device, own in zip(devices, seconds, strict=True)
    ]
