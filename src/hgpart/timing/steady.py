"""A function to run -> its seconds, measured until they are steady."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

STEADY = 0.05  # the middle half of the runs is within this share of the median
LEAST = 5  # runs before steadiness is tested


def steady_seconds(run: Callable[[], Sequence[float]], enough: float) -> tuple[float, ...]:
    """Run a function until its seconds are steady, or enough time is spent.

    The first run only warms up, unless it takes so long that there is no other.

    Parameters
    ----------
    run : callable
        Returns the seconds of each of its pieces.
    enough : float
        Seconds of all runs together, after which no further run begins.

    Returns
    -------
    tuple of float
        For each piece the median over the runs, which no outlier moves.

    >>> runs = iter([[0.09, 0.01], [0.04, 0.02]])
    >>> steady_seconds(lambda: next(runs), 0.15)
    (0.04, 0.02)
    >>> steady_seconds(lambda: [2.0, 3.0], 0.15)
    (2.0, 3.0)
    """
    first = run()
    runs, spent = [first], math.fsum(first)
    while spent < enough and not _is_steady([math.fsum(seconds) for seconds in runs[1:]]):
        runs.append(run())
        spent += math.fsum(runs[-1])
    return tuple(map(statistics.median, zip(*(runs[1:] or runs), strict=True)))


def _is_steady(seconds: Sequence[float]) -> bool:
    if len(seconds) < LEAST:
        return False
    low, middle, high = statistics.quantiles(seconds, n=4)
    return high - low <= STEADY * middle
