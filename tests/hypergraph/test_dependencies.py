"""The shares of the layers and what they take of each other, against all pins one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import channel_graphs, modellings

from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.dependencies import dependencies
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.work.figures import Work


@given(channel_graphs(), modellings, st.integers(1, 3), st.randoms(use_true_random=False))
def test_an_edge_for_each_share_that_takes_of_another(
    worked: tuple[ChannelGraph, Work], base: Modelling, slices: int, random: Random
) -> None:
    graph, given_work = worked
    modelling = replace(base, batch_size=slices, slices=slices)
    model = cnn_hypergraph(graph, given_work, single_blocks(graph, modelling), modelling)
    parts = np.array([random.randrange(3) for _ in range(model.vertices)], dtype=np.int32)
    shares = [
        (graph.layers[layer].name, part)
        for layer, part in zip(model.vertex_layers.tolist(), parts.tolist(), strict=True)
    ]
    nets, nbytes = model.map_nets.written_out(model.weights), Counter()
    tasks, work = Counter(), Counter()
    for net, cost in enumerate(nets.costs.tolist()):
        root, *others = nets.pins[nets.pointers[net] : nets.pointers[net + 1]].tolist()
        for other in {shares[other] for other in others} - {shares[root]}:
            ends = (shares[root], other)
            nbytes[ends[::-1] if nets.gathers[net] else ends] += cost
    vertices = zip(shares, model.vertex_layers, model.vertex_columns, model.weights, strict=True)
    for share, layer, column, weight in vertices:
        tasks[share] += model.views[layer].tasks_per_row * int(column < 0)
        work[share] += int(weight)
    found = dependencies(model, parts)
    assert dict(found.edges) == {ends: {"bytes": count} for ends, count in nbytes.items()}
    assert set(found) == set(shares)
    for (name, part), facts in found.nodes(data=True):
        assert facts["part"] == part
        assert facts["tasks"] == tasks[name, part]
        assert facts["work"] == work[name, part]
