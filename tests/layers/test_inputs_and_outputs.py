"""Inputs, outputs, and what the batch of the example has to do with a graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from proven_graphs import (
    IMAGE,
    Net,
    kinds,
    layer_of,
    maps,
    modelled,
    needs,
    operators,
)
from torch import nn

from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import trace


@pytest.mark.parametrize("first", [True, False])
def test_residual_add_of_a_channels_last_input(first: bool) -> None:
    """An input is one task: its rows meeting every channel are no crossing of tasks."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.permute(0, 3, 1, 2)
        return F.relu(y + net.a(y) if first else net.a(y) + y).permute(0, 2, 3, 1)

    graph = modelled(Net(forward, a=nn.Conv2d(3, 3, 1)), (2, 6, 5, 3))
    assert kinds(graph) == {"a": "dense"}
    assert operators(graph, "a") == ("conv2d", "add", "relu")
    assert needs(graph, "a") == [maps("x", *range(6))] * 3


def test_residual_add_of_the_frames_of_a_video() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        frames = x.flatten(0, 1)
        return frames + net.a(frames)

    graph = modelled(Net(forward, a=nn.Conv2d(3, 3, 1)), (2, 4, 3, 6, 6))
    assert kinds(graph) == {"a": "dense"}
    assert needs(graph, "a") == [maps("x", *range(4))] * 3


def test_several_inputs_and_outputs() -> None:
    def forward(net: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": net.a(x) + net.b(y), "second": net.c(y)}

    graph = modelled(
        Net(forward, a=nn.Conv2d(4, 3, 1), b=nn.Conv2d(2, 3, 1), c=nn.Conv2d(2, 2, 1)),
        IMAGE,
        (2, 2, 8, 8),
    )
    assert [layer.kind for layer in graph.layers[:2]] == ["input", "input"]
    assert [layer.map_elements for layer in graph.layers[:2]] == [256, 128]
    assert needs(graph, "output") == [maps("b", 0, 1, 2) | maps("c", 0, 1)]


def test_unused_input_has_no_reader() -> None:
    graph = modelled(Net(lambda net, x, y: net.a(x), a=nn.Conv2d(4, 3, 1)), IMAGE, (2, 7))
    assert [layer.kind for layer in graph.layers] == ["input", "input", "dense", "output"]
    assert graph.sources(graph.layers[2]) == (0,)


def test_input_that_is_a_result() -> None:
    graph = modelled(Net(lambda net, x: (x, net.a(x)), a=nn.Conv2d(4, 3, 1)))
    assert needs(graph, "output") == [maps("x", 0, 1, 2, 3) | maps("a", 0, 1, 2)]


def test_the_same_result_twice() -> None:
    graph = modelled(Net(lambda net, x: (y := F.relu(net.a(x)), y), a=nn.Conv2d(4, 3, 1)))
    assert kinds(graph) == {"a": "dense"}


def test_model_without_parameters() -> None:
    graph = modelled(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    assert kinds(graph) == {"0": "same index"}
    assert layer_of(graph, "0").tasks == 4
    assert layer_of(graph, "0").map_elements == 16


def test_what_does_not_reach_a_result_is_left_out() -> None:
    model = Net(lambda net, x: (net.b(x), net.a(x))[1], a=nn.Conv2d(4, 3, 1), b=nn.Conv2d(4, 3, 1))
    graph = channel_graph(trace(model, torch.zeros(IMAGE)))
    assert kinds(graph) == {"a": "dense"}


def test_model_that_fixes_its_batch() -> None:
    graph = modelled(
        Net(lambda net, x: net.b(net.a(x).view(2, -1)), a=nn.Conv2d(4, 3, 1), b=nn.Linear(192, 2))
    )
    assert layer_of(graph, "a").macs == 64 * 4
    assert layer_of(graph, "b").map_elements == 1


def test_elements_are_as_large_as_their_type() -> None:
    model = nn.Sequential(nn.Conv2d(4, 3, 1)).double()
    graph = channel_graph(trace(model, torch.zeros(IMAGE, dtype=torch.float64)))
    assert [layer.bytes_per_element for layer in graph.layers[:2]] == [8, 8]
    mixed = Net(lambda net, x: net.a(x).half(), a=nn.Conv2d(4, 3, 1))
    graph = channel_graph(trace(mixed, torch.zeros(IMAGE)))
    assert layer_of(graph, "a").bytes_per_element == 2
    assert graph.layers[0].bytes_per_element == 4


def test_the_batch_of_the_example_does_not_matter() -> None:
    model = nn.Sequential(nn.Conv2d(4, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(192, 2))
    prints = {
        channel_graph(trace(model, torch.zeros(batch, 4, 8, 8))).fingerprint for batch in (2, 3, 8)
    }
    assert len(prints) == 1
