"""A partition that exists + what has changed -> a partition near it: few weights change place.

The model of repartitioning (Catalyurek et al., "Hypergraph-based dynamic load balancing for
adaptive scientific computations", IPDPS 2007): each vertex has a net with the part where its data
is, so that moving it costs the data, at a price. The price is found by bisection, for as little
volume as a bound on the moved bytes allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.partition.partition import Partition
from hgpart.partition.problem.memory import in_words
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.start import (
    Start,
    kept_bytes,
    lost_bytes,
    moved_bytes,
    start_of,
)
from hgpart.partition.steering.renumbering import renumbered

STEPS = 7  # of the bisection, after the least and the largest price
EFFORT = 0.3  # of each search
DEAREST = 2.0**16  # bytes of volume for a byte of weights
USUAL = -5.0, 16.0  # powers of two between which prices are bisected

Solve = Callable[[Problem, Search], Partition]


@dataclass(frozen=True, eq=False)
class Mended:
    """A partition that was made from one that existed.

    Attributes
    ----------
    moved : int
        Bytes of weights that devices need and did not have before.
    """

    partition: Partition
    moved: int


def mend(
    before: Partition,
    problem: Problem,
    search: Search,
    solve: Solve,
    *,
    without: Sequence[int] = (),
    move_at_most: int | None = None,
) -> Mended:
    """Divide a problem near a partition of the same model that exists.

    Of equal devices, each gets the part of which it has most weights already. On Ctrl-C it is the
    best by then.

    Parameters
    ----------
    problem : Problem
        With the devices that there are now, their speeds and all else that has changed.
    search : Search
        With `move_at_most`, its effort and time are shared by several searches, one for each price
        that is tried.
    solve : function of a Problem and a Search
        Divides a problem, natively.
    without : sequence of int
        Devices of `before` that have left; the others are numbered anew, in their order. Default:
        the last ones.
    move_at_most : int, optional
        Bytes of weights that may change place; any number when left out.

    Raises
    ------
    ArgumentError
        If the partitions are of different models, such devices never were, the objective is not the
        volume, or the partition that exists is fine-grain.
    InfeasibleError
        If no partition within eps was found that moves so few bytes; names the fewest that were.
    """
    if before.problem.graph.fingerprint != problem.graph.fingerprint:
        raise ArgumentError("a start of another model: accepted is a partition of this one")
    if before.modelling.grain != "coarse" or not problem.objective.is_volume:
        raise ArgumentError(
            f"a start that is {before.modelling.grain}-grain, and objective "
            f"{problem.objective.name}: accepted are coarse-grain starts and objective volume"
        )
    if move_at_most is not None and move_at_most < 0:
        raise ArgumentError(f"{move_at_most} bytes to move at most: accepted is 0 or more")
    start = start_of(before.model, before.parts, before.k, problem.k, without)
    tried: list[tuple[Partition, int]] = []
    interrupted = False
    for price in _prices(tried, move_at_most):
        own = replace(problem, start=start.at_price(price))
        several = move_at_most is not None
        part = search.part(1 / (2 + STEPS - len(tried)), EFFORT) if several else search
        try:
            partition = _at_home(start, solve(own, part))
        except (InfeasibleError, KeyboardInterrupt) as error:
            if not tried:
                raise
            interrupted = isinstance(error, KeyboardInterrupt)
            break
        tried.append((partition, moved_bytes(start, partition.model, partition.parts, problem.k)))
        if partition.interrupted:
            interrupted = True
            break
    most = math.inf if move_at_most is None else move_at_most
    allowed = [(partition, moved) for partition, moved in tried if moved <= most]
    if not allowed and interrupted:
        raise KeyboardInterrupt("before a partition that moves so few bytes was found")
    if not allowed:
        least, lost = min(moved for _, moved in tried), lost_bytes(start, problem.views)
        gone = f", {in_words(lost)} of them from devices that have left" if lost else ""
        raise InfeasibleError(
            f"no partition within eps {problem.eps:g} was found that moves at most "
            f"{in_words(int(most))} of weights; the fewest are {least:,} bytes ({in_words(least)})"
            f"{gone}"
        )
    partition, moved = min(allowed, key=lambda pair: (pair[0].evaluation.volume, pair[1]))
    return Mended(replace(partition, interrupted=interrupted), moved)


def _at_home(start: Start, partition: Partition) -> Partition:
    """The same partition, its parts on those of equal devices that have most of their weights."""
    problem, model, before = partition.problem, partition.model, partition.parts
    parts = renumbered(problem, model, before, kept_bytes(start, model, before, problem.k))
    if np.array_equal(parts, before):
        return partition
    return partition.with_parts(model, parts)


def _prices(tried: Sequence[tuple[Partition, int]], most: int | None) -> Iterator[float]:
    """Prices to try, each after the last has been: the least whose partition moves few enough."""
    yield 0.0
    if most is None or tried[-1][1] <= most:
        return
    yield DEAREST
    if tried[-1][1] > most:
        return
    low, high = USUAL
    for _ in range(STEPS):
        middle = (low + high) / 2
        yield 2.0**middle
        low, high = (low, middle) if tried[-1][1] <= most else (middle, high)
