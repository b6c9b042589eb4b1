"""ChannelGraph + kind -> Partition: good ones, bad ones and random ones, to try a placement on."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import not_one_of
from hgpart.hypergraph.blocks import Blocks, layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import LayerVertices, Modelling
from hgpart.hypergraph.partition_files import blocks_of_parts
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.layerwise import layerwise
from hgpart.partition.partition import evaluated
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve
from hgpart.work.figures import Work

KINDS = {
    "good": "the partitioner's",
    "random": "a part for each vertex at random",
    "horizontal": "every layer in k equal shares",
    "layers": "cuts between layers",
}

MOST_RANDOM_VERTICES = 2_000_000  # beyond, it is blocks that get a part at random
MOST_CUTS = 7  # then, of a layer's tasks, and of the channels of each


def partition_of_kind(
    kind: str,
    graph: ChannelGraph,
    work: Work,
    k: int,
    eps: float,
    *,
    modelling: Modelling | None = None,
    backend: str = "native",
    seed: int = 0,
) -> Partition:
    """Divide a model in some way; all but the good one are balanced only by chance.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    graph, work, k, eps, modelling, backend, seed
        As in `partition_graph`.

    Raises
    ------
    ArgumentError
        If an argument is out of range.
    HgpartError
        As `partition_graph`, for the good one.
    """
    check_kind(kind)
    problem = Problem(graph, work, modelling or Modelling(), k, eps)
    search = Search(seed)
    if kind == "good":
        return solve(problem, search, backend)
    if kind == "random":
        model, parts = _random(problem, search.seed)
    elif kind == "horizontal":
        model, parts = horizontal(problem)
    else:
        cut = layerwise(problem)
        model = problem.hypergraph(layer_blocks(problem.views))
        parts = cut.astype(np.int32)[model.vertex_layers]
    return evaluated(problem, model, parts, seed=search.seed, backend=kind, start=kind)


def check_kind(kind: str) -> None:
    """Refuse what is no kind of partition."""
    if kind not in KINDS:
        raise not_one_of("partition", kind, KINDS)


def _random(problem: Problem, seed: int) -> tuple[CnnHypergraph, Int32]:
    """Draw the part of every vertex or, where there are too many, of every block of random size."""
    draw, k = np.random.default_rng(seed), problem.k
    if problem.tasks <= MOST_RANDOM_VERTICES:
        parts = draw.integers(0, k, problem.tasks).astype(np.int32)
        return blocks_of_parts(problem.graph, problem.work, problem.modelling, parts)

    def cuts(view: LayerVertices) -> tuple[Int64, Int64]:
        tasks = view.layer.tasks
        rows = np.array([0, tasks]) if view.is_solid else _cuts(tasks, draw)
        return rows, np.array([0, 1]) if view.split is None else _cuts(view.columns, draw)

    model = problem.hypergraph(Blocks.cut(problem.views, cuts))
    return model, draw.integers(0, k, model.vertices).astype(np.int32)


def _cuts(size: int, draw: np.random.Generator) -> Int64:
    """Cut a run of `size` at random places."""
    count = min(size - 1, int(draw.integers(MOST_CUTS + 1)))
    inner = draw.choice(np.arange(1, size), count, replace=False)
    return np.array([0, *np.sort(inner).tolist(), size], dtype=np.int64)
