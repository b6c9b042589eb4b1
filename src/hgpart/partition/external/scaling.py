"""Hypergraph + capacities -> the same for partitioners that add up in 32 bits."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.external.contract import counted_nets
from hgpart.partition.problem.balance import scale_costs, scale_weights


def in_32_bits(
    hypergraph: Hypergraph, capacities: Int64, dearest: int = 1
) -> tuple[Hypergraph, Int32]:
    """Leave out nets that cost nothing, and scale the rest as `scale_weights` and `scale_costs` do.

    Parameters
    ----------
    dearest : int
        What a unit of a net's cost costs at most for each part that it reaches.

    Returns
    -------
    Hypergraph
        The same vertices, weights >= 1, and the nets with several pins and a cost, all >= 1. No sum
        of weights exceeds 32 bits, nor does any cost of a partition.
    int32 array, shape (k,)
        Capacities in the unit of its weights.
    """
    counted, sizes = counted_nets(hypergraph), np.diff(hypergraph.pointers)
    own_sizes = sizes[counted]
    copies = dearest * (np.minimum(own_sizes, len(capacities)) - 1)
    weights, room = scale_weights(hypergraph.weights, capacities)
    scaled = Hypergraph(
        weights=weights.astype(np.int64),
        costs=scale_costs(hypergraph.costs[counted], copies).astype(np.int64),
        pointers=np.cumsum([0, *own_sizes], dtype=np.int64),
        pins=hypergraph.pins[np.repeat(counted, sizes)],
        gathers=hypergraph.gathers[counted],
        net_layers=hypergraph.net_layers[counted],
    )
    return scaled, room
