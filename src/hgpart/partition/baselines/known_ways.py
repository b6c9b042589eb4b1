"""Problem over slices -> the ways of training that others know, by name: all partitions of it.

Each takes a moment: what a search begins with, and what it is measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
from hgpart.partition.baselines.stages import replicated_stages
from hgpart.partition.problem.problem import Problem

SHARES_OF_EPS = (0.2, 0.5, 1.0)  # of the room above the average, that stages may use

Way = tuple[CnnHypergraph, Int32]


def layer_cut(problem: Problem) -> Way:
    """The cut between layers of least volume within eps, or else tasks in order."""
    cut = layerwise_within(problem)
    if cut is None:
        return incremental(problem)
    model = problem.hypergraph(layer_blocks(problem.views))
    return model, cut.astype(np.int32)[model.vertex_layers]


def known_ways(
    problem: Problem, divide: Callable[[Problem], Way] = layer_cut
) -> Iterator[tuple[str, CnnHypergraph, Int32]]:
    """Every way that can be used, whether it is within the capacities or not.

    Parameters
    ----------
    problem : Problem
    divide : function of a Problem
        Divides a `replica` of the model, which has no slices.
    """
    one = problem.in_slices(1)
    for name, rule in (("layerwise", layer_cut), ("filterwise-incremental", incremental)):
        yield name, *in_every_slice(problem, *rule(one))
    if problem.modelling.slices == 1:
        return
    yield "data-parallel", *data_parallel(problem)
    for replicas in numbers_of_replicas(problem):
        way = divide(replica(problem, replicas))
        yield f"hybrid of {replicas}", *hybrid(problem, replicas, *way)
    if linear_tail(problem.graph).any():
        yield "one-weird-trick", *one_weird_trick(problem)
    yield "opposed-replicas", *opposed_replicas(problem)
    for stages in stages_of_rooms(problem):
        yield "replicated-stages", *stages


def stages_of_rooms(problem: Problem) -> Iterator[Way]:
    """Stages of replicas for several shares of the room that eps leaves: those that differ."""
    even = float(problem.capacities.min()) / (1 + problem.eps)
    seen: list[bytes] = []
    for share in SHARES_OF_EPS:
        stages = replicated_stages(problem, even * (1 + share * problem.eps))
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
