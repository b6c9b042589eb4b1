from __future__ import annotations

from collections.abc import Callable
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
    operators,
    parameter,
    unnumbered,
)
from torch import fx, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from hgpart.errors import TraceError
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.operators import table
from hgpart.operators.channelwise import same_place
from hgpart.operators.effects import Call, SameIndex
from hgpart.operators.table import channel_rule
from hgpart.tracing.traced_model import trace

# ------------------------------------------------------------------ fusion


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


# ------------------------------------------------------------------ what travels


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


# ------------------------------------------------------------------ re-indexing


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


# ------------------------------------------------------------------ convolutions of all kinds


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


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("operand", "weighs"),
    [
        (lambda y: y.flatten(2), nn.Linear(64, 5)),  # channels stand beside what is summed up
        pytest.param(lambda y: y.mean(2), nn.Linear(8, 5), marks=pytest.mark.full),
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
    assert kinds(graph) == {"a.0": "dense", "conv2d": "whole"}


def test_a_computed_weight_is_kept_whole_and_counted() -> None:
    """Weight standardisation mixes all rows, so that rows can't be handed out one by one."""
    graph = modelled(Net(lambda net, x: F.conv2d(x, net.w / net.w.std()), w=parameter(6, 4, 3, 3)))
    assert kinds(graph) == {"conv2d": "whole"}
    assert graph.layers[1].macs == 36 * 6 * 4 * 9


class StandardisedConv2d(nn.Conv2d):
    """Each filter has mean 0 and variance 1, by batch norm over a view, as timm has it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gain = parameter(self.out_channels, 1, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = F.batch_norm(
            self.weight.reshape(1, self.out_channels, -1),
            None,
            None,
            weight=(self.gain * 0.3).view(-1),
            training=True,
            momentum=0.0,
        )
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias)


class VarianceConv2d(nn.Conv2d):
    """The same by var_mean."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True, unbiased=False)
        return F.conv2d(x, (self.weight - mean) / (variance + 1e-5).sqrt(), self.bias)


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
        spectral_norm(nn.Conv2d(4, 6, 3)),  # its norm is one of the whole weight
        weight_norm(nn.Conv2d(4, 6, 3), dim=1),  # its norms are those of columns
        Net(lambda net, x: F.conv2d(x, net.w.softmax(0)), w=parameter(6, 4, 3, 3)),
        Net(lambda net, x: F.conv2d(x, net.w.exp().flip(0)), w=parameter(6, 4, 3, 3)),
        Net(lambda net, x: F.conv2d(x, net.w * net.s), w=parameter(6, 4, 3, 3), s=parameter(1)),
    ],
)
def test_a_weight_computed_across_rows_is_kept_whole(model: nn.Module) -> None:
    graph = modelled(model, counted=False)  # it may compute the weight by products, too
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


# ------------------------------------------------------------------ norms, softmax, attention


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
def test_attention_is_kept_whole_and_counted() -> None:
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
    assert list(kinds(graph).values()) == ["dense", "linear", "whole", "linear"]
    whole = graph.layers[3]
    assert layer_of(graph, "a").macs * 6 == 36 * 4 * 9 * 6
    assert whole.macs == 2 * 36 * 36 * 6
    assert needs(graph, whole.name) == [maps("attention", *range(18))]


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


# ------------------------------------------------------------------ rows of parameters


class Constants(fx.Interpreter):
    """Runs a traced model and keeps what each node makes, for some values of its parameters."""

    def __init__(self, module: fx.GraphModule, given: dict[str, torch.Tensor]) -> None:
        super().__init__(module)
        self.given = given
        self.made: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.made[n.name] = self.given[n.name] if n.op == "placeholder" else super().run_node(n)
        return self.made[n.name]


def rows_found(model: nn.Module) -> dict[str, torch.Tensor]:
    """The rows of a graph, after proving them: exactly those elements change with a row."""
    torch.manual_seed(0)
    traced = trace(model, torch.zeros(IMAGE))
    graph = channel_graph(traced)
    placeholders = [n for n in traced.graph_module.graph.nodes if n.op == "placeholder"]
    given = {node.name: torch.rand(IMAGE) for node in placeholders}
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for placeholder, name in {**traced.parameters, **traced.buffers}.items():
        given[placeholder] = state[name].detach().clone()

    def made(given: dict[str, torch.Tensor]) -> dict[str, Any]:
        run = Constants(traced.graph_module, given)
        with torch.no_grad():
            run.run(*given.values())
        return run.made

    before = made(given)
    for row in range(max(int(rows.max()) for rows in graph.rows.values()) + 1):
        changed = dict(given)
        for placeholder in traced.parameters:
            value = changed[placeholder] = given[placeholder].clone()
            if value.dim() == 0:
                value += 1 if row == 0 else 0
            elif row < len(value):
                value[row] += torch.rand(value[row].shape) + 0.1
        after = made(changed)
        for name, rows in graph.rows.items():
            assert rows.shape == before[name].shape, name
            assert torch.equal(before[name] != after[name], rows == row), (name, row)
    return dict(graph.rows)


def test_rows_of_parameters_and_of_what_is_computed_row_by_row() -> None:
    rows = rows_found(
        nn.Sequential(StandardisedConv2d(4, 6, 3), VarianceConv2d(6, 4, 3), nn.PReLU(4))
    )
    assert {name for name in rows if name.startswith("p_")} == {
        "p_0_weight",
        "p_0_bias",
        "p_0_gain",
        "p_1_weight",
        "p_1_bias",
        "p_2_weight",
    }
    computed = [ids for name, ids in rows.items() if not name.startswith("p_")]
    assert any(tuple(ids.shape) == (6, 4, 3, 3) for ids in computed)
    assert any(tuple(ids.shape) == (4, 6, 3, 3) for ids in computed)
    weight = rows["p_0_weight"]
    assert weight.shape == (6, 4, 3, 3)
    assert weight.stride() == (1, 0, 0, 0)  # one number a row


def test_rows_that_moved() -> None:
    rows = rows_found(
        Net(
            lambda net, x: (x.permute(0, 2, 3, 1) @ net.w.t().exp()) * net.s.flip(0),
            w=parameter(3, 4),
            s=parameter(3),
        )
    )
    assert rows["flip"].tolist() == [2, 1, 0]
    assert rows["exp"].tolist() == [[0, 1, 2]] * 4


def test_what_is_made_of_several_rows_or_of_none_has_no_rows() -> None:
    rows = rows_found(
        Net(
            lambda net, x: net.norm(
                F.conv2d(x, net.w / net.w.std(), F.pad(net.b, (0, 1)) * net.k.exp())
                * net.b.softmax(0).sum()
                + F.conv2d(x, net.k.exp().view(3, 1, 1, 1).expand(-1, 4, -1, -1))
            ),
            w=parameter(3, 4, 1, 1),
            b=parameter(2),
            k=torch.rand(3),
            norm=nn.BatchNorm2d(3),
        )
    )
    assert set(rows) == {"p_w", "p_b", "p_norm_weight", "p_norm_bias"}


def test_rows_are_not_in_the_fingerprint() -> None:
    graph = channel_graph(trace(nn.Conv2d(4, 3, 1), torch.zeros(IMAGE)))
    assert graph.rows
    assert ChannelGraph(graph.layers, graph.ids).fingerprint == graph.fingerprint


# ------------------------------------------------------------------ inputs and outputs


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


# ------------------------------------------------------------------ operators without a rule


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


# ------------------------------------------------------------------ statistics of the batch


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
