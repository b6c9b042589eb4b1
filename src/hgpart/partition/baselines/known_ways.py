"""Problem over slices -> parts by the ways of training that others know: what searches begin with.

Each takes a moment.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hgpart.arrays import Int32
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.baselines.by_slices import (
    data_parallel,
    hybrid,
    in_every_slice,
    opposed_replicas,
    replica,
)
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.layerwise import layerwise_within
from hgpart.partition.baselines.one_weird_trick import linear_tail, one_weird_trick
from hgpart.partition.baselines.stages import replicated_stages, run_costs
from hgpart.partition.problem.problem import Problem

SHARES_OF_EPS = (0.2, 0.5, 1.0)  # of the room above the average, that stages may use

Parts = tuple[CnnHypergraph, Int32]  # blocks of the model, and the part of each


def layer_cut(problem: Problem) -> Parts:
    """The cut between layers of least volume within eps, or else tasks in order."""
    cut = layerwise_within(problem)
    if cut is None:
        return incremental(problem)
    model = problem.hypergraph(layer_blocks(problem.views))
    return model, cut.astype(np.int32)[model.vertex_layers]


def known_ways(problem: Problem) -> Iterator[Parts]:
    """Divide the problem in every way that can be used, within the capacities or not."""
    whole = problem.in_slices(1)
    for rule in (layer_cut, incremental):
        yield in_every_slice(problem, *rule(whole))
    if problem.modelling.slices == 1:
        return
    yield data_parallel(problem)
    for replicas in numbers_of_replicas(problem):
        yield hybrid(problem, replicas, *layer_cut(replica(problem, replicas)))
    if linear_tail(problem.graph).any():
        yield one_weird_trick(problem)
    yield opposed_replicas(problem)
    yield from stages_of_rooms(problem)


def stages_of_rooms(problem: Problem) -> Iterator[Parts]:
    """Stages of replicas for several shares of the room that eps leaves: those that differ."""
    even = float((problem.capacities / problem.rates).min()) / (1 + problem.eps)
    seen: list[bytes] = []
    costs = run_costs(problem)
    for share in SHARES_OF_EPS:
        stages = replicated_stages(problem, even * (1 + share * problem.eps), costs)
        if stages is not None and stages[1].tobytes() not in seen:
            seen.append(stages[1].tobytes())
            yield stages


def numbers_of_replicas(problem: Problem) -> tuple[int, ...]:
    """How many replicas of several parts there can be: divisors of k, not 1 and not k.

    >>> from types import SimpleNamespace as Any
    >>> numbers_of_replicas(Any(k=12, modelling=Any(slices=4)))
    (2, 3, 4)
    """
    most = min(problem.k // 2, problem.modelling.slices)
    return tuple(count for count in range(2, most + 1) if problem.k % count == 0)
