from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from hgpart.layers.channel_graph import ChannelGraph, OwnParameter, Read
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.zoo import load_model


class Network(nn.Module):
    """Residual add, concatenation, grouped convolution, linear layer."""

    def __init__(self, width: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.block = nn.Conv2d(width, width, 3, padding=1)
        self.grouped = nn.Conv2d(2 * width, 6, 1, groups=groups)
        self.head = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.stem(x))
        z = y + self.block(y)
        return self.head(torch.relu(self.grouped(torch.cat([z, y], 1))).mean((2, 3)))


class Function(nn.Module):
    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x)


def graph_of(model: nn.Module, *shape: int) -> ChannelGraph:
    return channel_graph(trace(model, example_inputs(model, shape or (3, 8, 8))))


@cache
def of_network() -> ChannelGraph:
    return graph_of(Network())


def test_networkx_view() -> None:
    graph = of_network()
    view = graph.to_networkx()
    assert list(view) == [layer.name for layer in graph.layers]
    edges = {(source, reader): data["channels"] for source, reader, data in view.edges(data=True)}
    assert edges == {
        ("x", "stem"): 3,
        ("stem", "block"): 4,  # as its input and as the shortcut, but the same 4 maps
        ("block", "grouped"): 4,
        ("stem", "grouped"): 4,
        ("grouped", "head"): 6,
        ("head", "output"): 5,
    }
    block = graph.layers[2]
    assert view.nodes["block"] == {
        "kind": "dense",
        "operators": block.operators,
        "tasks": 4,
        "map_elements": 64,
        "macs": 4 * 64 * 4 * 9,
        "parameters": 4 * 4 * 9 + 4,
    }


def test_networkx_view_of_a_layer_that_reads_constants() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(6, 6, 1, groups=6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(nn.functional.pad(x, (0, 0, 0, 0, 1, 2)))

    view = graph_of(Padded()).to_networkx()
    assert view.edges["x", "conv"]["channels"] == 3


def test_sources() -> None:
    graph = of_network()
    assert [graph.sources(layer) for layer in graph.layers] == [(), (0,), (1,), (1, 2), (3,), (4,)]


def test_layer_of_channel() -> None:
    graph = of_network()
    numbers = np.arange(graph.first_channel[-1])
    expected = [at for at, layer in enumerate(graph.layers) for _ in range(layer.channels)]
    assert graph.layer_of_channel(numbers).tolist() == expected


def test_bytes_of_a_map() -> None:
    graph = of_network()
    stem = graph.layers[1]
    assert graph.map_bytes(stem, 32, None) == 64 * 32 * 4
    assert graph.map_bytes(stem, 1, 1) == 64
    parameter = dataclasses.replace(stem, kind="parameter")
    assert graph.map_bytes(parameter, 32, None) == 64 * 4


@pytest.mark.parametrize(
    ("channels", "groups", "kind"),
    [(6, 1, "all"), (6, 6, "same index"), (6, 3, "group"), (1, 1, "all")],
)
def test_kind_of_a_read(channels: int, groups: int, kind: str) -> None:
    read = Read(np.arange(channels), np.ones(channels, np.int64), groups)
    assert read.kind == kind


# ------------------------------------------------------------------ fingerprint


def test_fingerprint_ignores_weights() -> None:
    torch.manual_seed(1)
    one = graph_of(Network())
    torch.manual_seed(2)
    two = graph_of(Network())
    assert one.fingerprint == two.fingerprint
    assert len(one.fingerprint) == 16


def test_fingerprint_ignores_the_device() -> None:
    model, shape = load_model("lenet5", device="meta")
    meta = graph_of(model, *shape)
    model, shape = load_model("lenet5", seed=3)
    assert graph_of(model, *shape).fingerprint == meta.fingerprint


@pytest.mark.full
def test_fingerprint_tells_models_apart() -> None:
    class Reversed(Network):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.stem(x))
            z = y + self.block(y)
            return self.head(torch.relu(self.grouped(torch.cat([y, z], 1))).mean((2, 3)))

    class Renamed(Network):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.stem
            del self.stem

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.__dict__["stem"] = self.first
            return super().forward(x)

    graphs = [
        graph_of(Network()),
        graph_of(Network(width=6)),
        graph_of(Network(groups=1)),
        graph_of(Network(), 3, 9, 9),
        graph_of(Network().double()),
        graph_of(Reversed()),
        graph_of(Renamed()),
    ]
    assert len({graph.fingerprint for graph in graphs}) == len(graphs)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(nn.ReLU(), nn.Tanh(), marks=pytest.mark.full),
        (nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=2, dilation=2)),
        pytest.param(nn.LeakyReLU(0.1), nn.LeakyReLU(0.2), marks=pytest.mark.full),
        (nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Sequential(nn.Tanh(), nn.ReLU())),
        (Function(lambda x: x - x.flip(2)), Function(lambda x: x.flip(2) - x)),
        (Function(lambda x: x.transpose(2, 3)), Function(lambda x: x)),
        pytest.param(
            Function(lambda x: x.flip(3)), Function(lambda x: x.flip(2)), marks=pytest.mark.full
        ),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)), nn.Conv2d(4, 4, 1)),
    ],
)
def test_fingerprint_tells_operators_and_their_numbers_apart(
    one: nn.Module, other: nn.Module
) -> None:
    """Channels, sizes and work are equal: plans and profiles of one were accepted for the other."""

    def model(middle: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), middle, nn.Flatten(), nn.Linear(144, 2))

    assert graph_of(model(one)).fingerprint != graph_of(model(other)).fingerprint


def test_fingerprint_tells_parameters_apart() -> None:
    class Other(Network):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.shift = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.shift.sum()

    class Another(Other):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Network.forward(self, x) + self.scale.sum()

    assert graph_of(Other()).fingerprint != graph_of(Another()).fingerprint


def test_operations_name_operators_numbers_parameters_and_layers() -> None:
    graph = of_network()
    assert graph.layers[1].operations == (
        "aten.conv2d.default(x, stem.weight, stem.bias, [1, 1], [1, 1])",
        "aten.relu.default(%0)",
    )
    assert graph.layers[2].operations == (
        "aten.conv2d.default(stem, block.weight, block.bias, [1, 1], [1, 1])",
        "aten.add.Tensor(stem, %0)",
    )
    assert graph.layers[3].operations[0] == "aten.cat.default([block, stem], 1)"
    assert graph.layers[-1].operations == ()


def test_operations_do_not_depend_on_the_batch_or_the_device() -> None:
    class Reshaping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(192, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            noise = torch.zeros(x.shape[0], 192, device=x.device)
            return self.head(x.reshape(x.shape[0], 192) + noise) * x.shape[0]

    def operations(batch: int, device: str) -> list[tuple[str, ...]]:
        model = Reshaping().to(device)
        graph = channel_graph(trace(model, torch.zeros(batch, 3, 8, 8, device=device)))
        return [layer.operations for layer in graph.layers]

    assert operations(2, "cpu") == operations(7, "cpu") == operations(2, "meta")
    assert any("[batch, 192]" in text for layer in operations(2, "cpu") for text in layer)


def test_same_model_same_graph() -> None:
    model, shape = load_model("lenet5", device="meta")
    one, two = (channel_graph(trace(model, example_inputs(model, shape))) for _ in range(2))
    assert one.fingerprint == two.fingerprint
    assert [layer.operators for layer in one.layers] == [layer.operators for layer in two.layers]
    assert one.ids.keys() == two.ids.keys()
    assert all(torch.equal(one.ids[name], two.ids[name]) for name in one.ids)


def test_fields_of_a_layer_are_all_in_the_fingerprint() -> None:
    """What partitions depend on: changing any of these must not go unseen."""
    graph = of_network()
    seen = {graph.fingerprint}
    changes = {
        "name": "other",
        "kind": "grouped",
        "map_elements": 1,
        "partial_elements": 1,
        "bytes_per_element": 2,
        "macs": 1,
        "operations": ("other",),
        "own_parameters": (OwnParameter("weight", 1, 4),),
        "weights": 1,
        "parameter_names": ("other",),
        "tied_to": 0,
        "reads": (),
    }
    for name, value in changes.items():
        layers = list(graph.layers)
        layers[2] = dataclasses.replace(layers[2], **{name: value})
        seen.add(ChannelGraph(tuple(layers), graph.ids).fingerprint)
    assert len(seen) == 1 + len(changes)
