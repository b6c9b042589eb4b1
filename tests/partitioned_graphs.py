"""Hypothesis strategy: random ChannelGraphs, cut anywhere, each vertex in a random part."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from partitioned_models import divided_graphs

from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.metrics import evaluate
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.partition.problem.problem import Problem


@st.composite
def partitioned_graphs(draw: st.DrawFn, most_parts: int = 4) -> tuple[ChannelGraph, Partition]:
    """A graph and a partition of it that no partitioner made."""
    graph, work, modelling, blocks = draw(divided_graphs())
    model = cnn_hypergraph(graph, work, blocks, modelling)
    k = draw(st.integers(1, most_parts))
    count = model.hypergraph.vertices
    seed = draw(st.integers(0, 2**16))
    parts = np.random.default_rng(seed).integers(0, k, count).astype(np.int32)
    return graph, Partition(
        problem=Problem(graph, work, modelling, k, 0.1),
        model=model,
        parts=parts,
        seed=0,
        backend="test",
        start="test",
        evaluation=evaluate(model.hypergraph, parts, k),
        feasible=False,
        lower_bound=0,
    )
