"""Problem -> every layer's filters in k equal shares (thesis 5.1.2), or in proportion to speeds."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.partition.baselines.by_slices import dealt
from hgpart.partition.problem.problem import Problem


def horizontal(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Cut every layer into k nearly equal runs of tasks, part p taking the p-th.

    A layer of fewer tasks than parts goes to as many parts as it has tasks, spread evenly; one
    that is a single vertex goes to part 0. Fine-grain tasks stay whole (thesis 5.1.4: the
    result is the same). Where devices differ in speed, runs are as long as they are fast.

    Returns
    -------
    CnnHypergraph and int32 array
        The blocks, and the part of each vertex.
    """
    if problem.speeds is not None and len({*problem.speeds}) > 1:
        return _by_speeds(problem)

    def cuts(view: LayerVertices) -> tuple[Int64, Int64]:
        shares, tasks = min(problem.k, view.rows), view.layer.tasks
        return np.arange(shares + 1) * tasks // shares, np.array([0, view.columns])

    model = problem.hypergraph(Blocks.cut(problem.views, cuts))
    shares_of = np.array([len(cuts) - 1 for cuts in model.blocks.rows])[model.vertex_layers]
    return model, (model.vertex_rows.astype(np.int64) * problem.k // shares_of).astype(np.int32)


def _by_speeds(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    of_rows = {rows: dealt(rows, problem.rates) for rows in {view.rows for view in problem.views}}

    def cuts(view: LayerVertices) -> tuple[Int64, Int64]:
        starts = np.flatnonzero(np.diff(of_rows[view.rows], prepend=-1)) * view.tasks_per_row
        return np.append(starts, view.layer.tasks), np.array([0, view.columns])

    model = problem.hypergraph(Blocks.cut(problem.views, cuts))
    parts = [np.unique(of_rows[view.rows]) for view in problem.views]
    pairs = zip(model.vertex_layers.tolist(), model.vertex_rows.tolist(), strict=True)
    return model, np.array([parts[layer][row] for layer, row in pairs], dtype=np.int32)
