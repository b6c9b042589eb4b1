"""Every element of a parameter is in one part, whatever operators take of it and how often."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import placements
import pytest
import torch
from torch import nn
from torch.nn import functional

from hgpart import Modelling, place
from hgpart.placement.accounting import disagreements

IMAGE = (2, 3, 4, 4)


class Net(nn.Module):
    """Two convolutions, parameters of given shapes, and a function of them and of an image."""

    def __init__(self, compute: Callable[..., Any], **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.compute = compute
        self.conv, self.other = nn.Conv2d(3, 6, 1), nn.Conv2d(3, 6, 1)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))

    def forward(self, image: torch.Tensor) -> Any:
        return self.compute(self, image)


def tokens(net: Net, image: torch.Tensor) -> torch.Tensor:
    return net.conv(image).flatten(2).transpose(1, 2)


def channels(vector: torch.Tensor) -> torch.Tensor:
    return vector[:, None, None]


def class_token_position(net: Net, image: torch.Tensor) -> torch.Tensor:
    """The positions of the token and of the places, which are resampled, are pieces of one."""
    maps = tokens(net, image)
    maps = torch.cat([maps.mean(1, keepdim=True), maps], 1)
    token, places = net.p[None, :1], net.p[None, 1:].reshape(1, 4, 4, 6).flatten(1, 2)
    return functional.linear(maps + torch.cat([token, places], 1), net.w)


def attention(net: Net, image: torch.Tensor) -> torch.Tensor:
    """Two whole tasks with pieces of one table that overlap."""
    maps = tokens(net, image).unflatten(2, (2, 3)).transpose(1, 2)
    attend = functional.scaled_dot_product_attention
    return attend(maps, maps, maps, net.p[:16]) + attend(maps, maps, maps, net.p[8:24])


def keys_without_bias(net: Net, image: torch.Tensor) -> torch.Tensor:
    """An attention in which the middle third of the bias is replaced by zeros."""
    bias = net.b.clone()
    bias[6:12].zero_()
    queries, keys, values = functional.linear(tokens(net, image), net.w, bias).chunk(3, 2)
    return functional.softmax(queries @ keys.transpose(1, 2), 2) @ values


def relative_positions(net: Net, image: torch.Tensor) -> torch.Tensor:
    """What an attention adds is computed from parameters alone, of which it takes some."""
    maps = tokens(net, image)
    distances = torch.linspace(-1, 1, 31, dtype=maps.dtype)[:, None]
    of_distance = functional.linear(functional.linear(distances, net.p, net.b).relu(), net.w)
    places = torch.arange(16)
    added = of_distance[places[:, None] - places + 15].permute(2, 0, 1)
    attention = (maps @ maps.transpose(1, 2))[:, None] + added
    return attention.softmax(3) @ maps[:, None]


def rows_and_columns(net: Net, image: torch.Tensor) -> torch.Tensor:
    """As many elements are in both pieces as in none."""
    maps = image.flatten(1)
    return functional.linear(maps[:, :24], net.w[:, :24]) * functional.linear(
        maps[:, 24:], net.w[:, 12:36]
    )


MODELS: dict[str, Net] = {
    # one part needs an element in several slices
    "position": Net(class_token_position, p=(17, 6), w=(4, 6)),
    "attention": Net(attention, p=(24, 16)),
    "keys without bias": Net(keys_without_bias, w=(18, 6), b=(18,)),
    "relative positions": Net(relative_positions, p=(5, 1), b=(5,), w=(2, 5)),
    "columns": Net(rows_and_columns, w=(6, 48)),
    "read and held": Net(
        lambda net, x: functional.conv2d(x, net.w[:4]) + net.w[2:].sum(), w=(8, 3, 1, 1)
    ),
    # nobody needs some elements
    "some rows": Net(lambda net, x: functional.conv2d(x, net.w[:4]), w=(6, 3, 1, 1)),
    "every other": Net(lambda net, x: net.conv(x) * channels(net.s[1:12:2]), s=(13,)),
    "by index": Net(lambda net, x: functional.conv2d(x, net.w[torch.arange(4)]), w=(6, 3, 1, 1)),
    "shape alone": Net(lambda net, x: net.conv(x) + torch.ones_like(net.p), p=(6, 4, 4)),
    # operators that can't be cut
    "flipped": Net(lambda net, x: net.conv(x) * net.p.flip(2).permute(2, 0, 1), p=(4, 4, 6)),
    "alternating": Net(
        lambda net, x: net.conv(x) * channels(torch.stack([net.a, net.b], 1).flatten()),
        a=(3,),
        b=(3,),
    ),
    "flipped kernels": Net(
        lambda net, x: functional.conv2d(x, net.w.flip(2, 3), padding=1), w=(6, 3, 3, 3)
    ),
    "computed and flipped": Net(lambda net, x: net.conv(x) * channels((net.s * 2).flip(0)), s=(6,)),
    "computed columns": Net(
        lambda net, x: functional.linear(x.flatten(1), (net.w * 2)[:, :48]), w=(6, 60)
    ),
    # tasks of different numbers need one element
    "twice in a layer": Net(
        lambda net, x: net.conv(x) * channels(net.s) + channels(net.s.flip(0)), s=(6,)
    ),
    "twice, shuffled": Net(
        lambda net, x: (
            functional.channel_shuffle(net.conv(x) * channels(net.s), 2) * channels(net.s)
        ),
        s=(6,),
    ),
    "two layers, one shuffled": Net(
        lambda net, x: (
            functional.channel_shuffle(net.conv(x), 2) * channels(net.s),
            net.other(x) * channels(net.s),
        ),
        s=(6,),
    ),
    # and where they do not
    "thirds": Net(
        lambda net, x: [functional.conv2d(x, one) for one in net.w.chunk(3)], w=(12, 3, 1, 1)
    ),
    "scales and offsets": Net(
        lambda net, x: functional.batch_norm(net.conv(x), None, None, net.p[0], net.p[1], True),
        p=(2, 6),
    ),
}


@cache
def traced(name: str) -> tuple[Any, ...]:
    torch.manual_seed(0)
    model, inputs = MODELS[name].double(), [torch.randn(IMAGE, dtype=torch.float64)]
    return model, inputs, *placements.traced_model(model, inputs)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "grain"),
    [
        *((name, "fine") for name in MODELS),
        *(pytest.param(name, "coarse", marks=pytest.mark.full) for name in [*MODELS][::4]),
    ],
)
def test_each_element_is_held_once(name, grain):
    model, inputs, traced_model, graph = traced(name)
    for seed in range(2):
        plan = placements.of_single_tasks(
            traced_model, graph, Modelling(grain=grain), 2 + seed, seed
        )
        placed = placements.check_equal(model, inputs, plan, seed)
        assert disagreements(placed.report(2), placed) == ()


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["thirds", "scales and offsets", "alternating"])
def test_pieces_that_no_two_tasks_share_are_divided(name):
    _, _, _, graph = traced(name)
    assert {layer.kind for layer in graph.layers[1:-1]} == {"dense"}


def test_a_process_alone_knows_what_no_part_uses():
    model, _, traced_model, graph = traced("every other")
    plan = placements.of_single_tasks(traced_model, graph, Modelling(), 3, 0)
    alone, whole = place(model, plan, parts=[0]), place(model, plan)
    keys = [{held.key for held in one.programs.slices[0].values()} for one in (alone, whole)]
    assert keys[0] == keys[1]
    idle = {
        name: held for name, held in alone.programs.slices[0].items() if name.startswith("unused.")
    }
    assert idle["unused.s"].numbers.tolist() == [0, 2, 4, 6, 8, 10, 12]
