"""Problem -> the number of slices of its batch that saves most, by short searches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hgpart.hypergraph.building import evaluate_parts
from hgpart.partition.baselines.by_slices import MOST_SLICES, data_parallel, slices_for
from hgpart.partition.baselines.known_ways import Parts, known_ways, stages_of_rooms
from hgpart.partition.native.annealing import Cooling
from hgpart.partition.native.layer_counts import (
    CountsChain,
    anneal_counts,
    counts_of,
    layer_model,
)
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search

STEPS, HOTTEST = 60_000, (1e-3, 3e-4)  # of each search
AS_GOOD = 1.005  # times the least


def numbers_of_slices(batch_size: int, k: int) -> tuple[int, ...]:
    """Numbers worth trying: powers of two, divisors of k, and it times these or 3, up to the batch.

    >>> numbers_of_slices(32, 6)
    (1, 2, 3, 4, 6, 8, 12, 16, 18, 24, 32)
    >>> numbers_of_slices(1, 8)
    (1,)
    """
    most = min(batch_size, MOST_SLICES)
    powers = {2**power for power in range(most.bit_length())}
    divisors = {number for number in range(1, k + 1) if k % number == 0}
    multiples = {k * times for power in powers for times in (power, 3 * power)}
    return tuple(sorted(number for number in powers | divisors | multiples if number <= most))


def numbers_for(problem: Problem) -> tuple[int, ...]:
    """Numbers worth trying for a problem: only 1 where the model mixes samples.

    Where devices differ in speed, the number that can be dealt out to them is one of them.
    """
    most = problem.modelling.batch_size if problem.divides_batch else 1
    numbers = numbers_of_slices(most, problem.k)
    dealt = slices_for(problem, problem.k)
    return numbers if dealt in numbers or dealt > most else tuple(sorted((*numbers, dealt)))


def promising(problem: Problem, search: Search) -> int:
    """The number of slices for which short searches find least within eps.

    It is 1 for a batch of 1, and where the model mixes samples. Among numbers that are about as
    good it is the fewest, slices of equal size first. Where no search finds anything it is the
    most, as smaller slices balance better.
    """
    numbers = numbers_for(problem)
    costs = {
        slices: _in_short(problem.in_slices(slices).in_bands(1).coarse, search)
        for slices in numbers
        if slices > 1
    }
    least = min(costs.values(), default=math.inf)
    if least == math.inf:
        return numbers[-1]
    as_good = [slices for slices, own in costs.items() if own <= AS_GOOD * least]
    return min(as_good, key=lambda slices: (problem.modelling.batch_size % slices > 0, slices))


def _in_short(problem: Problem, search: Search) -> float:
    """Bytes of a partition by slices of whole layers; infinite where none is within eps."""
    layers, steps = layer_model(problem), max(1, round(STEPS * search.effort))
    ways = [data_parallel(problem), *stages_of_rooms(problem)]
    chains = [
        CountsChain(counts_of(*way, problem.k), Cooling(at, steps, hottest, 1e-6, 4.0, 1))
        for at, way in enumerate(ways)
        for hottest in HOTTEST
    ]
    (best, *_), interrupted = anneal_counts(layers, chains, max(0.0, search.left))
    if interrupted:
        raise KeyboardInterrupt
    return best.cost if best.excess == 0 else math.inf


@dataclass(frozen=True)
class Known:
    """Bytes that a known way sends, and its number of slices of the batch."""

    slices: int
    volume: int


def known_in_slices(problem: Problem) -> Known | None:
    """An upper bound of what `solve_in_slices` sends, found at once.

    It is the least volume of the ways with as many slices as parts. None where there is no batch to
    divide, nothing is trained, or no such way is within eps.
    """
    slices = _as_many_as_parts(problem)
    if slices == 1 or not problem.modelling.training:
        return None
    sliced = problem.in_slices(slices).in_bands(1).coarse
    return _least(sliced, [data_parallel(sliced), *stages_of_rooms(sliced)])


def best_known(problem: Problem) -> Known | None:
    """The known way of least volume, with two slices or with as many as parts."""
    known = []
    for slices in {min(2, _as_many_as_parts(problem)), _as_many_as_parts(problem)} - {1}:
        sliced = problem.in_slices(slices).in_bands(1).coarse
        known.append(_least(sliced, [*known_ways(sliced)]))
    return min((way for way in known if way), key=lambda way: way.volume, default=None)


def _as_many_as_parts(problem: Problem) -> int:
    """The most of the numbers worth trying that is not more than k, or than can be dealt out."""
    most = slices_for(problem, problem.k)
    return max(number for number in numbers_for(problem) if number <= most)


def _least(problem: Problem, ways: Sequence[Parts]) -> Known | None:
    """The least that one of the ways sends that are within eps."""
    volumes = [
        evaluation.volume
        for evaluation in (evaluate_parts(*way, problem.k) for way in ways)
        if (evaluation.loads <= problem.capacities).all()
    ]
    return Known(problem.modelling.slices, min(volumes)) if volumes else None
