"""Rounds of a measurement -> their medians, as soon as these are steady."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

TOLERANCE = 0.03


class RoundLimits(NamedTuple):
    """Limits to the number of rounds that count."""

    fewest: int
    most: int


USUAL, BRIEF = RoundLimits(6, 12), RoundLimits(2, 2)


def steady(
    measure: Callable[[], Sequence[float]], rounds: RoundLimits = USUAL
) -> tuple[float, ...]:
    """Measure until odd and even rounds agree.

    They agree when the medians of the two halves are within 3 % of each other, figure by figure;
    measuring also ends after the most rounds. The first round does not count: memory is new then,
    and threads start.

    Parameters
    ----------
    measure : callable
        A round: returns equally many figures each time. Where processes measure together, it
        returns the same figures in all, so that all end after the same round.

    Returns
    -------
    tuple of float
        The median of each figure over all rounds, to four digits: the rest is noise.

    >>> rounds = iter([[9.0]] + [[1.0], [1.0], [7.0], [1.0], [1.0], [1.0]])
    >>> steady(lambda: next(rounds))
    (1.0,)
    """
    measure()
    done = [tuple(measure()) for _ in range(rounds.fewest)]
    while len(done) < rounds.most and not _agree(medians(done[::2]), medians(done[1::2])):
        done.append(tuple(measure()))
    return tuple(float(f"{figure:.4g}") for figure in medians(done))


def medians(rounds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The median of each figure.

    >>> medians([(1, 5), (2, 9), (9, 7)])
    (2, 7)
    """
    return tuple(statistics.median(figures) for figures in zip(*rounds, strict=True))


def rising(seconds: Sequence[float]) -> tuple[float, ...]:
    """Seconds of ever longer messages, each lowered to the least of any longer message.

    No message takes longer than a longer one does; where it seems to, the excess is noise.

    >>> rising([7.0, 1.0, 3.0, 2.0, 4.0])
    (1.0, 1.0, 2.0, 2.0, 4.0)
    """
    return tuple(accumulate(reversed(seconds), min))[::-1]


def _agree(first: Sequence[float], second: Sequence[float]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) for a, b in pairs)
