"""Connection -> AllReduce: seconds that its processes take to add up what all of them have."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import distributed as dist

from hgpart.calibration.links import MOST_MESSAGES, ROUND_BYTES, by_size
from hgpart.calibration.steady import steady
from hgpart.machines.machine import AllReduce
from hgpart.run.processes.connection import Connection
from hgpart.work.devices import wait_for


def all_reduce(connection: Connection, on_size: Callable[[], None] = lambda: None) -> AllReduce:
    """Measure all-reduces of 32-bit floats; all processes call this, and all get the result.

    Parameters
    ----------
    on_size : callable
        Called before each size is measured.
    """
    sizes, columns = by_size(lambda nbytes: _seconds(connection, nbytes), on_size)
    return AllReduce(sizes, *columns)


def _seconds(connection: Connection, nbytes: int) -> tuple[float, ...]:
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
