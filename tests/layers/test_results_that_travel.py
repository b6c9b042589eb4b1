"""Which results of an operator leave its layer, and how large they are."""

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
    modelled,
)
from torch import nn


def pooled(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.max_pool2d(net.a(x), 2, return_indices=True)


def spread(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.var_mean(net.a(x), (2, 3))


def best(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return net.a(x).topk(2, dim=1)


def normed(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.native_layer_norm(net.a(x), [8], None, None, 1e-5)


def dropped(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.native_dropout(net.a(x), 0.5, True)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("compute", "kept", "kind", "elements", "size"),
    [  # the convolution makes 3 maps of 8 x 8 float32
        (pooled, slice(None), "dense", 16 * (1 + 2), 4),  # an int64 index is as large as two values
        pytest.param(pooled, slice(1), "dense", 16, 4, marks=pytest.mark.full),
        (pooled, slice(1, 2), "dense", 16, 8),
        (spread, slice(None), "dense", 2, 4),
        pytest.param(spread, slice(1), "dense", 1, 4, marks=pytest.mark.full),
        pytest.param(spread, slice(1, 2), "dense", 1, 4, marks=pytest.mark.full),
        (best, slice(None), "whole", 128 * (1 + 2), 4),
        pytest.param(best, slice(1), "whole", 128, 4, marks=pytest.mark.full),
        (best, slice(1, 2), "whole", 128, 8),
        (normed, slice(None), "dense", 64 + 8 + 8, 4),
        pytest.param(normed, slice(1), "dense", 64, 4, marks=pytest.mark.full),
        (dropped, slice(None), "dense", 80, 4),  # a bool is as large as a quarter of a value
    ],
)
def test_every_result_that_is_read_travels(
    compute: Callable[..., Any], kept: slice, kind: str, elements: int, size: int
) -> None:
    """One result was counted of an operator that joins a layer, and all of a whole one."""
    graph = modelled(Net(lambda net, x: compute(net, x)[kept], a=nn.Conv2d(4, 3, 1)))
    maker = graph.layers[-2]
    assert (maker.kind, maker.map_elements, maker.bytes_per_element) == (kind, elements, size)
    if kind == "dense":
        assert maker.partial_elements == 64


def test_results_that_other_operators_read_travel() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(net.a(x), (2, 3))
        return net.b(variance) + net.c(mean)

    graph = modelled(Net(forward, a=nn.Conv2d(4, 3, 1), b=nn.Linear(3, 2), c=nn.Linear(3, 2)))
    assert layer_of(graph, "a").map_elements == 2


def test_results_of_which_tasks_can_not_make_their_own_share_are_of_one_task() -> None:
    """A group's mean is of no channel in particular."""

    def forward(net: Any, x: torch.Tensor) -> Any:
        return torch.native_group_norm(net.a(x), None, None, 2, 6, 64, 2, 1e-5)[: net.count]

    net = Net(forward, a=nn.Conv2d(4, 6, 1))
    net.count = 1
    assert list(kinds(modelled(net)).values()) == ["dense", "grouped"]
    net.count = 2
    graph = modelled(net)
    assert list(kinds(graph).values()) == ["dense", "whole"]
    assert graph.layers[-2].map_elements == 6 * 64 + 2


def test_statistics_that_another_call_of_the_norm_replaces_do_not_travel() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.norm(net.b(net.norm(net.a(x)))),
            a=nn.Conv2d(4, 4, 3),
            b=nn.Conv2d(4, 4, 3),
            norm=nn.BatchNorm2d(4),
        )
    )
    assert kinds(graph) == {"a": "dense", "b": "dense"}
    assert [layer.map_elements for layer in graph.layers[1:-1]] == [36, 16]
