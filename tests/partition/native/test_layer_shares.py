"""Shares of layers: all of each layer, no part above its room, and parts of their own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import chain, channel_graphs, modellings

from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.native.layer_shares import layer_shares
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import Work


@given(
    channel_graphs(max_layers=6, max_tasks=8),
    modellings,
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.sampled_from([0, 0.05, 0.5]),
)
def test_every_layer_is_shared_out_within_the_rooms(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, speeds: list[int], slack: float
) -> None:
    graph, work = graph_and_work
    total = int(work.per_task @ [layer.tasks for layer in graph.layers])
    rooms = np.array(speeds) * (1 + slack) * total / sum(speeds)
    shares = layer_shares(Problem(graph, work, modelling, len(rooms)), rooms)
    loads = np.zeros(len(speeds))
    for at, layer in enumerate(graph.layers):
        if not modelling.has_vertices(layer) or layer.tied_to != at:
            assert shares.parts[at] == {}
            continue
        assert sum(shares.parts[at].values()) == pytest.approx(1)
        assert set(shares.tasks[at].tolist()) <= set(shares.parts[at])
        assert len(shares.tasks[at]) == max(1, layer.tasks)
        tied = [other for other, one in enumerate(graph.layers) if one.tied_to == at]
        load = sum(int(work.per_task[other]) * layer.tasks for other in tied)
        for part, share in shares.parts[at].items():
            loads[part] += share * load
    assert (loads <= rooms * (1 + 1e-6) + 1e-6).all()


def test_layers_that_fill_parts_have_them_alone() -> None:
    """Three layers are 1.9, 3.8 and 1.9 parts: 2, 4 and 2 of the 8 parts."""
    graph, work = chain([190, 380, 190], [190, 380, 190], [100, 100, 100])
    modelling = Modelling(grain="fine", input_vertex=False, output_vertex=False)
    shares = layer_shares(Problem(graph, work, modelling, 8), np.full(8, 100.0))
    assert [sorted(own) for own in shares.parts[1:4]] == [[0, 1], [2, 3, 4, 5], [6, 7]]
    for own in shares.parts[1:4]:
        assert list(own.values()) == pytest.approx([1 / len(own)] * len(own))


def test_a_light_layer_is_made_where_it_is_read() -> None:
    """Its maps cost more than the work that it takes from the parts of the next one."""
    graph, work = chain([64, 64], [20, 380], [1000, 1000])
    modelling = Modelling(grain="fine", input_vertex=False, output_vertex=False)
    shares = layer_shares(Problem(graph, work, modelling, 5), np.full(5, 100.0))
    assert set(shares.parts[1]) <= set(shares.parts[2])


def test_parts_without_room_take_no_memory() -> None:
    """A load over no room was so many parts as filled the memory of the machine."""
    graph, work = chain([4, 4], [4, 4], [1, 1])
    shares = layer_shares(Problem(graph, work, Modelling(grain="fine"), 3), np.zeros(3))
    assert all(sum(own.values()) == pytest.approx(1) for own in shares.parts[1:3])
