"""Problem over slices -> runs of layers, each by slices on parts of its own, for least volume.

PipeDream's stages with replicas (Narayanan et al., SOSP 2019: 2-1-1 is a first stage on two devices
and two more on one each), as partitions: a stage of r parts gives every r-th of the batch to each,
or more to a faster one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hgpart.arrays import Float64, Int32, Int64
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.parameters import vertex_gradients
from hgpart.partition.baselines.by_slices import dealt
from hgpart.partition.baselines.layerwise import uncuttable_runs, volume_into
from hgpart.partition.problem.problem import Problem


def replicated_stages(problem: Problem, room: float) -> tuple[CnnHypergraph, Int32] | None:
    """Cut the layers into stages of one part or several, at least volume.

    A stage has as few parts as its work needs: each more would cost its parameters once more.

    Parameters
    ----------
    room : float
        Work that a part may have, if its device's speed is 1.

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
    a_unit = load / model.modelling.slice_work[0]
    volume = volume_into(problem.in_slices(1), runs, count)
    alike = len({*problem.rates}) == 1
    starts = np.arange(count + 1)
    best = np.full((problem.k + 1, count + 1), np.inf)
    best[0, 0] = 0.0
    choice, devices = np.zeros(
        (2, *best.shape), dtype=np.int64
    )  # begin and parts of the last stage
    for used in range(1, problem.k + 1):
        if used == 1 or not alike:
            rates = problem.rates if alike else problem.rates[:used]
            replicas = _fewest_replicas(problem, a_unit, room, rates)
            least = volume + (replicas - 1) * parameters
            least[replicas > problem.k] = np.inf
        before = used - replicas
        total = np.where(before >= 0, best[np.maximum(before, 0), starts[:, None]], np.inf) + least
        choice[used] = total.argmin(axis=0)
        best[used] = total[choice[used], starts]
        devices[used] = replicas[choice[used], starts]
    used, end = int(best[:, count].argmin()), count
    if not np.isfinite(best[used, count]):
        return None
    slices = problem.modelling.slices
    table = np.zeros((slices, count), dtype=np.int32)
    while end > 0:
        begin, first = int(choice[used, end]), used - int(devices[used, end])
        table[:, begin:end] = (first + dealt(slices, problem.rates[first:used]))[:, None]
        used, end = first, begin
    return model, table[:, of_vertex].ravel()


def _between(entries: Int64) -> Int64:
    """The sum of entries i to j - 1, at [i, j]."""
    reach = np.concatenate([[0], np.cumsum(entries)])
    sums: Int64 = reach[None, :] - reach[:, None]
    return sums


def _fewest_replicas(problem: Problem, load: Float64, room: float, rates: Sequence[float]) -> Int64:
    """Parts that runs of layers need, of `load` a unit of work of a slice; k + 1 for too many.

    They are the last ones that have these rates.
    """
    work, largest = np.array(problem.modelling.slice_work), []
    for count in range(1, min(len(rates), len(work)) + 1):
        own = rates[-count:]
        loads = np.bincount(dealt(len(work), own), weights=work, minlength=count)
        largest.append(float((loads / own).max()))
    # Of the most loaded replica; more replicas than slices do not help.
    reach = np.minimum.accumulate(largest)
    with np.errstate(divide="ignore", invalid="ignore"):  # of no work
        shares = np.nan_to_num(room / np.maximum(load, 0.0), nan=np.inf, posinf=np.inf)
    fewest: Int64 = 1 + len(largest) - np.searchsorted(reach[::-1], shares, "right")
    fewest[fewest > len(largest)] = problem.k + 1
    fewest[np.tril_indices(len(load))] = problem.k + 1  # a run of no layers
    return fewest
