"""A request -> an ArgumentError if no model can meet it: before the long work."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

from hgpart.errors import ArgumentError
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME, Objective

SLOWEST, FASTEST = 1e-9, 1e9  # speeds of devices are relative
LONGEST_LIMIT = 10**7  # seconds; more overflows what waits for a process
MOST_EFFORT = 1000


def check_request(
    k: int,
    eps: float,
    speeds: Sequence[float] | None = None,
    objective: Objective = VOLUME,
    memory: MemoryLimits | None = None,
) -> None:
    """Raise an ArgumentError if no partition of any model can be so."""
    if not _is_whole(k) or k < 1:
        raise ArgumentError(f"k is {k}, expected a whole number of devices, at least 1")
    if not _is_number(eps) or not math.isfinite(eps) or eps < 0:
        raise ArgumentError(f"eps is {eps}, expected a number >= 0, as 0.1 for 10 %")
    if speeds is not None and len(speeds) != k:
        raise ArgumentError(f"{len(speeds)} speeds for k={k}, expected one for each device")
    for speed in speeds if speeds is not None else ():
        if not _is_number(speed) or not SLOWEST <= speed <= FASTEST:
            raise ArgumentError(
                f"speed is {speed}, expected a number from {SLOWEST:g} to {FASTEST:g}"
            )
    if memory is not None and len(memory.bytes) != k:
        raise ArgumentError(
            f"{len(memory.bytes)} memory limits for k={k}, expected one for each device"
        )
    objective.check(k, speeds)


def check_search(seed: int, effort: float = 1.0, time_limit: float | None = None) -> None:
    """Raise an ArgumentError if no search can take these."""
    if not _is_whole(seed) or not 0 <= seed < 2**63:
        raise ArgumentError(f"seed is {seed}, expected a whole number from 0 to {2**63 - 1}")
    accepted = time_limit is None or (_is_number(time_limit) and 0 < time_limit <= LONGEST_LIMIT)
    if not accepted:
        raise ArgumentError(
            f"time limit is {time_limit} s, expected more than 0 and at most {LONGEST_LIMIT:g}"
        )
    if not _is_number(effort) or not 0 <= effort <= MOST_EFFORT:
        raise ArgumentError(f"effort is {effort}, expected 0 to {MOST_EFFORT}, 1 by default")


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
