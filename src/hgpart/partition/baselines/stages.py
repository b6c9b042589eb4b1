"""Problem over slices -> runs of layers, each by slices on parts of its own, for least volume.

PipeDream's stages with replicas (Narayanan et al., SOSP 2019: 2-1-1 is a first stage on two devices
and two more on one each), as partitions: a stage of r parts gives every r-th of the batch to each.
"""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Float64, Int32, Int64
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.parameters import vertex_gradients
from hgpart.partition.baselines.layerwise import uncuttable_runs, volume_into
from hgpart.partition.problem.problem import Problem


def replicated_stages(problem: Problem, room: float) -> tuple[CnnHypergraph, Int32] | None:
    """Cut the layers into stages of one part or several, at least volume.

    A stage has as few parts as its work needs: each more would cost its parameters once more.

    Parameters
    ----------
    room : float
        Work that a part may have.

    Returns
    -------
    CnnHypergraph and int32 array, or None
        Layers of each slice, and their parts; None where k parts of that room are too few.
    """
    runs = uncuttable_runs(problem.graph)
    count = int(runs[-1]) + 1
    model = problem.hypergraph(layer_blocks(problem.views))
    of_vertex = runs[model.vertex_layers[: model.slice_vertices]]
    load, parameters = (
        _between(np.bincount(of_vertex, weights=weights, minlength=count))
        for weights in (model.weights[: model.slice_vertices], vertex_gradients(model))
    )
    replicas = _fewest_replicas(problem, load / model.modelling.slice_work[0], room)
    least = volume_into(problem.in_slices(1), runs, count) + (replicas - 1) * parameters
    least[replicas > problem.k] = np.inf
    starts = np.arange(count + 1)
    best = np.full((problem.k + 1, count + 1), np.inf)
    best[0, 0] = 0.0
    choice = np.zeros(best.shape, dtype=np.int64)
    for used in range(1, problem.k + 1):
        before = used - replicas
        total = np.where(before >= 0, best[np.maximum(before, 0), starts[:, None]], np.inf) + least
        choice[used] = total.argmin(axis=0)
        best[used] = total[choice[used], starts]
    used, end = int(best[:, count].argmin()), count
    if not np.isfinite(best[used, count]):
        return None
    slices = np.arange(problem.modelling.slices)
    table = np.zeros((len(slices), count), dtype=np.int32)
    while end > 0:
        begin = int(choice[used, end])
        devices = int(replicas[begin, end])
        used -= devices
        table[:, begin:end] = (used + slices * devices // len(slices))[:, None]
        end = begin
    return model, table[:, of_vertex].ravel()


def _between(entries: Int64) -> Int64:
    """The sum of entries i to j - 1, at [i, j]."""
    reach = np.concatenate([[0], np.cumsum(entries)])
    sums: Int64 = reach[None, :] - reach[:, None]
    return sums


def _fewest_replicas(problem: Problem, load: Float64, room: float) -> Int64:
    """Parts that runs of layers need, of `load` a unit of work of a slice; k + 1 for too many."""
    work = np.array(problem.modelling.slice_work)
    largest = [
        float(np.bincount(np.arange(len(work)) * count // len(work), weights=work).max())
        for count in range(1, min(problem.k, len(work)) + 1)
    ]
    # Of the most loaded replica; more replicas than slices do not help.
    reach = np.minimum.accumulate(largest)
    with np.errstate(divide="ignore", invalid="ignore"):  # of no work
        shares = np.nan_to_num(room / np.maximum(load, 0.0), nan=np.inf, posinf=np.inf)
    fewest: Int64 = 1 + len(largest) - np.searchsorted(reach[::-1], shares, "right")
    fewest[fewest > len(largest)] = problem.k + 1
    fewest[np.tril_indices(len(load))] = problem.k + 1  # a run of no layers
    return fewest
