"""Problem of least time -> Candidates: ways that are known, and what searches find.

No estimate orders ways as a simulation does: the cut of least volume, the layers that balance best,
replicas, and what the objective "time" finds for several numbers of micro-batches are each best
somewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hgpart.arrays import Int32
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.known_ways import known_ways
from hgpart.partition.baselines.layerwise import layerwise
from hgpart.partition.partition import Partition, evaluated
from hgpart.partition.problem.objectives import VOLUME
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve, solve_in_slices

NARROW = (0.03, 0.1)  # least volume within these, too, where eps is more
WHOLE_BATCHES = ("layerwise", "filterwise-incremental")  # the same in every slice


@dataclass(frozen=True)
class Candidate:
    """A way to divide the model.

    Attributes
    ----------
    name : str
    divide : function
        Makes the partition, and raises an HgpartError where that can't be.
    """

    name: str
    divide: Callable[[], Partition]


def candidates(
    problem: Problem, search: Search, micro_batches: Sequence[int]
) -> Iterator[Candidate]:
    """Name the ways, those that take a moment first; all are judged within the problem's eps.

    Parameters
    ----------
    problem : Problem
        Of the objective "time".
    search : Search
        How long each search takes.
    micro_batches : sequence of int
        What the objective is searched for.
    """
    whole, slices = problem.coarse.in_slices(1), min(problem.k, problem.modelling.batch_size)
    slices = slices if problem.divides_batch else 1
    yield Candidate("layers balanced", lambda: _layers(whole))
    yield _known("filters in equal shares", whole, *horizontal(whole))
    for name, model, parts in known_ways(whole):
        yield _known(name, whole, model, parts)
    if 1 < slices == problem.k:
        sliced = whole.in_slices(slices)
        for name, model, parts in known_ways(sliced):
            if name not in WHOLE_BATCHES:
                yield _known(name, sliced, model, parts)
    widths = [eps for eps in NARROW if eps < problem.eps] + [problem.eps]
    searches = 2 * (slices > 1) + len(widths) + len(micro_batches)

    def part_of_search() -> Search:
        limit = None if search.time_limit is None else max(0.01, search.left / searches)
        return Search(search.seed, search.effort, limit, search.on_progress)

    one = problem.in_slices(1)
    for eps in widths:
        least = replace(one, objective=VOLUME, eps=eps)
        yield Candidate(f"least volume, eps {eps:.3g}", partial(_solved, least, part_of_search))
    for many in micro_batches:
        timed = replace(one, objective=problem.objective.in_micro_batches(many))
        name = f"least time, m = {many}"
        yield Candidate(name, partial(_solved, timed, part_of_search))
    if slices > 1:
        volume = replace(one, objective=VOLUME)
        name = "least volume, slices"
        yield Candidate(name, lambda: solve_in_slices(volume, part_of_search()))
        sliced = problem.in_slices(slices)
        yield Candidate("least time, slices", partial(_solved, sliced, part_of_search))


def _layers(problem: Problem) -> Partition:
    model = problem.hypergraph(layer_blocks(problem.views))
    parts = layerwise(problem).astype(np.int32)[model.vertex_layers]
    return _evaluated(problem, model, parts)


def _known(name: str, problem: Problem, model: CnnHypergraph, parts: Int32) -> Candidate:
    return Candidate(name, partial(_evaluated, problem, model, parts))


def _evaluated(problem: Problem, model: CnnHypergraph, parts: Int32) -> Partition:
    return evaluated(problem, model, parts, seed=0, backend="native", start="known")


def _solved(problem: Problem, search: Callable[[], Search]) -> Partition:
    return solve(problem, search())
