"""Problem over slices of the batch -> what its layers send at least, each by itself.

A layer is a matrix of filters x samples. A part that computes a share x of it has a share a of the
filters and b of the samples, with a b >= x: it keeps a of the parameters and gets b of the maps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hgpart.hypergraph.modelling import LayerVertices, by_vertices
from hgpart.layers.channel_graph import PARAMETER, ChannelGraph
from hgpart.partition.problem.problem import Problem


def slices_bound(problem: Problem) -> int:
    """Bytes that every partition within the problem's capacities sends at least.

    Notes
    -----
    With P the bytes of a layer's parameters and M those of the maps that all of it reads, a part of
    share x costs at least ``g(x) = min over a of a P + x M / a``, x <= a <= 1, of which P and M
    themselves do not travel. g is concave, so that the sum over parts is least where as few as
    possible are full. A map counts for the first layer alone that reads it. Where channels split
    the tasks, fine-grain, a part need neither all parameters of its filters nor all maps: such
    layers do not count.
    """
    modelling = problem.modelling
    largest = np.sort(problem.capacities)[::-1].tolist()
    seen: set[int] = set()
    total = 0
    for tied in by_vertices(problem.views).values():
        load = sum(int(problem.work.per_task[view.at]) * view.layer.tasks for view in tied)
        load *= sum(modelling.slice_work)
        maps = _maps(problem.graph, problem.views, tied, seen)
        parameters = sum(
            count // view.layer.tasks * view.layer.tasks * size
            for view in tied
            for count, size in view.parameters
        )
        if not modelling.training:
            parameters = 0
        if load > largest[0] and tied[0].split is None:
            total += _least(load, float(parameters), float(maps), largest)
    return total


def _maps(
    graph: ChannelGraph,
    views: Sequence[LayerVertices],
    tied: Sequence[LayerVertices],
    seen: set[int],
) -> int:
    """Bytes, for a batch, of the maps that all tasks of a layer read, and no layer before it."""
    if len(tied) > 1:
        return 0
    total = 0
    for read in tied[0].layer.reads:
        if read.groups > 1:
            continue
        for task in np.unique(graph.task_of_channel[read.channels[read.channels >= 0]]).tolist():
            maker = views[int(np.searchsorted(graph.first_task, task, "right")) - 1]
            grows = maker.layer.kind != PARAMETER and not maker.layer.fixed_elements
            if task not in seen and maker.exists and grows:
                seen.add(task)
                total += maker.map_bytes
    return total


def _least(load: int, parameters: float, maps: float, largest: Sequence[int]) -> int:
    """The sum of g over parts that are as full as can be, less what stays."""
    left, total = 1.0, 0.0
    for room in largest:
        share = min(left, room / load)
        total += _cost(share, parameters, maps)
        left -= share
        if left <= 0:
            break
    return max(0, math.floor((total - parameters - maps) * (1 - 1e-9)) - 1)


def _cost(share: float, parameters: float, maps: float) -> float:
    """Bytes of a layer's parameters and maps that a part with this share of it needs.

    >>> _cost(0.5, 100.0, 10.0), _cost(0.5, 10.0, 100.0), _cost(0.25, 10.0, 10.0)
    (60.0, 60.0, 10.0)
    """
    if min(parameters, maps) == 0:  # the other as little as can be
        return share * max(parameters, maps)
    filters = min(1.0, max(share, math.sqrt(share * maps / parameters)))
    return filters * parameters + share / filters * maps
