from __future__ import annotations

from channel_graphs import channel_graphs, modellings
from hypothesis import given
from hypothesis import strategies as st

from hgpart.hypergraph.blocks import divide, halve, layer_blocks, linked_layers, single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.work.figures import flops


@given(channel_graphs(), modellings())
def test_single_blocks_hold_one_task_and_one_channel(
    graph: ChannelGraph, modelling: Modelling
) -> None:
    blocks = single_blocks(graph, modelling)
    for layer, rows, columns in zip(graph.layers, blocks.rows, blocks.columns, strict=True):
        read = modelling.split_read(layer)
        one = layer.kind == "linear" and modelling.linear == "layer"
        assert rows.tolist() == ([0, layer.tasks] if one else list(range(layer.tasks + 1)))
        assert columns.tolist() == list(range(2 if read is None else len(read.channels) + 1))


@given(channel_graphs(), modellings(), st.integers(1, 60))
def test_divisions_are_blocks_of_the_graph(
    graph: ChannelGraph, modelling: Modelling, count: int
) -> None:
    """`cnn_hypergraph` accepts them: all tasks and channels, tied layers alike."""
    work = flops(graph)
    blocks = divide(graph, work, modelling, count)
    linked = linked_layers(graph)
    for at, layer in enumerate(graph.layers):
        assert linked[at] == linked[layer.tied_to] <= at
    for _ in range(2):
        for of in (blocks, layer_blocks(modelling.views(graph))):
            built = cnn_hypergraph(graph, work, of, modelling)
            weights = built.hypergraph.weights.sum()
            assert weights == sum(
                layer.macs * layer.tasks for layer in graph.layers if modelling.has_vertices(layer)
            )
        blocks = halve(blocks, modelling.views(graph))
