"""Problem over slices -> ways that others train, as partitions: by slices of the batch alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hgpart.arrays import Int32
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.baselines.layerwise import layerwise
from hgpart.partition.problem.objectives import VOLUME
from hgpart.partition.problem.problem import Problem


def data_parallel(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Give each part the whole model for its share of the slices.

    With as many slices as parts the volume is (k - 1) times the parameters.

    Returns
    -------
    CnnHypergraph and int32 array
        Layers of each slice, and their parts.
    """
    model = problem.hypergraph(layer_blocks(problem.views))
    return model, np.repeat(by_turns(problem, problem.k), model.slice_vertices)


def by_turns(problem: Problem, count: int) -> Int32:
    """The number of the run that each slice is in, of `count` equal runs."""
    slices = problem.modelling.slices
    return (np.arange(slices) * count // slices).astype(np.int32)


def in_every_slice(
    problem: Problem, model: CnnHypergraph, parts: Int32
) -> tuple[CnnHypergraph, Int32]:
    """A partition of the model, the same for each slice of the batch.

    It sends what it sends without slices; what does not grow with the batch, for every slice.
    """
    sliced = problem.hypergraph(model.blocks)
    return sliced, np.tile(parts, problem.modelling.slices)


# ------------------------------------------------------------------ replicas of several parts


def replica(problem: Problem, replicas: int) -> Problem:
    """What one of some replicas of the model has: k / replicas parts, and no slices.

    Its eps is what the replica with most samples leaves: where the slices are not of one size, a
    part of that replica has more than its share already.
    """
    samples = np.array(problem.modelling.samples)
    most = int(np.bincount(by_turns(problem, replicas), weights=samples).max())
    eps = (1 + problem.eps) * problem.modelling.batch_size / (most * replicas) - 1
    k = problem.k // replicas
    return replace(
        problem.in_slices(1),
        k=k,
        eps=max(0.0, eps),
        speeds=None if problem.speeds is None else problem.speeds[:k],
        objective=VOLUME,
        memory=None,
    )


def hybrid(
    problem: Problem, replicas: int, model: CnnHypergraph, parts: Int32
) -> tuple[CnnHypergraph, Int32]:
    """Replicas of the model (HyPar-Flow, DistBelief): each by a partition in k / replicas parts.

    Parameters
    ----------
    replicas : int
        Number of replicas of the model: a divisor of k, at most the slices.
    model, parts : CnnHypergraph and int32 array
        A partition of the `replica`, which all of them have.
    """
    sliced = problem.hypergraph(model.blocks)
    first = by_turns(problem, replicas) * (problem.k // replicas)
    return sliced, (first[:, None] + parts).astype(np.int32).ravel()


def opposed_replicas(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Two replicas, the layers of one cut in order and those of the other in opposite order.

    GEMS (Jain et al., SC 2020): part p has the p-th run of layers of every second slice, and the
    p-th from the end of the others, so that its gradients are those of both.
    """
    model = problem.hypergraph(layer_blocks(problem.views))
    own = layerwise(problem.in_slices(1))[model.vertex_layers[: model.slice_vertices]]
    odd = np.arange(problem.modelling.slices)[:, None] % 2 == 1
    return model, np.where(odd, problem.k - 1 - own, own).astype(np.int32).ravel()
