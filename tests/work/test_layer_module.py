from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import TracedModel, trace
from hgpart.work.layer_module import layer_module


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        return (self.second(x) + x).relu_()


class Concatenation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(9)
        self.pool = nn.MaxPool2d(2)
        self.second = nn.Conv2d(9, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, self.first(x)], 1)
        return self.second(self.pool(self.norm(y)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.squeeze = nn.Conv2d(8, 2, 1)
        self.excite = nn.Conv2d(2, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.silu(self.conv(x))
        gate = self.squeeze(x.mean((2, 3), keepdim=True)).relu()
        return x * self.excite(gate).sigmoid()


class Shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)
        self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.head = nn.Linear(8 * 36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.first(x).chunk(2, dim=1)
        x = torch.cat([left, self.second(right)], 1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2)
        return self.head(x.reshape(batch, -1))


class BatchFolded(nn.Module):
    """Computes with the batch size: as a shape, and as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels = x.shape[:2]
        x = self.conv(x.reshape(batch * channels, 1, *x.shape[2:])).relu()
        x = x.amax((2, 3)).view(batch, channels, -1).sum(1) / batch
        return self.last(x + torch.arange(4, device=x.device))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.conv(x).relu())


MODELS = [Residual, Concatenation, SqueezeExcite, Shuffle, BatchFolded, Shared]


def traced_with_graph(model: nn.Module) -> tuple[TracedModel, ChannelGraph]:
    traced = trace(model, torch.zeros(2, 3, 6, 6))
    return traced, channel_graph(traced)


class Recorder(fx.Interpreter):
    """Runs the whole graph and keeps the value of each node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n] = super().run_node(n)
        return self.values[n]


def values_of(model: nn.Module, traced: TracedModel, x: torch.Tensor) -> dict[fx.Node, Any]:
    own = {**model.state_dict(keep_vars=False)}
    names = {**traced.parameters, **traced.buffers}
    placeholders = [n for n in traced.graph_module.graph.nodes if n.op == "placeholder"]
    recorder = Recorder(traced.graph_module)
    recorder.run(*(own[names[n.name]].clone() if n.name in names else x for n in placeholders))
    return recorder.values


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", [2, 5])
@pytest.mark.parametrize("kind", MODELS)
def test_layers_compute_what_the_model_computes(kind: type[nn.Module], batch: int) -> None:
    torch.manual_seed(0)
    model = kind()
    traced, graph = traced_with_graph(model)
    x = torch.rand(batch, 3, 6, 6)
    values = values_of(model, traced, x)
    last = None
    for layer in graph.layers:
        if layer.operators:
            alone = layer_module(traced, graph, layer, batch)
            results = alone.module(*(values[node] for node in alone.operands))
            assert len(results) == len(alone.results) > 0
            for result, node in zip(results, alone.results, strict=True):
                torch.testing.assert_close(result, values[node])
            last = results[0]
    torch.testing.assert_close(last, model(x))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", MODELS)
def test_layers_hold_each_operator_once_and_nothing_of_other_layers(kind: type[nn.Module]) -> None:
    traced, graph = traced_with_graph(kind())
    everywhere = {name for layer in graph.layers for name in layer.operators}
    for layer in graph.layers:
        if layer.operators:
            alone = layer_module(traced, graph, layer, 2)
            calls = [n.name for n in alone.module.graph.nodes if n.op == "call_function"]
            assert [name for name in calls if name in everywhere] == list(layer.operators)


def test_a_layer_takes_no_tensor_for_the_batch_size_alone() -> None:
    traced, graph = traced_with_graph(Shuffle())
    head = next(layer for layer in graph.layers if layer.kind == "linear")
    alone = layer_module(traced, graph, head, 4)
    assert "x" not in [node.name for node in alone.operands]
    assert not any("sym_size" in str(node.target) for node in alone.module.graph.nodes)


def test_new_batch_norm_statistics_are_no_result() -> None:
    traced, graph = traced_with_graph(Residual())
    alone = layer_module(traced, graph, graph.layers[1], 4)
    assert [node.meta["val"].dim() for node in alone.results] == [4]


def test_tensors_that_operators_create_are_on_the_device_asked_for() -> None:
    with torch.device("meta"):
        model = BatchFolded()
    traced = trace(model, torch.zeros(2, 3, 6, 6, device="meta"))
    graph = channel_graph(traced)
    devices = {
        node.kwargs["device"]
        for layer in graph.layers
        if layer.operators
        for node in layer_module(traced, graph, layer, 2, "cpu").module.graph.nodes
        if "device" in node.kwargs
    }
    assert devices == {torch.device("cpu")}
