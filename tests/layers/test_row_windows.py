"""Rows of layers against what autograd finds, and in words."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from attention_blocks import TOKENS, Attention, Patches
from banded_graphs import READ_APART, OfInput
from builtin_graphs import builtin_graph, each_model, unlike
from hypothesis import given
from hypothesis import strategies as st
from row_dependence import check_rows, said, traced_graph
from torch import Tensor, nn
from torch.nn import functional

from hgpart.errors import ArgumentError, TraceError
from hgpart.layers.channel_graph import ChannelGraph, LayerRows
from hgpart.layers.layering import channel_graph
from hgpart.operators import table
from hgpart.operators.channelwise import same_place
from hgpart.operators.effects import Call
from hgpart.operators.moving import moved
from hgpart.operators.rows import AllRows, Local, Summed
from hgpart.operators.table import channel_rule
from hgpart.operators.windows import Windows
from hgpart.tracing.traced_model import trace

CHANNELS, WIDTH, MIN, TALLEST = 4, 2, 2, 26


class Net(nn.Module):
    """Operators one after another, some of which read an earlier map as well.

    They leave columns alone, so that heights may be anything.
    """

    def __init__(self, steps: list[Any]) -> None:
        super().__init__()
        self.steps = steps
        self.weights = nn.ParameterList(nn.Parameter(torch.rand(size)) for _, size in steps if size)

    def forward(self, image: Tensor) -> Tensor:
        maps, weights = [image], iter(self.weights)
        for step, size in self.steps:
            result = step(maps, next(weights)) if size else step(maps, None)
            maps.append(result)
        return maps[-1]


@st.composite
def networks(draw: st.DrawFn) -> tuple[Net, int]:
    first = height = draw(st.integers(5, 16))
    heights, steps = [height], []
    for _ in range(draw(st.integers(1, 6))):
        make, size = draw(st.sampled_from([*STEPS.values()]))(draw, heights)
        weight = torch.ones(size) if size else None
        blank = [torch.zeros(1, CHANNELS, h, WIDTH) for h in heights]
        try:
            result = make(blank, weight)
        except RuntimeError:  # a kernel larger than the map
            continue
        if MIN <= result.shape[2] <= TALLEST and result.shape[1] == CHANNELS:
            heights.append(result.shape[2])
            steps.append((make, size))
    return Net(steps or [(lambda maps, _: maps[-1] * 2, None)]), first


def conv(draw: Any, heights: Any) -> Any:
    k, s, d, p = (draw(st.integers(low, high)) for low, high in ((1, 7), (1, 3), (1, 2), (0, 4)))
    groups = draw(st.sampled_from([1, CHANNELS]))
    return (
        lambda maps, w: functional.conv2d(maps[-1], w, None, (s, 1), (p, 0), (d, 1), groups),
        (CHANNELS, CHANNELS // groups, k, 1),
    )


def transposed(draw: Any, heights: Any) -> Any:
    k, s, d, p = (draw(st.integers(low, high)) for low, high in ((1, 5), (1, 3), (1, 2), (0, 2)))
    more = draw(st.integers(0, max(s, d) - 1))
    return (
        lambda maps, w: functional.conv_transpose2d(
            maps[-1], w, None, (s, 1), (p, 0), (more, 0), 1, (d, 1)
        ),
        (CHANNELS, CHANNELS, k, 1),
    )


def pool(draw: Any, heights: Any) -> Any:
    k, s = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    p, d, ceil = draw(st.integers(0, k // 2)), draw(st.integers(1, 2)), draw(st.booleans())
    if draw(st.booleans()):
        return lambda maps, _: functional.max_pool2d(
            maps[-1], (k, 1), (s, 1), (p, 0), (d, 1), ceil
        ), None
    counts = draw(st.booleans())
    return lambda maps, _: functional.avg_pool2d(
        maps[-1], (k, 1), (s, 1), (p, 0), ceil, counts
    ), None


def adaptive(draw: Any, heights: Any) -> Any:
    size, of = (
        draw(st.integers(2, 11)),
        draw(st.sampled_from([functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d])),
    )
    return lambda maps, _: of(maps[-1], (size, WIDTH)), None


def resized(draw: Any, heights: Any) -> Any:
    mode = draw(st.sampled_from(["nearest", "nearest-exact", "bilinear", "bicubic"]))
    more: dict[str, Any] = {"mode": mode}
    if mode.startswith("bi"):
        more["align_corners"] = draw(st.booleans())
        more["antialias"] = draw(st.booleans())
    scale = draw(st.sampled_from([0.4, 0.5, 1.3, 1.7, 2.0]))
    # Where a scale leaves the size, torch's gradients are not those of what it computes.
    if int(heights[-1] * scale) == heights[-1] or draw(st.booleans()):
        more["size"] = (draw(st.integers(1, 20)), WIDTH)
    else:
        more["scale_factor"] = (scale, 1.0)
    return lambda maps, _: functional.interpolate(maps[-1], **more), None


def padded(draw: Any, heights: Any) -> Any:
    mode = draw(st.sampled_from(["constant", "reflect", "replicate", "circular"]))
    least = 0 if mode == "circular" else -2
    widths = (0, 0, draw(st.integers(least, 4)), draw(st.integers(least, 4)))
    return lambda maps, _: functional.pad(maps[-1], widths, mode), None


def cropped(draw: Any, heights: Any) -> Any:
    begin, step = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    end = draw(st.integers(begin + 1, begin + 12))
    return lambda maps, _: maps[-1][:, :, begin:end:step] * 2, None


def turned(draw: Any, heights: Any) -> Any:
    by = draw(st.integers(-3, 3))
    return draw(
        st.sampled_from(
            [
                lambda maps, _: maps[-1].flip(2).abs(),
                lambda maps, _: maps[-1].roll(by, 2),
                lambda maps, _: maps[-1].repeat_interleave(2, 2) * 2,
                lambda maps, _: maps[-1].permute(0, 3, 2, 1).relu().permute(0, 3, 2, 1),
                lambda maps, _: functional.channel_shuffle(maps[-1], 2).relu(),
            ]
        )
    ), None


def shuffled(draw: Any, heights: Any) -> Any:
    """Rows come from channels, or go into them."""
    if draw(st.booleans()):
        return (
            lambda maps, w: functional.conv2d(functional.pixel_shuffle(maps[-1], 2)[..., :2], w),
            (CHANNELS, 1, 3, 1),
        )
    return (
        lambda maps, w: functional.conv2d(
            functional.pixel_unshuffle(functional.pad(maps[-1], (0, 2, 0, 0)), 2), w
        ),
        (CHANNELS, 4 * CHANNELS, 1, 1),
    )


def joined(draw: Any, heights: Any) -> Any:
    at = draw(st.integers(0, len(heights) - 1))
    if draw(st.booleans()):
        return lambda maps, _: torch.cat([maps[at], maps[-1]], 2).relu(), None
    return (
        lambda maps, w: functional.conv2d(
            torch.cat([functional.interpolate(maps[at], maps[-1].shape[2:]), maps[-1]], 1), w
        ),
        (CHANNELS, 2 * CHANNELS, 1, 1),
    )


def added(draw: Any, heights: Any) -> Any:
    at, mode = (
        draw(st.integers(0, len(heights) - 1)),
        draw(st.sampled_from(["nearest", "bilinear"])),
    )
    return (
        lambda maps, _: maps[-1] + functional.interpolate(maps[at], maps[-1].shape[2:], mode=mode),
        None,
    )


STEPS = {
    step.__name__: step
    for step in (
        *(conv, transposed, pool, adaptive, resized, padded, cropped, turned, shuffled),
        *(joined, added),
    )
}


@given(networks())
def test_rows_are_exactly_those_that_a_row_depends_on(network: tuple[Net, int]) -> None:
    model, height = network
    traced, graph = traced_graph(model, CHANNELS, height, WIDTH)
    reasons = {rows.reason for rows in graph.layer_rows if rows.ended_by}
    assert reasons <= {"its channels lie along its rows"}  # behind a shuffle
    check_rows(traced, graph)


# Of models on small images: layers with rows, all layers, most and fewest rows, sums over rows.
COUNTS = {
    "lenet5": (3, 7, 32, 5, 0),
    "alexnet": (5, 10, 64, 3, 0),
    "vgg11_bn": (9, 13, 64, 4, 0),
    "resnet18": (20, 23, 64, 2, 1),
    "resnet50": (53, 56, 64, 2, 1),
    "squeezenet1_1": (29, 31, 64, 3, 1),
    "googlenet": (69, 72, 64, 2, 1),
    "inception_v3": (106, 109, 107, 2, 1),
    "inception_resnet_v2": (247, 250, 107, 2, 1),
    "densenet121": (182, 185, 64, 2, 1),
    "mobilenet_v2": (52, 55, 64, 2, 1),
    "efficientnet_b0": (74, 110, 64, 2, 17),
    "shufflenet_v2_x1_0": (56, 59, 64, 2, 1),
    "unet": (28, 29, 32, 2, 0),
}


@pytest.mark.long
@pytest.mark.parametrize("name", each_model())
def test_layers_of_builtin_models_have_rows(name: str) -> None:
    _, graph = builtin_graph(name)
    heights = [rows.height for rows in graph.layer_rows if rows.height is not None]
    sums = sum(rows.total is not None for rows in graph.layer_rows)
    assert (len(heights), len(graph.layers), max(heights), min(heights), sums) == COUNTS[name]
    for layer, rows in zip(graph.layers, graph.layer_rows, strict=True):
        assert tuple(dict.fromkeys(item.source for item in rows.reads)) == graph.sources(layer)
        for item in rows.reads:
            assert len(item.windows) == (rows.height or 1)
            assert item.windows.height == (graph.layer_rows[item.source].height or 1)
        assert bool(rows.reason) == (rows.height is None)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("name", ["dense", "shufflenet_v2_x1_0", "unet"])
def test_rows_of_models_are_exactly_those_that_a_row_depends_on(name: str) -> None:
    model, shape = unlike(name)
    model = model.to_empty(device="cpu").eval()
    for weight in (*model.parameters(), *model.buffers()):
        weight.data.fill_(1)
    traced, graph = traced_graph(model, *shape)
    check_rows(traced, graph)


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        return self.head(self.encoder(tokens)[:, 0])


class ScaledByMeans(nn.Module):
    """Maps times their means over samples and positions, a vector of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.first(images)
        return self.last(maps * (1 + maps.mean((0, 2, 3)).view(1, -1, 1, 1)))


def test_a_mean_over_samples_and_rows_is_no_error() -> None:
    """An IndexError ended whatever looked at rows."""
    traced = trace(ScaledByMeans(), [torch.randn(4, 3, 12, 6)])
    assert channel_graph(traced).most_rows == 12


def test_tokens_of_a_transformer_begin_new_rows() -> None:
    _, graph = traced_graph(VisionTransformer(), 3, 16, 16)
    heights = {
        layer.name: rows.height for layer, rows in zip(graph.layers, graph.layer_rows, strict=True)
    }
    assert (heights.pop("image"), heights.pop("patches")) == (16, 4)
    assert (heights.pop("head"), heights.pop("output")) == (None, None)
    assert set(heights.values()) == {16}


def test_a_model_without_rows_has_no_bands() -> None:
    _, graph = traced_graph(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), 6)
    assert [rows.height for rows in graph.layer_rows] == [None] * len(graph.layers)
    assert {rows.ended_by for rows in graph.layer_rows} == {""}
    reasons = [rows.reason for rows in graph.layer_rows]
    assert reasons == [
        "its maps have no rows",
        "reads input, without bands",
        "reads 0, without bands",
        "the model's result",
    ]


def test_two_inputs_may_have_other_rows() -> None:
    class Two(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left + functional.max_pool2d(right, 2)

    example = (torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 8, 10))
    graph = channel_graph(trace(Two(), example))
    assert [rows.height for rows in graph.layer_rows] == [4, 8, 4, None]
    assert said(graph.layer_rows[2])[1] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert said(graph.layer_rows[2])[0] == [[0], [1], [2], [3]]


def test_a_parameter_is_read_as_a_whole() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.zeros(1, 1, 4, 5))

        def forward(self, image: Tensor) -> Tensor:
            return image + self.places

    _, graph = traced_graph(Positions(), 3, 4, 5)
    parameter = next(at for at, layer in enumerate(graph.layers) if layer.kind == "parameter")
    (own,) = (rows for rows in graph.layer_rows if len(rows.reads) == 2)
    assert said(own)[parameter] == [[0]] * 4
    assert graph.layer_rows[parameter].reason == "a parameter"


def test_a_graph_that_was_not_traced_has_no_rows() -> None:
    _, graph = traced_graph(nn.Conv2d(3, 4, 3), 3, 6, 6)
    bare = ChannelGraph(graph.layers, graph.ids)
    assert [rows.height for rows in bare.layer_rows] == [None] * len(graph.layers)
    assert bare.fingerprint == graph.fingerprint


def test_rows_that_are_known_travel_with_a_graph_to_another_process() -> None:
    """Without the traced model that tells them, which can't be pickled."""
    _, graph = traced_graph(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2)), 3, 6, 6
    )
    with pytest.raises(ArgumentError, match="rows of a graph from another process"):
        _ = pickle.loads(pickle.dumps(graph)).layer_rows
    assert graph.layer_rows
    sent = pickle.loads(pickle.dumps(graph))
    assert [rows.height for rows in sent.layer_rows] == [6, 4, None, None]
    assert [*map(said, sent.layer_rows)] == [*map(said, graph.layer_rows)]


# ------------------------------------------------------------------ rules of users


@torch.library.custom_op("row_tests::blur", mutates_args=())
def blur(x: Tensor, reach: int) -> Tensor:
    return functional.avg_pool2d(x, (2 * reach + 1, 1), 1, (reach, 0))


@torch.library.custom_op("row_tests::turned", mutates_args=())
def turned_round(x: Tensor) -> Tensor:
    return x.flip(2)


blur.register_fake(lambda x, reach: torch.empty_like(x))
turned_round.register_fake(torch.empty_like)
operators = torch.ops.row_tests


class Blurred(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return operators.blur(2 * image, 1)


def blurred(call: Call) -> Local:
    reach, rows = call.argument("reach"), call.args[0]
    height = rows.height
    windows = Windows.sliding(2 * reach + 1, height, height, padding=reach)
    return Local(rows.dim, (windows,))


def rows_of_blurred() -> LayerRows:
    return traced_graph(Blurred(), 3, 5, 4)[1].layer_rows[-2]


def test_a_rule_of_the_user_says_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_users", {})
    assert rows_of_blurred().reason == "no rule for row_tests.blur"
    channel_rule(operators.blur)(same_place)  # channel by channel does not mean row by row
    assert rows_of_blurred().reason == "no rule for row_tests.blur"
    channel_rule(operators.blur, rows=blurred)(same_place)
    assert said(rows_of_blurred()) == {0: [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4]]}
    channel_rule(operators.blur, rows=same_place)(same_place)
    assert said(rows_of_blurred()) == {0: [[row] for row in range(5)]}
    channel_rule(operators.blur, rows=lambda call: AllRows("blurs all"))(same_place)
    assert rows_of_blurred().reason == "blurs all"
    channel_rule(operators.blur, rows=lambda call: Summed(averages=False))(same_place)
    assert rows_of_blurred().total is not None


def test_a_moving_operator_of_the_user_moves_rows_if_its_rule_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Turned(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return 2 * operators.turned(image)

    def turned_rows() -> LayerRows:
        return traced_graph(Turned(), 3, 4, 5)[1].layer_rows[1]

    monkeypatch.setattr(table, "_users", {})
    channel_rule(operators.turned)(moved)
    order = np.arange(4)
    of_all = {0: [order.tolist()] * 4}  # rows begin anew behind it
    assert said(turned_rows()) == of_all
    windows = Windows.of_pairs(order, order[::-1], 4, 4)
    channel_rule(operators.turned, rows=lambda call: Local(2, (windows,)))(moved)
    assert said(turned_rows()) == {0: [[3], [2], [1], [0]]}
    channel_rule(operators.turned, rows=lambda call: AllRows("turns round"))(moved)
    assert said(turned_rows()) == of_all


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda call: 1 / 0, "its rule for rows <lambda> raises ZeroDivisionError"),
        (lambda call: 5, "returns 5: accepted are Local, Summed and AllRows"),
        (
            lambda call: Local(2, (Windows.identity(4),)),
            "windows of 4 rows on 4 along dimension 2: accepted are windows of 5 rows on 5",
        ),
        (lambda call: Local(7, ()), "returns windows of no operand along dimension 7"),
    ],
)
def test_a_wrong_rule_of_the_user_is_told(
    rule: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_users", {})
    channel_rule(operators.blur, rows=rule)(same_place)
    with pytest.raises(TraceError, match=message):
        rows_of_blurred()


@pytest.mark.few(2)
@pytest.mark.parametrize("is_pooled", [True, False])
@pytest.mark.parametrize(
    "attention",
    [
        Attention(),
        Attention(products="matmul", mask="added"),
        Attention(products="bmm", sharing=2),
        Attention(heads=1, products="einsum"),
    ],
)
def test_tokens_are_rows(attention, is_pooled):
    torch.manual_seed(0)
    traced, graph = traced_graph(Patches(attention, is_pooled), 3, 4, 4)
    check_rows(traced, graph)
    heights = {
        layer.name: rows.height for layer, rows in zip(graph.layers, graph.layer_rows, strict=True)
    }
    assert heights["patches"] == heights["block.project"] == TOKENS


@pytest.mark.parametrize("model", READ_APART, ids=["plain", "tied", "norm", "input", "many"])
def test_channels_of_a_layer_are_told_apart_where_they_are_read_in_different_rows(model):
    traced, graph = traced_graph(copy.deepcopy(model), 3, 8, 5)
    check_rows(traced, graph)
    apart = [item.channels for rows in graph.layer_rows for item in rows.reads]
    is_divided = any(channels is not None for channels in apart)
    tied = len(graph.tied_layers) > 0
    assert is_divided != (tied or isinstance(model, OfInput))
