"""Problem + a partitioner of hypergraphs -> Solution: blocks of equal work, then split ones."""

from __future__ import annotations

import numpy as np

from hgpart.hypergraph.blocks import divide
from hgpart.partition.backends import Backend
from hgpart.partition.baselines.layerwise import layerwise_within
from hgpart.partition.improving import rank, refine, split_and_improve
from hgpart.partition.problem.number_of_blocks import tile_blocks
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.solution import Solution
from hgpart.partition.steering.fixed import parts_by
from hgpart.partition.steering.obeying import Obeying, cut_at_runs


def by_blocks(problem: Problem, search: Search, partitioner: Backend) -> Solution:
    """Have a general partitioner divide blocks; for the volume, then split and move them."""
    room, blocks = problem.capacities, tile_blocks(problem)
    divided = divide(problem.graph, problem.work, problem.modelling, blocks)
    model, obeying = problem.hypergraph(cut_at_runs(problem, divided)), Obeying(problem)
    parts = parts_by(partitioner, problem, model, search.seed, search.part().time_limit)
    if not problem.objective.is_volume:
        return Solution(model, parts)  # moves below are for the volume
    parts, start = refine(search, model, parts, room, obeying.may_lie(model, parts)), None
    cut = layerwise_within(problem)
    if cut is not None:
        # So that no cut between layers within eps is ever better.
        cut_parts = obeying.parts(model, cut.astype(np.int32)[model.vertex_layers])
        cut_parts = refine(search, model, cut_parts, room, obeying.may_lie(model, cut_parts))
        if rank(model, cut_parts, room) < rank(model, parts, room):
            parts, start = cut_parts, "layerwise"
    model, parts = split_and_improve(problem, search, model, parts)
    return Solution(model, parts, start=start)
