"""Classes of units: what the native solver counts is what hgpart's metrics count."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioned_models import channel_graphs, modellings

from hgpart.blocks import Modelling, single_blocks
from hgpart.grains import cnn_hypergraph
from hgpart.graph import ChannelGraph
from hgpart.metrics import communication_volume, part_loads
from hgpart.partition.annealing import Schedule, anneal
from hgpart.partition.divisions import blocks_of, division_of
from hgpart.partition.symmetry import symmetry
from hgpart.work import Work


@settings(deadline=None, max_examples=200)
@given(
    channel_graphs(max_layers=6, max_tasks=8),
    modellings,
    st.integers(1, 6),
    st.integers(0, 9),
    st.sampled_from([0, 20, 500]),
)
def test_volume_and_loads_are_those_of_the_metrics(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, k: int, seed: int, steps: int
) -> None:
    graph, work = graph_and_work
    model = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    if model.hypergraph.vertices == 0:
        return
    parts = np.random.default_rng(seed).integers(0, k, model.hypergraph.vertices).astype(np.int32)
    found = symmetry(graph, work, modelling)
    start = division_of(graph, found, modelling, model, parts)
    total = int(model.hypergraph.weights.sum())
    room = np.full(k, total // k + 1, dtype=np.int64)
    best = anneal(found, room, [(start, Schedule(seed, steps, 0.1, 1e-4, 2.0, 8))], threads=1)[0][0]
    blocks, block_parts = blocks_of(graph, work, found, modelling, best.division)
    loads = part_loads(blocks.hypergraph, block_parts, k)
    assert loads.sum() == total
    assert communication_volume(blocks.hypergraph, block_parts, k) == best.volume
    assert np.maximum(loads - room, 0).sum() == best.overload
