"""Problem -> the number of bands of rows that saves most, by short searches."""

from __future__ import annotations

from hgpart.hypergraph.building import evaluate_parts
from hgpart.partition.native.tiled import tiled_partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search

MOST_BANDS = 64  # a band of a row costs as much to schedule as one of many
EFFORT = 0.05  # of each search, relative to the one that follows
AS_GOOD = 1.01  # times the least


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
    if problem.k == 1 or problem.modelling.grain == "fine":
        return ()
    return numbers_of_bands(problem.graph.most_rows, problem.k)


def promising_bands(problem: Problem, search: Search) -> int:
    """The fewest bands for which short searches find about the least within eps; 1 if none can be.

    Where no search finds anything within eps, it is the most: smaller bands balance better.
    """
    numbers = numbers_for(problem)
    if len(numbers) < 2:
        return numbers[0] if numbers else 1
    volumes: dict[int, float] = {}
    for bands in numbers:
        own = problem.in_bands(bands)
        solution = tiled_partition(own, search.part(0.1, EFFORT), 0)
        evaluation = evaluate_parts(solution.model, solution.parts, problem.k)
        if (evaluation.loads <= own.capacities).all():
            volumes[bands] = evaluation.volume
        if solution.interrupted:
            raise KeyboardInterrupt
    if not volumes:
        return numbers[-1]
    least = min(volumes.values())
    return min(bands for bands, volume in volumes.items() if volume <= AS_GOOD * least)
