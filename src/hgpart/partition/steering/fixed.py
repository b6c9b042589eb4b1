"""Blocks + constraints -> parts by a general partitioner, with what it can be told of them.

KaHyPar and Mt-KaHyPar know fixed vertices: what may lie on one device only is one. Layers that lie
whole on one device are one vertex. Sets of devices, and layers that are apart, no such partitioner
knows: its parts are mended.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.problem.problem import Problem
from hgpart.partition.steering.obeying import Obeying


def parts_by(
    partitioner: Callable[..., Int32],
    problem: Problem,
    model: CnnHypergraph,
    seed: int,
    time_limit: float | None,
) -> Int32:
    """Have a partitioner divide blocks that are cut where runs of constrained filters end.

    Parameters
    ----------
    partitioner : function
        A `Backend`. If it has a parameter `fixed`, it gets the part of each vertex that may lie in
        one only, and -1 for all others.

    Returns
    -------
    int32 array, shape (model.vertices,)
        Parts that meet the constraints.
    """
    rules, room = problem.layer_constraints, problem.capacities
    if rules is None:
        return partitioner(model.hypergraph, room, seed=seed, time_limit=time_limit)
    groups = rules.groups[model.vertex_layers]
    is_alone = groups < 0
    clusters = np.where(is_alone, 0, groups).astype(np.int64)
    clusters[is_alone] = len(rules.of_group) + np.arange(int(is_alone.sum()))
    allowed = rules.of_vertices(model)
    fixed = np.full(int(clusters.max()) + 1, -1, dtype=np.int32)
    is_fixed = allowed.sum(axis=1) == 1
    fixed[clusters[is_fixed]] = allowed[is_fixed].argmax(axis=1)
    told = {"fixed": fixed} if "fixed" in inspect.signature(partitioner).parameters else {}
    contracted = _contracted(model.hypergraph, clusters)
    parts = partitioner(contracted, room, seed=seed, time_limit=time_limit, **told)
    return Obeying(problem).parts(model, np.ascontiguousarray(parts[clusters]))


def _contracted(hypergraph: Hypergraph, clusters: Int64) -> Hypergraph:
    """The hypergraph of clusters of vertices, numbered without gaps; a net has each once."""
    count = int(clusters.max()) + 1
    weights = np.zeros(count, dtype=np.int64)
    np.add.at(weights, clusters, hypergraph.weights)
    nets = np.repeat(np.arange(hypergraph.nets), np.diff(hypergraph.pointers))
    pins = clusters[hypergraph.pins]
    kept = np.sort(np.unique(nets * count + pins, return_index=True)[1])
    sizes = np.bincount(nets[kept], minlength=hypergraph.nets)
    return replace(
        hypergraph,
        weights=weights,
        pointers=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        pins=pins[kept].astype(np.int32),
    )
