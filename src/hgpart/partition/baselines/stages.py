"""Problem over tiles -> runs of layers, each by tiles on parts of its own, for least volume.

PipeDream's stages with replicas (Narayanan et al., SOSP 2019: 2-1-1 is a first stage on two devices
and two more on one each), as partitions: a stage of r parts gives every r-th of the batch to each,
or more to a faster one. With bands of rows it is every r-th of all rows of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Float64, Int32, Int64
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.parameters import vertex_gradients
from hgpart.partition.baselines.by_slices import dealt
from hgpart.partition.baselines.layerwise import uncuttable_runs, volume_into
from hgpart.partition.problem.problem import Problem
from hgpart.sequences import distinct


@dataclass(frozen=True)
class RunCosts:
    """Work and bytes of runs of layers, whatever the room of a part.

    Attributes
    ----------
    runs : int64 array, shape (layers,)
        Number of the piece that each layer is in; a cut is only allowed between pieces.
    load : float64 array, shape (pieces + 1, pieces + 1)
        Work of pieces i to j - 1, at [i, j], in a slice of a unit of work.
    volume, parameters, borders : arrays, shape (pieces + 1, pieces + 1)
        Bytes that a part of these pieces receives, bytes of their parameters, and bytes that each
        cut between two of their bands sends.
    """

    runs: Int64
    load: Float64
    volume: Float64
    parameters: Int64
    borders: Int64


def run_costs(problem: Problem) -> RunCosts:
    """Costs of runs of layers: what `replicated_stages` weighs against each other."""
    runs = uncuttable_runs(problem.graph)
    count = int(runs[-1]) + 1
    flat = problem.in_bands(1)
    model = flat.hypergraph(layer_blocks(flat.views))
    layers = model.vertex_layers[: model.slice_vertices]
    load, parameters, borders = (
        _between(np.bincount(runs[own], weights=weights, minlength=count))
        for own, weights in (
            (layers, model.weights[: model.slice_vertices]),
            (layers, vertex_gradients(model)),
            (np.arange(len(runs)), _borders(problem)),
        )
    )
    volume = volume_into(problem.in_slices(1).in_bands(1), runs, count)
    return RunCosts(runs, load / model.modelling.slice_work[0], volume, parameters, borders)


def replicated_stages(
    problem: Problem, room: float, costs: RunCosts
) -> tuple[CnnHypergraph, Int32] | None:
    """Cut the layers into stages of one part or several, at least volume.

    A stage has as few parts as its work needs: each more would cost its parameters, or borders
    between bands, once more.

    Parameters
    ----------
    room : float
        Work that a part may have, if its device's speed is 1.
    costs : RunCosts
        The problem's `run_costs`.

    Returns
    -------
    CnnHypergraph and int32 array, or None
        Layers of each tile, and their parts; None where k parts of that room are too few.
    """
    runs, count = costs.runs, int(costs.runs[-1]) + 1
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
            replicas = _fewest_replicas(problem, costs.load, room, rates)
            least = costs.volume + (replicas - 1) * costs.parameters
            least += _cuts_in_slices(problem, rates)[replicas] * costs.borders
            least[replicas > problem.k] = np.inf
        before = used - replicas
        total = np.where(before >= 0, best[np.maximum(before, 0), starts[:, None]], np.inf) + least
        choice[used] = total.argmin(axis=0)
        best[used] = total[choice[used], starts]
        devices[used] = replicas[choice[used], starts]
    used, end = int(best[:, count].argmin()), count
    if not np.isfinite(best[used, count]):
        return None
    tiled = problem.hypergraph(layer_blocks(problem.views))
    parts = np.empty((problem.modelling.slices, tiled.slice_vertices), dtype=np.int32)
    layers = tiled.vertex_layers[: tiled.slice_vertices]
    while end > 0:
        begin, first = int(choice[used, end]), used - int(devices[used, end])
        in_stage = (begin <= runs[layers]) & (runs[layers] < end)
        for layer in distinct(layers[in_stage].astype(np.int64)).tolist():
            bands = np.flatnonzero(layers == layer)
            tiles = dealt(len(parts) * len(bands), problem.rates[first:used])
            parts[:, bands] = first + tiles.reshape(len(parts), -1)
        used, end = first, begin
    return tiled, parts.ravel()


def _borders(problem: Problem) -> Int64:
    """Bytes of each layer's maps that one cut between two bands sends, for a slice."""
    if problem.modelling.bands == 1:
        return np.zeros(len(problem.graph.layers), dtype=np.int64)
    halves = problem.in_slices(1).in_bands(2)
    model = halves.hypergraph(layer_blocks(halves.views))
    layers = len(halves.views)
    between = model.map_nets.of_parts(model.weights, model.vertex_bands.astype(np.int32), 2)
    cost = np.bincount(between.net_layers % layers, weights=between.costs, minlength=layers)
    return (cost / problem.modelling.slices).astype(np.int64)


def _cuts_in_slices(problem: Problem, rates: Sequence[float]) -> Int64:
    """How often tiles that are dealt out to some parts, the last of these, are cut in a slice."""
    bands, cuts = problem.modelling.bands, [0, 0]
    if bands == 1:
        return np.zeros(problem.k + 2, dtype=np.int64)
    for count in range(2, problem.k + 2):
        own = dealt(problem.modelling.slices * bands, rates[-count:])
        cuts.append(int((np.flatnonzero(np.diff(own)) % bands != bands - 1).sum()))
    return np.array(cuts)


def _between(entries: Int64) -> Int64:
    """The sum of entries i to j - 1, at [i, j]."""
    reach = np.concatenate([[0], np.cumsum(entries)])
    sums: Int64 = reach[None, :] - reach[:, None]
    return sums


def _fewest_replicas(problem: Problem, load: Float64, room: float, rates: Sequence[float]) -> Int64:
    """Parts that runs of layers need, of `load` a unit of work of a slice; k + 1 for too many.

    They are the last ones that have these rates.
    """
    modelling, largest = problem.modelling, []
    work = np.repeat(np.array(modelling.slice_work) / modelling.bands, modelling.bands)
    for count in range(1, min(len(rates), len(work)) + 1):
        own = rates[-count:]
        loads = np.bincount(dealt(len(work), own), weights=work, minlength=count)
        largest.append(float((loads / own).max()))
    # Of the most loaded replica; more replicas than tiles do not help.
    reach = np.minimum.accumulate(largest)
    with np.errstate(divide="ignore", invalid="ignore"):  # of no work
        shares = np.nan_to_num(room / np.maximum(load, 0.0), nan=np.inf, posinf=np.inf)
    fewest: Int64 = 1 + len(largest) - np.searchsorted(reach[::-1], shares, "right")
    fewest[fewest > len(largest)] = problem.k + 1
    fewest[np.tril_indices(len(load))] = problem.k + 1  # a run of no layers
    return fewest
