"""Norms, softmax and attention; which channels are normalised over the batch."""

from __future__ import annotations

from dataclasses import replace
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
)
from torch import nn

from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import trace


def test_group_norm_reads_its_group() -> None:
    graph = modelled(nn.Sequential(nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6), nn.ReLU()))
    assert kinds(graph) == {"0": "dense", "1": "grouped"}
    assert needs(graph, "1") == [maps("0", 0, 1, 2)] * 3 + [maps("0", 3, 4, 5)] * 3
    assert not layer_of(graph, "1").reads[0].partial


def test_instance_norm_joins() -> None:
    graph = modelled(nn.Sequential(nn.Conv2d(4, 6, 3), nn.InstanceNorm2d(6, affine=True)))
    assert kinds(graph) == {"0": "dense"}


def test_layer_norm_over_channels_reads_all() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.norm(net.a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
            a=nn.Conv2d(4, 3, 1),
            norm=nn.LayerNorm(3),
        )
    )
    assert kinds(graph) == {"a": "dense", "norm": "dense"}
    assert needs(graph, "norm") == [maps("a", 0, 1, 2)] * 3
    assert layer_of(graph, "norm").parameters == 6


def test_layer_norm_over_pixels_joins() -> None:
    graph = modelled(
        nn.Sequential(nn.Conv2d(4, 3, 1), nn.LayerNorm((8, 8), bias=False)), counted=False
    )
    # its weight is one for all channels: a parameter that is read as data
    assert kinds(graph) == {"1.weight": "parameter", "0": "dense"}
    assert layer_of(graph, "1.weight").map_elements == 64


def test_softmax_over_channels_reads_all() -> None:
    graph = modelled(nn.Sequential(nn.Conv2d(4, 3, 1), nn.Softmax(1)))
    assert kinds(graph) == {"0": "dense", "1": "dense"}
    assert needs(graph, "1") == [maps("0", 0, 1, 2)] * 3


def test_softmax_over_pixels_joins() -> None:
    graph = modelled(nn.Sequential(nn.Conv2d(4, 3, 1), nn.Flatten(2), nn.Softmax(-1)))
    assert kinds(graph) == {"0": "dense"}


@pytest.mark.full
def test_attention_has_a_task_for_each_head_and_is_counted() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        tokens = net.a(x).flatten(2).transpose(1, 2)
        return net.attention(tokens, tokens, tokens, need_weights=False)[0]

    graph = modelled(
        Net(
            forward,
            a=nn.Conv2d(4, 6, 3),
            attention=nn.MultiheadAttention(6, 2, batch_first=True),
        ),
        counted=False,  # torch doesn't count the fused kernel that it runs on the CPU
    )
    assert list(kinds(graph).values()) == ["dense", "linear", "matrices", "linear"]
    of_heads = graph.layers[3]
    assert layer_of(graph, "a").macs * 6 == 36 * 4 * 9 * 6
    assert (of_heads.tasks, of_heads.macs) == (2, 2 * 36 * 36 * 3)
    assert needs(graph, of_heads.name) == [
        maps("attention", *(at for at in range(18) if at % 6 // 3 == head)) for head in range(2)
    ]


def test_a_mean_over_channels_is_one_reduction() -> None:
    graph = modelled(Net(lambda net, x: net.a(x).mean(1), a=nn.Conv2d(4, 3, 1)))
    assert kinds(graph) == {"a": "dense", "mean": "reduce"}
    assert layer_of(graph, "mean").tasks == 1
    assert needs(graph, "mean") == [maps("a", 0, 1, 2)]


def test_a_spread_reduction_is_read_by_all() -> None:
    graph = modelled(
        Net(lambda net, x: (y := net.a(x)) - y.mean(1, keepdim=True), a=nn.Conv2d(4, 3, 1))
    )
    assert kinds(graph) == {"a": "dense", "mean": "reduce", "sub": "same index"}
    width = layer_of(graph, "mean").channels
    assert needs(graph, "sub") == [
        maps("a", task) | maps("mean", *range(width)) for task in range(3)
    ]


class Unread(nn.Module):
    """A norm whose statistics alone are of use, and an instance norm that has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.instance = nn.InstanceNorm2d(4, track_running_stats=True)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = F.relu(self.instance(x))
        self.norm(x)
        return maps


def test_an_instance_norm_with_statistics_hides_no_other_norm() -> None:
    """The search for what norms make ended at the first that makes but one tensor."""
    graph = channel_graph(trace(Unread(), (torch.zeros(IMAGE),)))
    assert [layer.name for layer in graph.layers] == ["x", "instance", "norm", "output"]


class OfWeights(nn.Module):
    """Weights that a norm standardises: they have no batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = F.batch_norm(self.weight.reshape(1, 4, -1), None, None, training=True)
        return F.conv2d(x, weight.reshape(4, 4, 1, 1))

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, 1, 1))


class OfEachSample(nn.Module):
    """A batch norm of maps that are channels for each sample."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = x.reshape(1, -1, *x.shape[2:])
        return F.batch_norm(maps, None, None, training=True).reshape(x.shape)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("norm", "training", "evaluation"),
    [
        (nn.BatchNorm2d(4), 4, 0),
        pytest.param(
            nn.BatchNorm2d(4, affine=False, track_running_stats=False), 4, 4, marks=pytest.mark.full
        ),
        (nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)), 8, 0),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4 * 64)), 256, 0),
        pytest.param(nn.InstanceNorm2d(4), 0, 0, marks=pytest.mark.full),
        (nn.InstanceNorm2d(4, track_running_stats=True), 0, 0),
        pytest.param(nn.GroupNorm(2, 4), 0, 0, marks=pytest.mark.full),
        pytest.param(nn.LayerNorm((4, 8, 8)), 0, 0, marks=pytest.mark.full),
        (OfWeights(), 0, 0),
        pytest.param(OfEachSample(), 0, 0, marks=pytest.mark.full),
    ],
    ids=lambda value: type(value).__name__,
)
def test_channels_that_are_normalised_over_the_batch(
    norm: nn.Module, training: int, evaluation: int
) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), norm)
    for mode, expected in ((True, training), (False, evaluation)):
        traced = trace(model.train(mode), (torch.zeros(IMAGE),))
        graph = channel_graph(traced)
        assert sum(layer.batch_statistics for layer in graph.layers) == expected
        without = tuple(replace(layer, batch_statistics=0) for layer in graph.layers)
        assert replace(graph, layers=without).fingerprint == graph.fingerprint


def test_values_of_another_width_than_keys() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        tokens = net.a(x).flatten(2)
        query, key, value = tokens.split([4, 4, 6], 1)
        query, key, value = (one.unflatten(1, (2, -1)) for one in (query, key, value))
        return (query.mT @ key).softmax(3) @ value.mT

    graph = modelled(Net(forward, a=nn.Conv2d(4, 14, 1)))
    assert kinds(graph) == {"a": "dense", "matmul": "matrices"}
    assert needs(graph, "matmul") == [
        maps("a", 0, 1, 4, 5, 8, 9, 10),
        maps("a", 2, 3, 6, 7, 11, 12, 13),
    ]


def test_an_attention_of_one_head_has_tasks_for_queries_and_for_features() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        tokens = net.a(x).flatten(2).mT
        return F.scaled_dot_product_attention(tokens, tokens, tokens)

    graph = modelled(Net(forward, a=nn.Conv2d(4, 6, 1)), counted=False)
    a, *scaled, scores, made = graph.layers[1:-1]
    assert {layer.kind for layer in scaled} <= {"same index"}
    assert (a.tasks, scores.kind, scores.tasks) == (6, "dense", 64)
    assert (made.kind, made.tasks, made.macs) == ("matrices", 6, 64 * 64)


def test_norms_of_many_channels_are_a_statistic_and_a_task_for_each_channel() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.norm(net.a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
            a=nn.Conv2d(4, 6, 1),
            norm=nn.LayerNorm(6),
        ),
        counted=False,
    )
    assert kinds(graph) == {"a": "dense", "norm.statistics": "statistics", "norm": "same index"}
    own = layer_of(graph, "norm.statistics")
    assert (own.tasks, own.map_elements, own.partial_elements) == (1, 2 * 64, 2 * 64)
    assert needs(graph, "norm.statistics") == [maps("a", *range(6))]
    assert needs(graph, "norm") == [maps("a", at) | maps("norm.statistics", 0) for at in range(6)]


def test_group_norms_have_a_statistic_for_each_group() -> None:
    graph = modelled(nn.Sequential(nn.Conv2d(4, 10, 1), nn.GroupNorm(2, 10)), counted=False)
    assert layer_of(graph, "1.statistics").tasks == 2
    assert needs(graph, "1.statistics") == [maps("0", *range(5)), maps("0", *range(5, 10))]
    assert needs(graph, "1")[7] == maps("0", 7) | maps("1.statistics", 1)


def test_norms_of_heads_have_a_statistic_for_each_head() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        heads = net.a(x).flatten(2).transpose(1, 2).unflatten(2, (2, 5)).transpose(1, 2)
        return net.norm(heads)

    norm = nn.LayerNorm(5, elementwise_affine=False)
    graph = modelled(Net(forward, a=nn.Conv2d(4, 10, 1), norm=norm), counted=False)
    assert needs(graph, "norm.statistics") == [maps("a", *range(5)), maps("a", *range(5, 10))]
    assert needs(graph, "norm")[7] == maps("a", 7) | maps("norm.statistics", 1)


def test_tokens_of_parameters_join_the_maps_of_their_channels() -> None:
    """They were one task that read all channels, whatever came behind them."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(4, 6, 1)
            self.token, self.registers, self.places = (
                nn.Parameter(torch.randn(1, count, 6)) for count in (1, 3, 68)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.a(x).flatten(2).transpose(1, 2)
            more = (own.expand(len(x), -1, -1) for own in (self.token, self.registers))
            return torch.cat([*more, tokens], 1) + self.places

    graph = modelled(Tokens(), counted=False)
    assert kinds(graph) == {"token": "parameter", "registers": "parameter", "a": "dense"}
    assert layer_of(graph, "a").tasks == 6
    assert layer_of(graph, "a").map_elements == 68
