"""The least volume of small hypergraphs, by all assignments of their vertices."""

from __future__ import annotations

import itertools

import numpy as np

from hgpart.hypergraph import Hypergraph, Int64


def least_volume(hypergraph: Hypergraph, room: Int64) -> int | None:
    """Of all assignments of the vertices to parts within the capacities; None if there is none."""
    k = len(room)
    every = np.array(list(itertools.product(range(k), repeat=hypergraph.vertices)), dtype=np.int32)
    held = every[:, :, None] == np.arange(k)
    loads = (held * hypergraph.weights[None, :, None]).sum(axis=1)
    volumes = np.zeros(len(every), dtype=np.int64)
    for net, cost in enumerate(hypergraph.costs.tolist()):
        pins = hypergraph.pins[hypergraph.pointers[net] : hypergraph.pointers[net + 1]]
        volumes += cost * (held[:, pins].any(axis=1).sum(axis=1) - 1)
    fits = (loads <= room).all(axis=1)
    return int(volumes[fits].min()) if fits.any() else None
