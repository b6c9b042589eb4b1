"""Problem -> the best way to cut between layers, as pipeline tools do by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hgpart.arrays import Float64, Int64
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.layers.channel_graph import PARAMETER, ChannelGraph
from hgpart.partition.problem.problem import Problem


def layerwise(problem: Problem) -> Int64:
    """Cut the layers, in order, into k runs: the smallest largest load, ties by volume.

    Exact, by dynamic programming over (part, last layer): first for the load, then for the
    volume of the cuts that reach it (thesis 5.1.1 sets its cut points recursively). Each part
    gets a layer that computes, as long as there are that many; layers that share a weight are
    never parted.

    Returns
    -------
    int64 array, shape (layers,)
        Part of each layer, ascending but for parameters that are read as data.
    """
    return _balanced(problem, _loads(problem), np.array(problem.rates))


def layerwise_within(problem: Problem) -> Int64 | None:
    """Cut the layers, in order, into at most k runs of the least volume within the capacities.

    Returns
    -------
    int64 array, shape (layers,), or None
        Part of each layer, ascending but for parameters that are read as data; None where no cut
        between layers is within the capacities.
    """
    room = problem.capacities
    runs = uncuttable_runs(problem.graph)
    count = int(runs[-1]) + 1
    run_loads = np.zeros(count, dtype=np.int64)
    np.add.at(run_loads, runs, _loads(problem))
    reach = np.concatenate([[0], np.cumsum(run_loads)])
    load = reach[None, :] - reach[:, None]
    ordered = np.arange(count + 1)[None, :] >= np.arange(count + 1)[:, None]
    volume = volume_into(problem, runs, count)
    smallest, starts = _best_cuts(
        problem.k, lambda part: np.where(ordered & (load <= room[part]), volume, np.inf), np.add
    )
    if smallest == np.inf:
        return None
    return (np.searchsorted(starts, runs, "right") - 1).astype(np.int64)


def layerwise_by_parameters(problem: Problem) -> Int64:
    """Cut as `layerwise` does, but balance parameters, as pipeline tools do by default.

    Returns
    -------
    int64 array, shape (layers,)
        Part of each layer, ascending but for parameters that are read as data.
    """
    loads = np.array([layer.parameters for layer in problem.graph.layers])
    return _balanced(problem, loads, np.ones(problem.k))


def layerwise_by_count(problem: Problem) -> Int64:
    """Cut the layers that compute, in order, into k runs of nearly equal number.

    Layers without work go with the one before them; tied layers are not kept together.

    Returns
    -------
    int64 array, shape (layers,)
        Part of each layer, ascending but for parameters that are read as data.
    """
    busy = np.cumsum(problem.work.per_task > 0)
    numbers = np.maximum(busy, 1) - 1
    parts: Int64 = numbers * problem.k // max(1, int(busy[-1]))
    return parts[_homes(problem.graph)]


def _loads(problem: Problem) -> Int64:
    """Work of each layer, of all slices."""
    tasks = np.array([layer.tasks for layer in problem.graph.layers])
    loads: Int64 = problem.work.per_task * tasks * sum(problem.modelling.slice_work)
    return loads


def _balanced(problem: Problem, loads: Int64, speeds: Float64) -> Int64:
    """Cut the layers for the smallest largest load / speed, ties by volume."""
    runs = uncuttable_runs(problem.graph)
    count = int(runs[-1]) + 1
    run_loads = np.bincount(runs, weights=loads, minlength=count)
    reach = np.concatenate([[0.0], np.cumsum(run_loads)])
    busy = np.concatenate([[0], np.cumsum(run_loads > 0)])
    if busy[-1] == 0:
        return np.zeros(len(loads), dtype=np.int64)

    # Entry [i, j] is about one part that holds runs i to j - 1.
    load = reach[None, :] - reach[:, None]
    allowed = busy[None, :] > busy[:, None]
    used = min(len(speeds), int(busy[-1]))

    def time(part: int) -> Float64:
        return np.where(allowed, load / speeds[part], np.inf)

    smallest, _ = _best_cuts(used, time, np.maximum)
    bound = smallest * (1 + 1e-12)
    volume = volume_into(problem, runs, count)
    _, starts = _best_cuts(used, lambda part: np.where(time(part) <= bound, volume, np.inf), np.add)
    return (np.searchsorted(starts, runs, "right") - 1).astype(np.int64)


def uncuttable_runs(graph: ChannelGraph) -> Int64:
    """Number the runs of layers between which a cut is allowed: not between tied layers.

    A parameter that is read as data stands before all layers, but nothing has to be computed before
    it: it forbids no cut, and is in the run of the layer that it belongs to.
    """
    homes = _homes(graph)
    cut = (homes == np.arange(len(homes))).astype(np.int64)
    for at, layer in enumerate(graph.layers):
        cut[homes[layer.tied_to] + 1 : at + 1] = 0
    cut[0] = 0
    runs: Int64 = np.cumsum(cut)[homes]
    return runs


def _homes(graph: ChannelGraph) -> Int64:
    """For each layer itself; for a parameter that is read as data, the layer that it belongs to.

    A parameter belongs to the first other layer that it is tied to, or else to its first reader.
    """
    tied: dict[int, int] = {}
    read: dict[int, int] = {}
    for at, layer in enumerate(graph.layers):
        if layer.kind != PARAMETER:
            tied.setdefault(layer.tied_to, at)
            for source in graph.sources(layer):
                read.setdefault(graph.layers[source].tied_to, at)
    return np.array(
        [
            tied.get(layer.tied_to, read.get(layer.tied_to, at)) if layer.kind == PARAMETER else at
            for at, layer in enumerate(graph.layers)
        ],
        dtype=np.int64,
    )


def volume_into(problem: Problem, runs: Int64, count: int) -> Float64:
    """Bytes that a part of runs i to j - 1 receives: entry [i, j].

    A map is sent to a part once. Of the runs that use it, in order, one receives it if the run
    before it is in an earlier part; so volume adds up part by part.
    """
    coarse = problem.coarse
    model = coarse.hypergraph(layer_blocks(coarse.views))
    nets = model.hypergraph
    received = np.zeros((count + 1, count + 1))
    for net in range(nets.nets):
        pins = nets.pins[nets.pointers[net] : nets.pointers[net + 1]]
        users = np.unique(runs[model.vertex_layers[pins]])
        np.add.at(received, (users[:-1] + 1, users[1:] + 1), nets.costs[net])
    reach = received.cumsum(axis=0).cumsum(axis=1)
    return reach - np.diag(reach)[:, None]


def _best_cuts(
    parts: int, cost: Callable[[int], Float64], combine: np.ufunc
) -> tuple[float, Int64]:
    """Best combined cost of `parts` consecutive runs that cover everything, and their starts."""
    best = cost(0)[0]
    choices = []
    for part in range(1, parts):
        total = combine(best[:, None], cost(part))
        choice = total.argmin(axis=0)
        best = total[choice, np.arange(len(choice))]
        choices.append(choice)
    end = len(best) - 1
    smallest = float(best[end])
    starts = []
    for choice in reversed(choices):
        end = int(choice[end])
        starts.append(end)
    return smallest, np.array([0, *reversed(starts)], dtype=np.int64)
