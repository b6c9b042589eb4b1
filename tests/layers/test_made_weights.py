from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from proven_graphs import Net, layer_of, modelled
from torch import nn

from hgpart.operators import table
from hgpart.operators.products import Product
from hgpart.operators.table import channel_rule


def per_sample(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A convolution with filters of their own for each sample (conditional convolutions)."""
    count = x.shape[0]
    filters = weight.reshape(count * 6, 4, 3, 3)
    made = F.conv2d(x.reshape(1, count * 4, 8, 8), filters, padding=1, groups=count)
    return made.reshape(count, 6, 8, 8)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda net, code: code @ net.experts, "linear"),
        (lambda net, code: torch.tanh(code @ net.experts), "linear"),
        (lambda net, code: F.linear(code, net.experts.t()).view(-1, 6, 36), "linear"),
        (lambda net, code: torch.cat((code @ net.experts).chunk(2, 1), 1), "whole"),  # in any order
    ],
)
def test_a_product_that_makes_filters_has_a_task_for_each_with_its_convolution(
    make: Callable[..., Any], kind: str
) -> None:
    """Each element of the filters was a task: 2.7 million in timm's efficientnet_cc_b0_4e."""
    graph = modelled(
        Net(
            lambda net, x: net.last(per_sample(x, make(net, net.route(x.mean((2, 3)))))),
            route=nn.Linear(4, 3),
            experts=nn.Parameter(torch.randn(3, 6 * 4 * 3 * 3)),
            last=nn.Conv2d(6, 5, 1),
        )
    )
    apart = [] if kind == "linear" else [("matrices", 6)]  # the convolution, by filters
    assert [(layer.kind, layer.tasks) for layer in graph.layers] == [
        ("input", 1),
        ("same index", 4),
        ("linear", 3),
        (kind, 6 if kind == "linear" else 1),
        *apart,
        ("dense", 5),
        ("output", 1),
    ]
    assert graph.layers[3].parameter_names == ("experts",)


def test_a_product_that_is_multiplied_by_maps_is_a_layer_of_neurons() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.keys(x.flatten(2)) @ net.queries(x.flatten(2)).transpose(1, 2),
            keys=nn.Linear(64, 6),
            queries=nn.Linear(64, 6),
        )
    )
    assert layer_of(graph, "keys").tasks == layer_of(graph, "queries").tasks == 6


def test_a_product_says_whether_it_multiplies_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken from what its weight is called."""
    model = Net(
        lambda net, x: net.keys(x.flatten(2)) @ net.queries(x.flatten(2)).transpose(1, 2),
        keys=nn.Linear(64, 6),
        queries=nn.Linear(64, 6),
    )
    monkeypatch.setattr(table, "_users", {})
    channel_rule(torch.ops.aten.matmul)(Product("self", "other", "", row_dim=1))
    graph = modelled(model)
    assert layer_of(graph, "keys").tasks == 6
    assert layer_of(graph, "queries").tasks == 1
