from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from proven_graphs import IMAGE, Net, kinds, layer_of, maps, modelled, needs, operators, parameter
from torch import nn


def test_module_called_twice_is_tied() -> None:
    model = Net(lambda net, x: net.a(F.relu(net.a(x))), a=nn.Conv2d(4, 4, 3))
    graph = modelled(model)
    assert [layer.name for layer in graph.layers] == ["x", "a", "a#2", "output"]
    assert [layer.tied_to for layer in graph.layers] == [0, 1, 1, 3]
    assert graph.layers[1].parameter_names == graph.layers[2].parameter_names
    assert graph.layers[1].macs != graph.layers[2].macs
    assert [layer.parameters for layer in graph.layers] == [0, 4 * 4 * 9 + 4, 0, 0]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("compute", "shared", "shape"),
    [
        (lambda net, x: net.a(net.a(x)), nn.Linear(4, 4), (2, 4, 4)),
        (lambda net, x: net.a(net.a(x)), nn.Linear(5, 5), (2, 3, 5)),
        (lambda net, x: net.a(torch.cat([y := net.a(x), y.flip(1)], 3)), nn.Conv2d(4, 4, 1), IMAGE),
        (
            lambda net, x: net.a(x.flatten(1)) + net.a(x.permute(0, 2, 3, 1).flatten(1)),
            nn.Linear(256, 3),
            IMAGE,
        ),
    ],
)
def test_a_weight_shared_by_row_but_not_by_column_is_tied_and_not_divided(
    compute: Callable[..., torch.Tensor], shared: nn.Module, shape: tuple[int, ...]
) -> None:
    """Task j of both holds row j; but no two halves of it are those of a channel of both."""
    graph = modelled(Net(compute, a=shared), shape)
    assert set(kinds(graph).values()) <= {"dense", "linear"}
    assert [layer.tied_to for layer in graph.layers] == [0, 1, 1, 3]
    assert not any(read.partial for layer in graph.layers for read in layer.reads)


def test_ties_are_transitive() -> None:
    """b and c share a weight, c and d another: all three are one."""

    def forward(net: Any, x: torch.Tensor) -> list[torch.Tensor]:
        b = F.conv2d(x, net.w, net.p)
        c = F.conv2d(b, net.w, net.q)
        return [c, F.conv2d(c, net.v, net.q)]

    graph = modelled(
        Net(
            forward,
            w=parameter(4, 4, 1, 1),
            v=parameter(4, 4, 1, 1),
            p=parameter(4),
            q=parameter(4),
        )
    )
    assert [layer.tied_to for layer in graph.layers] == [0, 1, 1, 1, 4]


def test_weight_used_in_different_ways_is_data() -> None:
    """Both convolutions were one task each."""

    def forward(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.conv2d(x, net.w), F.conv2d(x, net.w.view(8, 2, 1, 1), groups=2)

    graph = modelled(Net(forward, w=parameter(4, 4, 1, 1)))
    assert [layer.kind for layer in graph.layers[1:-1]] == ["parameter", "dense", "grouped"]
    assert [layer.tied_to for layer in graph.layers] == [0, 1, 2, 3, 4]


def test_square_weight_and_its_transpose_are_data() -> None:
    """Task j of one takes a row and task j of the other a column: they can't be one vertex."""

    def forward(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.conv2d(x, net.w), F.conv_transpose2d(x, net.w)

    graph = modelled(Net(forward, w=parameter(4, 4, 3, 3)))
    assert [layer.kind for layer in graph.layers[1:-1]] == ["parameter", "dense", "dense"]
    flat = Net(lambda net, x: F.linear(F.linear(x, net.w).relu(), net.w.t()), w=parameter(5, 5))
    assert set(kinds(modelled(flat, (2, 5))).values()) == {"parameter", "linear"}


def test_halves_of_one_weight_are_tied() -> None:
    def forward(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        low, high = net.w.chunk(2)
        return F.conv2d(x, low), F.conv2d(x, high)

    graph = modelled(Net(forward, w=parameter(6, 4, 1, 1)))
    assert [layer.kind for layer in graph.layers[1:-1]] == ["dense", "dense"]
    assert [layer.tied_to for layer in graph.layers] == [0, 1, 1, 3]
    assert not any(read.partial for layer in graph.layers for read in layer.reads)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "scaled",
    [
        lambda net, x: net.a(x) * net.s,
        lambda net, x: net.a(x) * net.s.expand(1, 3, 1, 1),
        lambda net, x: F.prelu(net.a(x), net.s.view(1)),
    ],
)
def test_scalar_parameter_is_a_task_that_all_read(scaled: Callable[..., torch.Tensor]) -> None:
    graph = modelled(Net(scaled, a=nn.Conv2d(4, 3, 1), s=parameter(1, 1, 1, 1)))
    assert kinds(graph) == {"s": "parameter", "a": "dense"}
    assert layer_of(graph, "s").map_elements == 1
    assert needs(graph, "a") == [maps("x", 0, 1, 2, 3) | maps("s", 0)] * 3


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "scale",
    [
        lambda net, y: y * net.s.view(1, 3, 1, 1),
        lambda net, y: (y.permute(0, 2, 3, 1) * net.s).permute(0, 3, 1, 2),
        lambda net, y: F.prelu(y, net.s),
    ],
)
def test_parameter_of_each_channel_is_held_by_its_task(scale: Callable[..., Any]) -> None:
    graph = modelled(Net(lambda net, x: scale(net, net.a(x)), a=nn.Conv2d(4, 3, 1), s=parameter(3)))
    assert kinds(graph) == {"a": "dense"}
    assert layer_of(graph, "a").parameter_names == ("a.weight", "a.bias", "s")


def test_class_token_travels_once() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        tokens = net.a(x).flatten(2).transpose(1, 2)
        return net.b(torch.cat([net.token.expand(len(x), -1, -1), tokens], 1))

    graph = modelled(
        Net(forward, token=parameter(1, 1, 6), a=nn.Conv2d(4, 6, 3), b=nn.Linear(6, 2))
    )
    assert kinds(graph) == {"token": "parameter", "a": "dense", "b": "linear"}
    token = layer_of(graph, "token")
    assert (token.tasks, token.map_elements, token.parameters) == (1, 6, 6)
    assert graph.map_bytes(token, 32, None) == 24
    assert all(maps("token", 0) <= needed for needed in needs(graph, "a"))
    assert needs(graph, "b") == [maps("a", *range(6))] * 2


def conv_and_conv(net: Any, x: torch.Tensor) -> torch.Tensor:
    return F.relu(net.shared(net.b(F.relu(net.shared(net.a(x))))))


@pytest.mark.few(1)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_shared_batch_norm_behind_equal_layers_ties_them(training: bool, affine: bool) -> None:
    """The statistics that one call updates are an argument of the next: it was kept whole."""
    model = Net(
        conv_and_conv,
        a=nn.Conv2d(4, 4, 3),
        b=nn.Conv2d(4, 4, 3),
        shared=nn.BatchNorm2d(4, affine=affine),
    ).train(training)
    graph = modelled(model)
    assert kinds(graph) == {"a": "dense", "b": "dense"}
    assert len(graph.layers[1].parameter_names) == (4 if affine else 2)
    # without parameters it is the statistics that task j of both must have at hand
    assert graph.layers[2].tied_to == (1 if affine or training else 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "shared", [nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False), nn.PReLU(8)]
)
def test_what_is_shared_behind_unlike_layers_is_a_layer_of_its_own(
    shared: nn.Module, training: bool
) -> None:
    """Convolutions of 4 and of 8 channels can't be tied: both were kept whole for a small norm."""
    model = Net(conv_and_conv, a=nn.Conv2d(4, 8, 3), b=nn.Conv2d(8, 8, 3), shared=shared).train(
        training
    )
    graph = modelled(model)
    names = [layer.name for layer in graph.layers]
    if any(True for _ in shared.parameters()) or training:
        assert names == ["x", "a", "shared", "b", "shared#2", "output"]
        assert [layer.kind for layer in graph.layers[1:-1]] == ["dense", "same index"] * 2
        assert [layer.tied_to for layer in graph.layers] == [0, 1, 2, 3, 2, 5]
        assert needs(graph, "shared") == [maps("a", task) for task in range(8)]
        assert operators(graph, "shared")[-1] == "relu"
    else:
        assert names == ["x", "a", "b", "output"]  # it shares nothing that any call changes


def test_shared_batch_norm_over_the_same_map_twice() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.norm(net.norm(net.a(x)).exp()) * net.norm(net.b(x)),
            a=nn.Conv2d(4, 3, 1),
            b=nn.Conv2d(4, 3, 1),
            norm=nn.BatchNorm2d(3),
        )
    )
    assert kinds(graph) == {"a": "dense", "b": "dense"}
    assert [layer.tied_to for layer in graph.layers] == [0, 1, 1, 3]


def test_a_scale_used_in_unlike_ways_is_data_and_the_convolutions_stay() -> None:
    """Nothing is whole for its sake: one task holds it, and those read it that need it."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.a(x) * net.scale.view(1, 6, 1, 1)
        return net.b(y).mean((2, 3)) * net.scale.flip(0)

    graph = modelled(Net(forward, a=nn.Conv2d(4, 6, 3), b=nn.Conv2d(6, 6, 3), scale=parameter(6)))
    found = {layer.name: layer.kind for layer in graph.layers}
    assert (found["a"], found["b"], found["scale"]) == ("dense", "dense", "parameter")
    assert "whole" not in found.values()
    assert [layer.tied_to for layer in graph.layers] == list(range(len(graph.layers)))


def test_a_weight_that_is_a_scale_elsewhere() -> None:
    """Both read it as data; nothing of the convolution is whole."""
    graph = modelled(
        Net(
            lambda net, x: F.conv2d(x, net.w.view(4, 4, 1, 1)) + F.linear(x, net.w.t()).mean(),
            w=parameter(4, 4),
        ),
        (2, 4, 4, 4),
    )
    assert list(kinds(graph).values()).count("parameter") == 1
    assert "dense" in kinds(graph).values()
