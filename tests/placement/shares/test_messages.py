"""Which parameters travel together."""

from __future__ import annotations

import math
from itertools import groupby

import pytest
import torch
from torch import nn

from hgpart import channel_graph, trace
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.placement.shares import messages

Shapes = dict[str, tuple[int, ...]]


class Tied(nn.Module):
    """Its fifth layer has the first one's weight, and a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(7)))
        self.layers[4].weight = self.layers[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def test_a_tied_layer_opens_no_bucket_of_an_earlier_one(monkeypatch) -> None:
    """Its bias opened one of the first layer's name, with which layers behind went, too."""
    model = Tied()
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
    graph = channel_graph(trace(model, torch.empty(2, 4, 4, 4)))
    monkeypatch.setattr(messages, "SMALL", 100)
    monkeypatch.setattr(messages, "BUCKET", 8)
    found = messages.buckets_of(graph, shapes, shapes)
    of_bias = [found[f"layers.{at}.bias"] for at in range(7)]
    assert of_bias[4] == of_bias[0]  # as the layers are one
    assert [of_bias.count(bucket) for bucket in dict.fromkeys(of_bias)] == [3, 2, 2]
    assert of_bias[5] == of_bias[6] == "layers.5"


@pytest.fixture(scope="module")
def net() -> tuple[ChannelGraph, Shapes]:
    layers = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(5)]
    model = nn.Sequential(*layers, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 10))
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
    return channel_graph(trace(model, torch.empty(2, 4, 4, 4))), shapes


@pytest.mark.parametrize("bucket", [1, 150, 300, 10_000])
@pytest.mark.parametrize("small", [1, 20, 150, 10_000])
def test_small_ones_of_layers_in_a_row_travel_together(net, monkeypatch, small, bucket) -> None:
    graph, shapes = net
    monkeypatch.setattr(messages, "SMALL", small)
    monkeypatch.setattr(messages, "BUCKET", bucket)
    layers = messages.layers_of(graph, shapes)
    found = messages.buckets_of(graph, shapes, shapes)
    order = [*dict.fromkeys(layers.values())]
    assert found.keys() == layers.keys()
    assert [*found.values()] == sorted(found.values(), key=order.index)
    buckets: dict[str, list[str]] = {}
    for name in layers:  # in the order of layers
        if math.prod(shapes[name]) >= small:
            assert found[name] == layers[name]
        else:
            buckets.setdefault(found[name], []).append(name)
    for first, together in buckets.items():
        own = [layer for layer, _ in groupby(together, key=layers.__getitem__)]
        assert own[0] == first
        but_last = [math.prod(shapes[name]) for name in together if layers[name] != own[-1]]
        assert sum(but_last) < bucket or not but_last
    for first, after in zip(buckets, [*buckets][1:], strict=False):
        assert sum(math.prod(shapes[name]) for name in buckets[first]) >= bucket
        assert order.index(first) < order.index(after)


def test_each_parameter_is_in_one_set(net, monkeypatch) -> None:
    graph, shapes = net
    monkeypatch.setattr(messages, "SMALL", 100)
    monkeypatch.setattr(messages, "BUCKET", 5)
    sets = [*messages.messages(graph, shapes, shapes)]
    names = [name for some, _ in sets for name in some]
    assert sorted(names) == sorted(shapes)
    for some, at_once in sets:
        assert all((math.prod(shapes[name]) < 100) is at_once for name in some)
    assert [len(some) for some, at_once in sets if not at_once] == [6]
    assert [*messages.messages(graph, shapes, ())] == [(set(), False)]
