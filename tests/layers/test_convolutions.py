"""Convolutions of all kinds, and weights that are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from proven_graphs import (
    IMAGE,
    Net,
    StandardisedConv2d,
    VarianceConv2d,
    kinds,
    layer_of,
    maps,
    modelled,
    needs,
    parameter,
)
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("layer", "shape", "kind"),
    [
        (nn.Conv2d(4, 6, 3), IMAGE, "dense"),
        pytest.param(nn.Conv2d(4, 4, 3, groups=4), IMAGE, "depthwise", marks=pytest.mark.full),
        (nn.Conv2d(4, 12, 3, groups=4, stride=2, padding=1), IMAGE, "depthwise"),
        (nn.Conv2d(4, 6, 3, groups=2, dilation=2), IMAGE, "grouped"),
        pytest.param(nn.Conv1d(4, 6, 3, groups=2), (2, 4, 9), "grouped", marks=pytest.mark.full),
        (nn.Conv3d(4, 8, (1, 2, 3), groups=4), (2, 4, 3, 4, 5), "depthwise"),
        pytest.param(nn.ConvTranspose1d(4, 6, 3), (2, 4, 9), "dense", marks=pytest.mark.full),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), IMAGE, "dense"),
        pytest.param(
            nn.ConvTranspose2d(4, 6, 3, groups=2, output_padding=1, stride=2),
            IMAGE,
            "grouped",
            marks=pytest.mark.full,
        ),
        (nn.ConvTranspose2d(4, 8, 3, groups=4), IMAGE, "depthwise"),
        pytest.param(
            nn.ConvTranspose3d(4, 2, 2, groups=2),
            (2, 4, 2, 3, 4),
            "grouped",
            marks=pytest.mark.full,
        ),
    ],
)
def test_convolutions(layer: Any, shape: tuple[int, ...], kind: str) -> None:
    model = nn.Sequential(layer, nn.ReLU())
    graph = modelled(model, shape)
    assert kinds(graph) == {"0": kind}
    tasks, groups = layer.out_channels, layer.groups
    only = layer_of(graph, "0")
    assert (only.tasks, only.reads[0].groups) == (tasks, groups)
    assert only.reads[0].partial
    assert only.weights == layer.weight.numel()
    assert only.map_elements == model(torch.zeros(shape))[0, 0].numel()
    span, fan = 4 // groups, tasks // groups
    first = [task // fan * span for task in range(tasks)]
    assert needs(graph, "0") == [maps("input", *range(at, at + span)) for at in first]


def test_linear_layer_over_a_sequence() -> None:
    graph = modelled(nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)), (2, 6, 5))
    assert kinds(graph) == {"0": "linear", "2": "linear"}
    assert layer_of(graph, "0").map_elements == 6
    assert needs(graph, "2") == [maps("0", *range(7))] * 3


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("operand", "weighs"),
    [
        (lambda y: y.flatten(2), nn.Linear(64, 5)),
        (lambda y: y.mean(2), nn.Linear(8, 5)),
        (lambda y: y.mT.transpose(1, 3).mT, nn.Linear(8, 5, bias=False)),
    ],
)
def test_a_product_beside_channels_works_channel_by_channel(
    operand: Callable[[torch.Tensor], torch.Tensor], weighs: nn.Module
) -> None:
    """Its features were tasks, and what added them to its operand was one task."""
    graph = modelled(Net(lambda net, x: net.b(operand(net.a(x))), a=nn.Conv2d(4, 3, 1), b=weighs))
    found = kinds(graph)
    assert {name for name, kind in found.items() if kind == "parameter"} == {
        f"b.{name}" for name, _ in weighs.named_parameters()
    }
    assert "whole" not in found.values()
    assert graph.layers[-2].tasks == 3


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "weighs",
    [
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.Conv2d(8, 4, (3, 1), stride=2, padding=(2, 0), dilation=(2, 1)),
        nn.Conv2d(8, 4, 1, bias=False),
    ],
)
def test_a_convolution_along_channels_reads_their_neighbours(weighs: nn.Conv2d) -> None:
    """Grouped ones were kept whole: 14 % of the work of pytorchcv's dicenet_wd5."""
    graph = modelled(
        Net(
            lambda net, x: net.b(net.a(x).permute(0, 2, 1, 3)),
            a=nn.Conv2d(4, 5, 1),
            b=weighs,
        )
    )
    parameters = maps("b.weight", 0) | (maps("b.bias", 0) if weighs.bias is not None else set())
    (stride, _), (pad, _), (gap, _) = weighs.stride, weighs.padding, weighs.dilation
    first = [task * stride - pad for task in range(graph.layers[-2].tasks)]
    assert needs(graph, graph.layers[-2].name) == [
        parameters | maps("a", *(at for at in range(begin, begin + 3 * gap, gap) if 0 <= at < 5))
        if weighs.kernel_size[0] == 3
        else parameters | maps("x", *range(4))  # it joins the layer that makes its operand
        for begin in first
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("operand", "weighs"),
    [
        (lambda y: torch.cat([y, y.flip(1)], 3), nn.Conv2d(3, 5, 3)),  # each column meets two
        (lambda y: torch.cat([y, y.roll(1, 1)], 3), nn.ConvTranspose2d(3, 5, 3)),
        pytest.param(
            lambda y: torch.cat([y, y.flip(1)]), nn.Conv2d(3, 5, 3), marks=pytest.mark.full
        ),
        (lambda y: F.pad(y, (0, 0, 0, 0, 1, 0)), nn.Conv2d(4, 5, 3)),  # one column meets none
        (lambda y: F.pad(y.mean((2, 3)), (2, 0)), nn.Linear(5, 5)),
    ],
)
def test_a_weight_without_columns_of_each_channel_is_not_divided(
    operand: Callable[[torch.Tensor], torch.Tensor], weighs: nn.Module
) -> None:
    """Fine-grain split these, too, though what one channel multiplies is none of its own."""
    graph = modelled(Net(lambda net, x: net.b(operand(net.a(x))), a=nn.Conv2d(4, 3, 1), b=weighs))
    assert kinds(graph)["b"] in ("dense", "linear")
    (read,) = layer_of(graph, "b").reads
    assert not read.partial
    assert layer_of(graph, "b").weights == 0
    assert needs(graph, "b") == [maps("a", 0, 1, 2)] * 5


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("operand", "weighs"),
    [
        (lambda y: y.permute(0, 2, 3, 1), nn.Linear(3, 5)),
        (lambda y: y.permute(0, 2, 3, 1).flatten(1), nn.Linear(192, 5)),
        (lambda y: torch.cat([y, y.flip(1)], 1), nn.Conv2d(6, 5, 3)),
        (lambda y: F.pad(y, (1, 1, 2, 0)), nn.Conv2d(3, 5, 3)),
    ],
)
def test_a_weight_with_columns_of_each_channel_can_be_divided(
    operand: Callable[[torch.Tensor], torch.Tensor], weighs: nn.Module
) -> None:
    graph = modelled(Net(lambda net, x: net.b(operand(net.a(x))), a=nn.Conv2d(4, 3, 1), b=weighs))
    (read,) = layer_of(graph, "b").reads
    assert read.partial
    assert layer_of(graph, "b").weights == weighs.weight.numel()


def test_product_with_a_parameter_is_a_linear_layer() -> None:
    graph = modelled(Net(lambda net, x: x.flatten(1) @ net.w, w=parameter(256, 5)))
    assert kinds(graph) == {"matmul": "linear"}
    assert layer_of(graph, "matmul").reads[0].sizes.tolist() == [64] * 4


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_bias_of_all_filters_is_a_task_that_all_read(shape: tuple[int, ...]) -> None:
    graph = modelled(
        Net(lambda net, x: F.linear(x, net.w, net.b), w=parameter(5, 8), b=parameter(*shape))
    )
    assert kinds(graph) == {"b": "parameter", "linear": "linear"}
    assert needs(graph, "linear") == [maps("x", 0, 1, 2, 3) | maps("b", 0)] * 5


def test_a_weight_that_the_bias_is_made_of_is_not_divided() -> None:
    # Fine-grain would have given its columns to several parts, and its rows to one.
    graph = modelled(
        Net(lambda net, x: F.conv2d(x, net.w, net.w.sum((1, 2, 3))), w=parameter(5, 4, 1, 1))
    )
    assert kinds(graph) == {"conv2d": "dense"}
    assert not any(read.partial for read in layer_of(graph, "conv2d").reads)


def test_data_in_place_of_a_weight_or_bias_is_kept_whole() -> None:
    def bias(net: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(net.a(x.flatten(1)), x.flatten(1), net.w)

    graph = modelled(Net(bias, a=nn.Linear(256, 5), w=parameter(256, 5)))
    assert kinds(graph) == {"a": "linear", "addmm": "whole"}
    assert needs(graph, "addmm") == [maps("x", 0, 1, 2, 3) | maps("a", 0, 1, 2, 3, 4)]

    def weight(net: Any, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, net.a(x)[:1].view(3, 4, 1, 1))

    graph = modelled(Net(weight, a=nn.Sequential(nn.Conv2d(4, 12, 8), nn.Flatten())))
    assert kinds(graph) == {"a.0": "dense", "conv2d": "matrices"}
    assert needs(graph, "conv2d") == [
        maps("x", *range(4)) | maps("a.0", *range(4 * task, 4 * task + 4)) for task in range(3)
    ]


def test_a_weight_computed_from_all_rows_is_data_and_counted() -> None:
    """Rows can't be handed out one by one: the convolution was kept whole."""
    graph = modelled(Net(lambda net, x: F.conv2d(x, net.w / net.w.std()), w=parameter(6, 4, 3, 3)))
    assert kinds(graph) == {"w": "parameter", "conv2d": "dense"}
    assert graph.layers[2].macs == 36 * 4 * 9


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (StandardisedConv2d(4, 6, 3), {"0.weight", "0.bias", "0.gain"}),
        (VarianceConv2d(4, 6, 3), {"0.weight", "0.bias"}),
        (
            weight_norm(nn.Conv2d(4, 6, 3)),
            {
                "0.bias",
                "0.parametrizations.weight.original0",
                "0.parametrizations.weight.original1",
            },
        ),
    ],
)
def test_a_weight_computed_row_by_row_is_handed_out_row_by_row(
    layer: nn.Module, names: set[str]
) -> None:
    """Any computed weight made its layer whole: 18 of 68 layers of timm's nfnet_l0."""
    graph = modelled(nn.Sequential(layer, nn.ReLU(), nn.Conv2d(6, 2, 1)))
    assert kinds(graph) == {"0": "dense", "2": "dense"}
    assert set(graph.layers[1].parameter_names) == names
    assert graph.layers[1].tasks == 6
    assert not graph.layers[1].reads[0].partial  # a filter's statistics need all its channels


def test_a_module_that_computes_its_weight_called_twice_is_tied() -> None:
    graph = modelled(Net(lambda net, x: net.a(F.relu(net.a(x))), a=StandardisedConv2d(4, 4, 3)))
    assert [layer.kind for layer in graph.layers[1:-1]] == ["dense", "dense"]
    assert [layer.tied_to for layer in graph.layers] == [0, 1, 1, 3]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "model",
    [
        weight_norm(nn.Conv2d(4, 6, 3), dim=1),  # its norms are those of columns
        Net(lambda net, x: F.conv2d(x, net.w.softmax(0)), w=parameter(6, 4, 3, 3)),
        Net(lambda net, x: F.conv2d(x, net.w.exp().flip(0)), w=parameter(6, 4, 3, 3)),
        Net(lambda net, x: F.conv2d(x, net.w * net.s), w=parameter(6, 4, 3, 3), s=parameter(1)),
    ],
)
def test_a_weight_computed_across_rows_is_data(model: nn.Module) -> None:
    graph = modelled(model)
    assert [kind for kind in kinds(graph).values() if kind != "parameter"] == ["dense"]
    assert "parameter" in kinds(graph).values()


def test_a_weight_computed_with_buffers_is_kept_whole() -> None:
    """A spectral norm changes its buffers in each pass of training."""
    graph = modelled(spectral_norm(nn.Conv2d(4, 6, 3)), counted=False)  # products make the weight
    assert list(kinds(graph).values()) == ["whole"]


def test_a_scale_computed_of_its_own_channel_is_held_by_its_task() -> None:
    graph = modelled(
        Net(
            lambda net, x: net.a(x) * net.s.exp()[:, None, None],
            a=nn.Conv2d(4, 3, 1),
            s=parameter(3),
        )
    )
    assert kinds(graph) == {"a": "dense"}
    graph = modelled(
        Net(
            lambda net, x: net.a(x) * net.s.softmax(0)[:, None, None],
            a=nn.Conv2d(4, 3, 1),
            s=parameter(3),
        )
    )
    assert kinds(graph) == {"s": "parameter", "a": "dense"}


def test_a_blurring_kernel_repeated_for_each_channel_is_depthwise() -> None:
    """It is a buffer that nobody owns, however it was computed."""
    graph = modelled(
        Net(
            lambda net, x: F.conv2d(net.a(x), net.k.expand(3, -1, -1, -1), groups=3),
            a=nn.Conv2d(4, 3, 1),
            k=torch.rand(1, 1, 3, 3),
        )
    )
    assert list(kinds(graph).values()) == ["dense", "depthwise"]
