from __future__ import annotations

import pytest
import torch
from channel_graphs import channel_graphs, modellings
from hypothesis import given
from torch import nn

from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.modelling import Modelling, by_vertices
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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"grain": "medium"}, "grain 'medium': accepted are coarse and fine"),
        ({"linear": "row"}, "linear 'row': accepted are neuron and layer"),
        ({"norms": "sync"}, "norms 'sync': accepted are slice and batch"),
        ({"batch_size": 0}, "batch size 0: accepted is 1 to"),
        ({"batch_size": 2**20 + 1}, "batch size 1048577: accepted is 1 to 1048576"),
        ({"bytes_per_element": -4}, "bytes per element -4: accepted is 1 to"),
        ({"bytes_per_element": 1.5}, "bytes per element 1.5: accepted is a whole number, 1 to 104"),
        ({"batch_size": 2.5}, "batch size 2.5: accepted is a whole number"),
        ({"batch_size": True}, "batch size True: accepted is a whole number"),
        ({"bytes_per_element": 0}, "bytes per element 0: accepted is 1 to"),
    ],
)
def test_options_are_checked_at_the_door(options: dict[str, object], says: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Modelling(**options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_has_vertices(residual: ChannelGraph) -> None:
    assert all(view.exists for view in Modelling().views(residual))
    neither = Modelling(input_vertex=False, output_vertex=False)
    kinds = [view.layer.kind for view in neither.views(residual) if not view.exists]
    assert kinds == ["input", "output"]


def test_what_is_one_vertex(residual: ChannelGraph) -> None:
    def solid(modelling: Modelling) -> list[str]:
        return [view.layer.name for view in modelling.views(residual) if view.is_solid]

    assert solid(Modelling()) == ["x", "output"]
    assert solid(Modelling(linear="layer")) == ["x", "head", "output"]


def test_what_fine_grain_splits(residual: ChannelGraph) -> None:
    def split(modelling: Modelling) -> dict[str, int]:
        views = modelling.views(residual)
        return {view.layer.name: view.columns for view in views if view.split is not None}

    assert split(Modelling(grain="coarse")) == {}
    # a depthwise task and a norm read one channel: there is nothing to split
    assert split(Modelling(grain="fine")) == {"stem": 3, "one": 16, "head": 32}
    assert split(Modelling(grain="fine", linear="layer")) == {"stem": 3, "one": 16}


@given(channel_graphs(), modellings())
def test_views_are_of_the_full_hypergraph(graph: ChannelGraph, modelling: Modelling) -> None:
    model = cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)
    layers, rows = model.vertex_layers.tolist(), model.vertex_rows.tolist()
    for at, (view, layer) in enumerate(zip(model.views, graph.layers, strict=True)):
        assert view.layer is layer
        assert view.is_first == (layer.tied_to == at)
        assert layers.count(at) == (view.count if view.is_own else 0)
        own = {row for of, row in zip(layers, rows, strict=True) if of == at}
        assert len(own) == (view.rows if view.is_own else 0)
        assert view.rows * view.tasks_per_row == layer.tasks
        size, batch = modelling.bytes_per_element, modelling.batch_size
        assert view.map_bytes == graph.map_bytes(layer, batch, size)
        assert view.partial_bytes == batch * layer.partial_elements * view.element_bytes
    together = by_vertices(model.views)
    assert sorted(view.at for tied in together.values() for view in tied) == [
        at for at, layout in enumerate(model.layouts) if layout is not None
    ]
    assert all(view.first == first for first, tied in together.items() for view in tied)
