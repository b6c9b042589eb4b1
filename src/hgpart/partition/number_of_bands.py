"""Problem -> the number of bands of rows that saves most, by short searches."""

from __future__ import annotations

import time
from dataclasses import replace

from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.shares import work_of_layers
from hgpart.partition.native.tiled import tiled_partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search

MOST_BANDS = 64  # a band of a row costs as much to schedule as one of many
EFFORT = 0.05  # of each search, relative to the one that follows
AS_GOOD = 1.01  # times the least
# Of the time that is left, for all of them; each takes about as long as so many models of tiles.
SHARE, MODELLINGS = 0.5, 8


def numbers_of_bands(rows: int, k: int) -> tuple[int, ...]:
    """Numbers worth trying: as many bands as parts, some times as many, and what there are rows.

    >>> numbers_of_bands(224, 4), numbers_of_bands(14, 8), numbers_of_bands(1, 8)
    ((4, 8, 16), (8, 14), ())
    """
    most = min(rows, MOST_BANDS)
    numbers = {min(k * times, most) for times in (1, 2, 4)}
    return tuple(sorted(numbers - {0, 1}))


def numbers_for(problem: Problem) -> tuple[int, ...]:
    """Numbers worth trying for a problem: none where there is nothing to divide."""
    if problem.k == 1:
        return ()
    return numbers_of_bands(problem.graph.most_rows, problem.k)


def promising_bands(problem: Problem, search: Search) -> int:
    """The fewest bands for which short searches find about the least within the limits.

    Where none finds anything within them it is the most: smaller bands balance better. With one
    number that is worth trying, or too little time to try all, it is the middle one; 1 where there
    is none.
    """
    numbers = numbers_for(problem)
    if not numbers:
        return 1
    middle = numbers[len(numbers) // 2]
    if len(numbers) == 1 or not _has_time(problem.in_bands(middle), search, len(numbers)):
        return middle
    values: dict[int, float] = {}
    for bands in numbers:
        own = problem.coarse.in_bands(bands)
        short = replace(search.part(0.1, EFFORT), on_progress=None)
        solution = tiled_partition(own, short, 0)
        if solution.interrupted:
            raise KeyboardInterrupt
        model, parts = solution.model, solution.parts
        evaluation, memory = evaluate_parts(model, parts, own.k), own.memory
        holds = memory is None or memory.hold(memory.needed(model, parts))
        if holds and (evaluation.loads <= own.capacities).all():
            work = work_of_layers(model, parts, own.k)
            values[bands] = own.objective.value(evaluation.traffic, work)
    if not values:
        return numbers[-1]
    least = min(values.values())
    return min(bands for bands, value in values.items() if value <= AS_GOOD * least)


def _has_time(problem: Problem, search: Search, searches: int) -> bool:
    """Whether some short searches fit in their share of the time: modelling takes most of it."""
    if search.time_limit is None:
        return True
    began, most = time.monotonic(), SHARE * search.left
    if most <= 0:
        return False
    problem.hypergraph(layer_blocks(problem.views)).nets.sizes()
    return searches * MODELLINGS * (time.monotonic() - began) < most
