"""Rounds of a measurement -> their medians, once these move no more."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate

FEWEST, MOST = 6, 12  # rounds that count
TOLERANCE = 0.03


def steady(
    measure: Callable[[], Sequence[float]], fewest: int = FEWEST, most: int = MOST
) -> tuple[float, ...]:
    """Measure again and again, until every second round says what the others say.

    That is when the medians of the two halves are within 3 % of each other, figure by figure, or
    after `most` rounds. The first round does not count: memory is new then, and threads start.

    Parameters
    ----------
    measure : callable
        A round: the same number of figures each time. Where processes measure together, it returns
        the same figures in all, so that all come to their end in the same round.
    fewest, most : int
        Rounds that count.

    Returns
    -------
    tuple of float
        The median of each figure over all rounds, in four digits: the rest is noise.

    >>> rounds = iter([[9.0]] + [[1.0], [1.0], [7.0], [1.0], [1.0], [1.0]])
    >>> steady(lambda: next(rounds))
    (1.0,)
    """
    measure()
    rounds = [tuple(measure()) for _ in range(fewest)]
    while len(rounds) < most and not _agree(medians(rounds[::2]), medians(rounds[1::2])):
        rounds.append(tuple(measure()))
    return tuple(float(f"{figure:.4g}") for figure in medians(rounds))


def medians(rounds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The median of each figure.

    >>> medians([(1, 5), (2, 9), (9, 7)])
    (2, 7)
    """
    return tuple(statistics.median(figures) for figures in zip(*rounds, strict=True))


def rising(seconds: Sequence[float]) -> tuple[float, ...]:
    """Seconds of ever longer messages, of which none takes longer than one behind it.

    Others only add to what a measurement says.

    >>> rising([7.0, 1.0, 3.0, 2.0, 4.0])
    (1.0, 1.0, 2.0, 2.0, 4.0)
    """
    return tuple(accumulate(reversed(seconds), min))[::-1]


def _agree(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) for a, b in pairs)
