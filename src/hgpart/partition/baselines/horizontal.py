"""Problem -> every layer's filters in k equal shares (thesis 5.1.2)."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.partition.problem.problem import Problem


def horizontal(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Cut every layer into k nearly equal runs of tasks, part p taking the p-th.

    A layer of fewer tasks than parts goes to as many parts as it has tasks, spread evenly; one
    that is a single vertex goes to part 0. Fine-grain tasks stay whole (thesis 5.1.4: the
    result is the same).

    Returns
    -------
    CnnHypergraph and int32 array
        The blocks, and the part of each vertex.
    """

    def cuts(view: LayerVertices) -> tuple[Int64, Int64]:
        shares, tasks = min(problem.k, view.rows), view.layer.tasks
        return np.arange(shares + 1) * tasks // shares, np.array([0, view.columns])

    model = problem.hypergraph(Blocks.cut(problem.views, cuts))
    shares_of = np.array([len(cuts) - 1 for cuts in model.blocks.rows])[model.vertex_layers]
    return model, (model.vertex_rows.astype(np.int64) * problem.k // shares_of).astype(np.int32)
