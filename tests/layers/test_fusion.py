"""Which operators join the layer in front of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from proven_graphs import (
    Net,
    kinds,
    layer_of,
    maps,
    modelled,
    needs,
    operators,
    unnumbered,
)
from torch import nn


def test_residual_add_joins_the_last_producer() -> None:
    graph = modelled(
        Net(
            lambda net, x: F.relu(net.a(x) + net.b(x)),
            a=nn.Conv2d(4, 3, 1),
            b=nn.Conv2d(4, 3, 1),
        )
    )
    assert kinds(graph) == {"a": "dense", "b": "dense"}
    assert operators(graph, "a") == ("conv2d",)
    assert operators(graph, "b") == ("conv2d", "add", "relu")
    assert needs(graph, "b") == [maps("x", 0, 1, 2, 3) | maps("a", task) for task in range(3)]
    assert [read.kind for read in layer_of(graph, "b").reads] == ["all", "same index"]


def test_residual_add_of_the_input_joins_the_convolution() -> None:
    graph = modelled(Net(lambda net, x: x + net.a(x), a=nn.Conv2d(4, 4, 3, padding=1)))
    assert kinds(graph) == {"a": "dense"}
    assert len(layer_of(graph, "a").reads) == 2


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("compute", "joins"),
    [
        (lambda y: y * y, True),
        (lambda y: y + y.clone(), True),
        (lambda y: torch.addcmul(y, y, y), True),
        (lambda y: y + F.pad(y[:, :3], (0, 0, 0, 0, 0, 1)), True),
        (lambda y: y + y.flip(1), False),
        (lambda y: y * torch.cat([y[:, :2], y[:, :2]], 1), False),
    ],
)
def test_a_map_that_several_operands_are(compute: Callable[..., Any], joins: bool) -> None:
    # What joined read its own layer: a square behind a convolution could not be placed, and no
    # task can read what another task of its layer makes.
    graph = modelled(Net(lambda net, x: compute(net.a(x)), a=nn.Conv2d(4, 4, 1)))
    assert [*kinds(graph).values()] == ["dense"] if joins else ["dense", "same index"]
    assert all(at not in graph.sources(layer) for at, layer in enumerate(graph.layers))


def test_the_only_task_of_a_layer_squares_what_it_made() -> None:
    graph = modelled(Net(lambda net, x: (y := x.sort(1).values) * y))
    assert kinds(graph) == {"sort": "whole"}
    assert [len(read.channels) for read in layer_of(graph, "sort").reads] == [4]


def test_map_with_another_reader_keeps_what_follows_in_its_own_layer() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.b(F.relu(y := net.a(x))) + y,
            a=nn.Conv2d(4, 3, 1),
            b=nn.Conv2d(3, 3, 1),
        )
    )
    assert kinds(graph) == {"a": "dense", "relu": "same index", "b": "dense"}
    assert needs(graph, "relu") == [maps("a", task) for task in range(3)]
    assert needs(graph, "b") == [maps("relu", 0, 1, 2) | maps("a", task) for task in range(3)]


def test_squeeze_excite_gate_does_not_join_the_convolution() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.conv(x)
        gate = torch.sigmoid(net.up(F.relu(net.down(F.adaptive_avg_pool2d(y, 1)))))
        return y * gate

    graph = modelled(
        Net(forward, conv=nn.Conv2d(4, 6, 3), down=nn.Conv2d(6, 2, 1), up=nn.Conv2d(2, 6, 1))
    )
    assert kinds(graph) == {
        "conv": "dense",
        "adaptive_avg_pool2d": "same index",
        "down": "dense",
        "up": "dense",
    }
    assert operators(graph, "up") == ("conv2d", "sigmoid", "mul")
    assert layer_of(graph, "up").map_elements == 36
    assert layer_of(graph, "up").partial_elements == 1
    expected = [maps("down", 0, 1) | maps("conv", task) for task in range(6)]
    assert needs(graph, "up") == expected


def test_batch_norm_and_relu_over_a_concatenation_are_a_layer() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.b(F.relu(net.norm(torch.cat([x, net.a(x)], 1)))),
            a=nn.Conv2d(4, 2, 1),
            norm=nn.BatchNorm2d(6),
            b=nn.Conv2d(6, 3, 1),
        )
    )
    assert kinds(graph) == {"a": "dense", "norm": "same index", "b": "dense"}
    norm = layer_of(graph, "norm")
    assert norm.tasks == 6
    assert norm.parameters == 12
    assert needs(graph, "norm") == [
        *[maps("x", channel) for channel in range(4)],
        *[maps("a", channel) for channel in range(2)],
    ]


def test_what_follows_a_convolution_travels_with_it() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Conv2d(6, 2, 3),
    )
    graph = modelled(model)
    assert kinds(graph) == {"0": "dense", "5": "dense"}
    first = layer_of(graph, "0")
    assert (first.map_elements, first.partial_elements) == (16, 64)
    assert first.parameters == sum(p.numel() for p in model[:2].parameters())
    assert first.parameter_names == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert first.macs == 64 * 4 * 9


def test_an_evaluated_model_fuses_alike() -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5))
    graph = modelled(model.eval())
    assert kinds(graph) == {"0": "dense"}
    assert layer_of(graph, "0").parameters == 4 * 6 * 9 + 6 + 12


def test_two_results_of_which_one_continues_the_other() -> None:
    """The first map travels to the output too, so what follows may not replace it."""
    graph = modelled(
        Net(lambda net, x: ((y := net.a(x)).flatten(1), F.relu(y)), a=nn.Conv2d(4, 3, 1))
    )
    assert kinds(graph) == {"a": "dense", "relu": "same index"}
    assert needs(graph, "output") == [maps("a", 0, 1, 2) | maps("relu", 0, 1, 2)]


def test_in_place_operators() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.a(x)
        y.relu_()
        y += net.b(x)
        y.mul_(2.0).clamp_(0, 100)
        return y

    graph = modelled(Net(forward, a=nn.Conv2d(4, 3, 1), b=nn.Conv2d(4, 3, 1)))
    assert kinds(graph) == {"a": "dense", "b": "dense"}
    assert operators(graph, "a") == ("conv2d", "relu")
    assert needs(graph, "b") == [maps("x", 0, 1, 2, 3) | maps("a", task) for task in range(3)]


def test_in_place_operators_on_some_channels() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.a(x)
        y[:, :2].mul_(3.0)
        y[:, 3] = 0.0
        return net.b(y)

    graph = modelled(Net(forward, a=nn.Conv2d(4, 5, 1), b=nn.Conv2d(5, 2, 1)))
    assert list(kinds(graph).values()) == ["dense", "same index", "dense"]
    scaled = unnumbered(graph.layers[2].name)
    assert needs(graph, "b") == [maps(scaled, 0, 1) | maps("a", 2, 4)] * 2


def test_add_joins_a_producer_whose_channels_come_in_another_order() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.a(x) + net.b(x).roll(1, 1),
            a=nn.Conv2d(4, 3, 1),
            b=nn.Conv2d(4, 3, 1),
        )
    )
    assert operators(graph, "b") == ("conv2d", "add")
    everything = maps("x", 0, 1, 2, 3)
    assert needs(graph, "b") == [everything | maps("a", channel) for channel in (1, 2, 0)]
