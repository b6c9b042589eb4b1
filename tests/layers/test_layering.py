"""Operators without a rule, and what is kept whole."""

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

from hgpart.errors import TraceError
from hgpart.layers.layering import channel_graph
from hgpart.operators import table
from hgpart.operators.channelwise import same_place
from hgpart.operators.effects import Call, SameIndex
from hgpart.operators.table import channel_rule
from hgpart.tracing.traced_model import trace


@torch.library.custom_op("hgpart_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_unknown_operator_is_kept_whole_until_it_has_a_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Net(
        lambda net, x: net.b(F.relu(double(net.a(x)))), a=nn.Conv2d(4, 3, 1), b=nn.Conv2d(3, 2, 1)
    )
    traced = trace(model, torch.zeros(IMAGE))
    graph = channel_graph(traced)
    assert list(kinds(graph).values()) == ["dense", "whole", "dense"]
    whole = graph.layers[2]
    assert (whole.tasks, whole.channels, whole.map_elements) == (1, 3, 192)
    assert operators(graph, "double") == ("double", "relu")
    assert needs(graph, whole.name) == [maps("a", 0, 1, 2)]
    assert needs(graph, "b") == [maps("double", 0, 1, 2)] * 2

    monkeypatch.setattr(table, "_users", {})

    @channel_rule(torch.ops.hgpart_tests.double)
    def rule(call: Call) -> SameIndex:
        return same_place(call)

    graph = modelled(model)
    assert kinds(graph) == {"a": "dense", "b": "dense"}
    assert operators(graph, "a") == ("conv2d", "double", "relu")


@torch.library.custom_op("hgpart_tests::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@triple.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_rule_that_raises_is_one_line_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rule raised came out as it was, without a word of where."""
    monkeypatch.setattr(table, "_users", {})

    @channel_rule(torch.ops.hgpart_tests.triple)
    def rule(call: Call) -> SameIndex:
        return SameIndex(operands=call.args[1])

    block = Net(lambda net, x: triple(net.a(x)), a=nn.Conv2d(4, 3, 1))
    with pytest.raises(TraceError) as caught:
        channel_graph(trace(nn.Sequential(nn.ReLU(), block), torch.zeros(IMAGE)))
    assert str(caught.value) == (
        "can't trace hgpart_tests.triple.default (triple in 1): "
        "its channel rule rule raises IndexError: tuple index out of range"
    )


@pytest.mark.parametrize(
    ("compute", "says"),
    [
        (lambda net, x: net.a(x)[:, net.b(x)[0, :, 0, 0] > 0].mean(), "depends on the data"),
        (lambda net, x: net.a(x) * x.mean().item(), "makes a number from data"),
    ],
)
def test_what_depends_on_the_data_in_size_is_one_clear_line(
    compute: Callable[..., Any], says: str
) -> None:
    model = Net(compute, a=nn.Conv2d(4, 3, 1), b=nn.Conv2d(4, 3, 1))
    with pytest.raises(TraceError) as caught:
        channel_graph(trace(model, torch.zeros(IMAGE)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "compute",
    [
        lambda net, x: net.a(x).var(False),
        lambda net, x: net.a(x).std(1, keepdim=True),
        lambda net, x: torch.var_mean(net.a(x))[1],
        lambda net, x: net.a(x).max(1).values,
        lambda net, x: net.a(x).argmax(1).float(),
    ],
)
def test_reductions_in_all_their_forms(compute: Callable[..., Any]) -> None:
    """The bool of `var(False)` was taken for a dimension."""
    graph = modelled(Net(compute, a=nn.Conv2d(4, 3, 1)))
    assert list(kinds(graph).values()) == ["dense", "reduce"]


def test_a_chain_of_unknown_operators_is_one_task() -> None:
    graph = modelled(
        Net(lambda net, x: net.a(x).sort(1).values.flip(1).cumsum(1), a=nn.Conv2d(4, 3, 1))
    )
    assert list(kinds(graph).values()) == ["dense", "whole"]
    assert operators(graph, "sort") == ("sort", "cumsum")


def test_channels_that_cross_are_kept_whole() -> None:
    """Every channel of one operand meets every channel of the other."""
    graph = modelled(
        Net(
            lambda net, x: net.a(x).mean((2, 3)).unsqueeze(2) * net.b(x).mean((2, 3)).unsqueeze(1),
            a=nn.Conv2d(4, 3, 1),
            b=nn.Conv2d(4, 2, 1),
        )
    )
    assert list(kinds(graph).values()) == ["dense", "dense", "whole"]
    assert needs(graph, "mul") == [maps("a", 0, 1, 2) | maps("b", 0, 1)]


def test_channels_of_unequal_size_are_not_equal_tasks() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        return F.relu(torch.cat([net.a(x).flatten(1), net.b(x).flatten(1)], 1))

    graph = modelled(Net(forward, a=nn.Conv2d(4, 3, 1), b=nn.Conv2d(4, 3, 3)))
    assert list(kinds(graph).values()) == ["dense", "dense", "whole"]


def test_whole_task_that_reads_its_own_map_and_another() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.a(x).sort(1).values.flatten(2)
        return y @ torch.cat([y, net.b(x).flatten(2)], 1).transpose(1, 2)

    graph = modelled(Net(forward, a=nn.Conv2d(4, 3, 1), b=nn.Conv2d(4, 2, 1)))
    assert list(kinds(graph).values()) == ["dense", "dense", "whole"]
    whole = layer_of(graph, "sort")
    assert operators(graph, "sort") == ("sort", "matmul")
    assert all((read.channels >= 0).all() for read in whole.reads)
    assert needs(graph, "sort") == [maps("a", 0, 1, 2) | maps("b", 0, 1)]
