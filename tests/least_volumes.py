"""All assignments of small hypergraphs' vertices to parts, and the least volume of them."""

from __future__ import annotations

import itertools

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.hypergraph import Hypergraph


def assignments_within(hypergraph: Hypergraph, room: Int64) -> tuple[Int32, Int64]:
    """The assignments within the capacities, a row each, and their volumes."""
    k = len(room)
    every = np.array(list(itertools.product(range(k), repeat=hypergraph.vertices)), dtype=np.int32)
    held = every[:, :, None] == np.arange(k)
    loads = (held * hypergraph.weights[None, :, None]).sum(axis=1)
    volumes = np.zeros(len(every), dtype=np.int64)
    for net, cost in enumerate(hypergraph.costs.tolist()):
        pins = hypergraph.pins[hypergraph.pointers[net] : hypergraph.pointers[net + 1]]
        volumes += cost * (held[:, pins].any(axis=1).sum(axis=1) - 1)
    fits = (loads <= room).all(axis=1)
    return every[fits], volumes[fits]


def least_volume(hypergraph: Hypergraph, room: Int64) -> int | None:
    """Of all assignments within the capacities; None if there is none."""
    _, volumes = assignments_within(hypergraph, room)
    return int(volumes.min()) if len(volumes) else None
