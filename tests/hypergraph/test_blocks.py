from __future__ import annotations

import pytest
import torch
from channel_graphs import channel_graphs, modellings
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import divide, halve, layer_blocks, linked_layers, single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.work.figures import flops


class Residual(nn.Module):
    """A stem, two residual blocks, a norm over a concatenation, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.one = nn.Conv2d(16, 16, 3, padding=1)
        self.two = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norm = nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        z = y + self.one(torch.relu(y))
        w = z + self.two(z)
        return self.head(torch.relu(self.norm(torch.cat([w, z], 1))).mean((2, 3)))


@pytest.fixture(scope="module")
def residual() -> ChannelGraph:
    model = Residual()
    return channel_graph(trace(model, example_inputs(model, (3, 8, 8))))


# ------------------------------------------------------------------ modelling


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"grain": "medium"}, "grain 'medium': accepted are coarse and fine"),
        ({"linear": "row"}, "linear 'row': accepted are neuron and layer"),
        ({"batch_size": 0}, "batch size 0: accepted is 1 to"),
        ({"batch_size": 2**20 + 1}, "batch size 1048577: accepted is 1 to 1048576"),
        ({"bytes_per_element": -4}, "bytes per element -4: accepted is 1 to"),
        ({"bytes_per_element": 0}, "bytes per element 0: accepted is 1 to"),
    ],
)
def test_options_are_checked_at_the_door(options: dict[str, object], says: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Modelling(**options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_has_vertices(residual: ChannelGraph) -> None:
    both = Modelling()
    assert all(both.has_vertices(layer) for layer in residual.layers)
    neither = Modelling(input_vertex=False, output_vertex=False)
    kinds = [layer.kind for layer in residual.layers if not neither.has_vertices(layer)]
    assert kinds == ["input", "output"]


def test_what_is_one_vertex(residual: ChannelGraph) -> None:
    def solid(modelling: Modelling) -> list[str]:
        return [layer.name for layer in residual.layers if modelling.is_solid(layer)]

    assert solid(Modelling()) == ["x", "output"]
    assert solid(Modelling(linear="layer")) == ["x", "head", "output"]


def test_what_fine_grain_splits(residual: ChannelGraph) -> None:
    def split(modelling: Modelling) -> dict[str, int]:
        return {
            layer.name: len(read.channels)
            for layer in residual.layers
            if (read := modelling.split_read(layer)) is not None
        }

    assert split(Modelling(grain="coarse")) == {}
    # a depthwise task and a norm read one channel: there is nothing to split
    assert split(Modelling(grain="fine")) == {"stem": 3, "one": 16, "head": 32}
    assert split(Modelling(grain="fine", linear="layer")) == {"stem": 3, "one": 16}


# ------------------------------------------------------------------ division


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
        for of in (blocks, layer_blocks(graph, modelling)):
            built = cnn_hypergraph(graph, work, of, modelling)
            weights = built.hypergraph.weights.sum()
            assert weights == sum(
                layer.macs * layer.tasks for layer in graph.layers if modelling.has_vertices(layer)
            )
        blocks = halve(blocks, graph, modelling)
