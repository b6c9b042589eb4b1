"""Hypothesis strategies shared by the tests: random hypergraphs and partitions of them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from hgpart.hypergraph.hypergraph import Hypergraph


@st.composite
def hypergraphs(
    draw: st.DrawFn,
    max_vertices: int = 12,
    max_nets: int = 10,
    min_nets: int = 0,
    max_weight: int = 10**12,
    min_weight: int = 0,
    min_cost: int = 0,
) -> Hypergraph:
    """Small valid hypergraphs: pins of a net are distinct, single-pin nets included."""
    vertices = draw(st.integers(1, max_vertices))
    net = st.lists(st.integers(0, vertices - 1), min_size=1, max_size=vertices, unique=True)
    nets = draw(st.lists(net, min_size=min_nets, max_size=max_nets))
    number = st.integers(min_weight, max_weight)
    weights = draw(st.lists(number, min_size=vertices, max_size=vertices))
    cost = st.integers(min_cost, 10**9)
    costs = draw(st.lists(cost, min_size=len(nets), max_size=len(nets)))
    gathers = draw(st.lists(st.booleans(), min_size=len(nets), max_size=len(nets)))
    layers = draw(st.lists(st.integers(0, 3), min_size=len(nets), max_size=len(nets)))
    return Hypergraph(
        weights=np.array(weights, dtype=np.int64),
        costs=np.array(costs, dtype=np.int64),
        pointers=np.cumsum([0, *map(len, nets)], dtype=np.int64),
        pins=np.array([pin for net in nets for pin in net], dtype=np.int32),
        gathers=np.array(gathers, dtype=np.bool_),
        net_layers=np.array(layers, dtype=np.int32),
    )


@st.composite
def partitioned_hypergraphs(
    draw: st.DrawFn, max_parts: int = 5
) -> tuple[Hypergraph, np.ndarray, int]:
    """A hypergraph, a part for each of its vertices, and k (parts may be empty)."""
    hypergraph = draw(hypergraphs())
    k = draw(st.integers(1, max_parts))
    part = st.integers(0, k - 1)
    parts = draw(st.lists(part, min_size=hypergraph.vertices, max_size=hypergraph.vertices))
    return hypergraph, np.array(parts, dtype=np.int32), k
