"""Channels that are joined, split, shuffled, padded and flattened between layers."""

from __future__ import annotations

from collections.abc import Callable
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


def test_concatenation_is_read_in_order() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.c(torch.cat([net.b(x), net.a(x)], 1)),
            a=nn.Conv2d(4, 3, 1),
            b=nn.Conv2d(4, 1, 1),
            c=nn.Conv2d(4, 4, 3, groups=2),
        )
    )
    first, second = maps("b", 0) | maps("a", 0), maps("a", 1, 2)
    assert needs(graph, "c") == [first, first, second, second]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "halves",
    [
        lambda y: y.chunk(2, dim=1),
        pytest.param(lambda y: y.split(3, dim=1), marks=pytest.mark.full),
        pytest.param(lambda y: y.split([3, 3], dim=1), marks=pytest.mark.full),
        lambda y: (y[:, :3], y[:, 3:]),
        lambda y: y.unflatten(1, (2, 3)).unbind(1),
        lambda y: (y.narrow(1, 0, 3), y.roll(3, 1).narrow(1, 0, 3)),
    ],
)
def test_split_channels_go_their_own_ways(halves: Callable[[torch.Tensor], Any]) -> None:
    def forward(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = halves(net.a(x))
        return net.b(low), net.c(high)

    graph = modelled(Net(forward, a=nn.Conv2d(4, 6, 1), b=nn.Conv2d(3, 1, 1), c=nn.Conv2d(3, 1, 1)))
    assert kinds(graph) == {"a": "dense", "b": "dense", "c": "dense"}
    assert needs(graph, "b") == [maps("a", 0, 1, 2)]
    assert needs(graph, "c") == [maps("a", 3, 4, 5)]


def test_channel_shuffle_between_grouped_convolutions() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.a(x)
        batch, width, high, wide = y.shape
        y = y.view(batch, 2, width // 2, high, wide).transpose(1, 2).reshape(y.shape)
        return net.b(F.relu(y))

    graph = modelled(Net(forward, a=nn.Conv2d(4, 6, 1, groups=2), b=nn.Conv2d(6, 3, 1, groups=3)))
    assert kinds(graph) == {"a": "grouped", "b": "grouped"}
    assert needs(graph, "a") == [maps("x", 0, 1)] * 3 + [maps("x", 2, 3)] * 3
    assert operators(graph, "a") == ("conv2d", "relu")
    assert needs(graph, "b") == [maps("a", 0, 3), maps("a", 1, 4), maps("a", 2, 5)]


def test_flatten_before_a_linear_layer() -> None:
    graph = modelled(
        nn.Sequential(nn.Conv2d(4, 5, 2), nn.Flatten(), nn.Linear(245, 3), nn.Linear(3, 2))
    )
    assert kinds(graph) == {"0": "dense", "2": "linear", "3": "linear"}
    read = layer_of(graph, "2").reads[0]
    assert read.channels.tolist() == [1 * 4 + channel for channel in range(5)]
    assert read.sizes.tolist() == [49] * 5
    assert layer_of(graph, "2").macs == 245


def test_relu_after_flatten_joins_the_convolution() -> None:
    graph = modelled(nn.Sequential(nn.Conv2d(4, 5, 2), nn.Flatten(), nn.ReLU(), nn.Linear(245, 3)))
    assert kinds(graph) == {"0": "dense", "3": "linear"}
    assert layer_of(graph, "0").map_elements == 49


def test_pixel_shuffle() -> None:
    graph = modelled(
        nn.Sequential(
            nn.Conv2d(4, 8, 1), nn.PixelShuffle(2), nn.ReLU(), nn.Conv2d(2, 2, 1, groups=2)
        )
    )
    assert operators(graph, "0") == ("conv2d", "relu")
    # channels of the shuffled map come from several tasks: the grouped convolution is kept whole
    assert kinds(graph) == {"0": "dense", "3": "whole"}


def test_zero_channels_are_holes() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.b(F.pad(net.a(x), (0, 0, 0, 0, 1, 2))),
            a=nn.Conv2d(4, 3, 1),
            b=nn.Conv2d(6, 6, 1, groups=2),
        )
    )
    read = layer_of(graph, "b").reads[0]
    first = int(graph.first_channel[1])
    assert read.channels.tolist() == [-1, first, first + 1, first + 2, -1, -1]
    assert needs(graph, "b") == [maps("a", 0, 1)] * 3 + [maps("a", 2)] * 3


def test_zeros_added_to_a_shortcut() -> None:
    """ResNet's option A: the shortcut's missing channels are constants."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        return F.relu(net.a(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)))

    graph = modelled(Net(forward, a=nn.Conv2d(4, 8, 3, stride=2, padding=1)))
    everything = maps("x", 0, 1, 2, 3)
    assert kinds(graph) == {"a": "dense"}
    assert needs(graph, "a") == [everything] * 8
    expected = [-1, -1, 0, 1, 2, 3, -1, -1]
    assert layer_of(graph, "a").reads[1].channels.tolist() == expected


@pytest.mark.few(2)
@pytest.mark.parametrize("follows", [torch.sigmoid, F.relu, F.hardtanh])
@pytest.mark.parametrize("read_twice", [False, True])
def test_what_is_made_of_padding_alone_is_made_by_one_task(
    follows: Callable[[torch.Tensor], torch.Tensor], read_twice: bool
) -> None:
    """No task has the padded channels: nobody computed their sigmoid."""

    def forward(net: Any, x: torch.Tensor) -> list[torch.Tensor]:
        y = net.a(x)
        return [follows(F.pad(y, (0, 0, 0, 0, 1, 2))), *[y] * read_twice]

    graph = modelled(Net(forward, a=nn.Conv2d(4, 3, 1)))
    assert list(kinds(graph).values()) == ["dense", "whole"]
    whole = graph.layers[2]
    assert (whole.tasks, whole.channels, whole.map_elements) == (1, 6, 6 * 64)
    assert needs(graph, whole.name) == [maps("a", 0, 1, 2)]
    assert all((ids >= 0).all() for name, ids in graph.ids.items() if name in whole.operators)


PERMUTATIONS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "buffer": lambda net, y: y[:, net.p],
    "index_select": lambda net, y: y.index_select(1, net.p),
    "list": lambda net, y: y[:, [2, 0, 3, 1]],
    "computed": lambda net, y: y[:, torch.arange(3, -1, -1).roll(2).view(2, 2).t().flatten()],
    "of pixels": lambda net, y: y.permute(0, 2, 3, 1)[..., net.p].permute(0, 3, 1, 2),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("way", PERMUTATIONS)
def test_constant_permutation_of_channels(way: str) -> None:
    """An index was a whole task, though its values are known before anything runs."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        return net.b(PERMUTATIONS[way](net, net.a(x)))

    net = Net(
        forward,
        a=nn.Conv2d(4, 4, 1),
        b=nn.Conv2d(4, 4, 1, groups=2),
        p=torch.tensor([2, 0, 3, 1]),
    )
    order = PERMUTATIONS[way](net, torch.arange(4).view(1, 4, 1, 1)).flatten().tolist()
    graph = modelled(net)
    assert kinds(graph) == {"a": "dense", "b": "grouped"}
    assert needs(graph, "b") == [maps("a", *order[:2])] * 2 + [maps("a", *order[2:])] * 2


def test_index_on_the_meta_device_is_kept_whole() -> None:
    model = Net(lambda net, x: net.a(x)[:, net.p], a=nn.Conv2d(4, 4, 1), p=torch.tensor([1, 0]))
    graph = channel_graph(trace(model.to("meta"), torch.zeros(IMAGE, device="meta")))
    assert list(kinds(graph).values()) == ["dense", "whole"]


def test_random_permutation_is_kept_whole() -> None:
    """It is another one each time: what it was while tracing says nothing."""
    graph = modelled(Net(lambda net, x: net.a(x)[:, torch.randperm(3)], a=nn.Conv2d(4, 3, 1)))
    assert list(kinds(graph).values()) == ["dense", "whole"]
