"""Windows of each operator against what autograd finds, and what ends bands, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from row_dependence import check_rows, rows_of, said
from torch import Tensor
from torch.nn import functional

Function = Callable[[Tensor], Tensor]


def weight(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.float64)


def resized(**options: Any) -> Function:
    return lambda x: functional.interpolate(x, **options)


# name: (shape of a sample, function, rows of the result)
LOCAL: dict[str, tuple[tuple[int, ...], Function, int]] = {
    "conv1d": ((2, 9), lambda x: functional.conv1d(x, weight(2, 2, 4), None, 2, 3), 6),
    "conv2d": (
        (2, 9, 5),
        lambda x: functional.conv2d(x, weight(2, 2, 3, 2), None, (2, 1), (2, 0), (2, 1)),
        5,
    ),
    "conv3d": ((2, 7, 4, 4), lambda x: functional.conv3d(x, weight(2, 2, 2, 3, 3)), 6),
    "padding same": (
        (2, 9, 3),
        lambda x: functional.conv2d(x, weight(2, 2, 4, 1), None, 1, "same"),
        9,
    ),
    "padding valid": (
        (2, 9, 3),
        lambda x: functional.conv2d(x, weight(2, 2, 4, 1), None, 1, "valid"),
        6,
    ),
    "depthwise": ((2, 9, 3), lambda x: functional.conv2d(x, weight(2, 1, 3, 1), groups=2), 7),
    "transposed 1d": (
        (2, 5),
        lambda x: functional.conv_transpose1d(x, weight(2, 2, 3), None, 2, 1, 1),
        10,
    ),
    "transposed 2d": (
        (2, 5, 3),
        lambda x: functional.conv_transpose2d(x, weight(2, 2, 2, 1), None, (3, 1), 0, (2, 0)),
        16,
    ),
    "transposed 3d": (
        (2, 4, 2, 2),
        lambda x: functional.conv_transpose3d(
            x, weight(2, 2, 3, 1, 1), None, (2, 1, 1), (1, 0, 0), 0, 1, (2, 1, 1)
        ),
        9,
    ),
    "max_pool1d": ((2, 9), lambda x: functional.max_pool1d(x, 3, 2, 1, ceil_mode=True), 5),
    "max_pool2d": (
        (2, 9, 4),
        lambda x: functional.max_pool2d(x, (3, 1), (2, 1), (1, 0), (2, 1)),
        4,
    ),
    "max_pool2d with places": (
        (2, 8, 4),
        lambda x: functional.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True)[0],
        4,
    ),
    "max_pool3d": ((2, 7, 3, 3), lambda x: functional.max_pool3d(x, 2, 2), 3),
    "avg_pool1d": ((2, 9), lambda x: functional.avg_pool1d(x, 4, 2, 2, True, False), 6),
    "avg_pool2d": ((2, 8, 4), lambda x: functional.avg_pool2d(x, 3, 2, 1, True), 5),
    "avg_pool3d": ((2, 7, 3, 3), lambda x: functional.avg_pool3d(x, 3, 1, 1), 7),
    "adaptive_avg_pool1d": ((2, 10), lambda x: functional.adaptive_avg_pool1d(x, 4), 4),
    "adaptive_avg_pool2d": ((2, 10, 4), lambda x: functional.adaptive_avg_pool2d(x, (7, 1)), 7),
    "adaptive_avg_pool2d, more rows": (
        (2, 3, 4),
        lambda x: functional.adaptive_avg_pool2d(x, (7, 2)),
        7,
    ),
    "adaptive_max_pool2d": ((2, 10, 4), lambda x: functional.adaptive_max_pool2d(x, (3, 3)), 3),
    "adaptive_max_pool3d": (
        (2, 6, 3, 3),
        lambda x: functional.adaptive_max_pool3d(x, (4, 1, 1)),
        4,
    ),
    "nearest": ((2, 5, 3), resized(scale_factor=1.7), 8),
    "nearest 1d": ((2, 5), resized(size=12), 12),
    "nearest 3d": ((2, 5, 2, 2), resized(scale_factor=2), 10),
    "nearest-exact": ((2, 9, 3), resized(size=(4, 3), mode="nearest-exact"), 4),
    "nearest-exact 1d": ((2, 9), resized(size=5, mode="nearest-exact"), 5),
    "nearest-exact 3d": ((2, 4, 2, 2), resized(scale_factor=1.5, mode="nearest-exact"), 6),
    "linear": ((2, 9), resized(scale_factor=2, mode="linear"), 18),
    "bilinear": ((2, 9, 4), resized(scale_factor=1.5, mode="bilinear"), 13),
    "bilinear, aligned": ((2, 9, 4), resized(size=(5, 7), mode="bilinear", align_corners=True), 5),
    "bilinear, other scale": (
        (2, 9, 4),
        resized(scale_factor=0.6, mode="bilinear", recompute_scale_factor=True),
        5,
    ),
    "bilinear, antialias": ((2, 16, 4), resized(size=(5, 4), mode="bilinear", antialias=True), 5),
    "bicubic": ((2, 7, 4), resized(scale_factor=2, mode="bicubic"), 14),
    "bicubic, aligned": ((2, 7, 4), resized(size=(13, 4), mode="bicubic", align_corners=True), 13),
    "bicubic, antialias": ((2, 30, 4), resized(size=(7, 4), mode="bicubic", antialias=True), 7),
    "trilinear": ((2, 4, 2, 2), resized(scale_factor=2, mode="trilinear"), 8),
    "area": ((2, 9, 4), resized(size=(4, 4), mode="area"), 4),
    "constant": ((2, 5, 4), lambda x: functional.pad(x, (1, 1, 2, 3), value=4), 10),
    "cut off": ((2, 7, 4), lambda x: functional.pad(x, (0, 0, -2, -1)), 4),
    "reflect": ((2, 5, 4), lambda x: functional.pad(x, (1, 1, 3, 2), "reflect"), 10),
    "reflect 1d": ((2, 5), lambda x: functional.pad(x, (3, 2), "reflect"), 10),
    "replicate": ((2, 5, 4), lambda x: functional.pad(x, (0, 0, 2, 1), "replicate"), 8),
    "replicate 3d": ((2, 5, 4, 2), lambda x: functional.pad(x, (0, 0, 0, 0, 2, 1), "replicate"), 8),
    "circular": ((2, 5, 4), lambda x: functional.pad(x, (0, 0, 2, 1), "circular"), 8),
    "columns alone": ((2, 5, 4), lambda x: functional.pad(x, (2, 2, 0, 0), "reflect"), 5),
    "channels alone": ((2, 5, 4), lambda x: functional.pad(x, (0, 0, 0, 0, 1, 1)).relu(), 5),
    "pixel_unshuffle": ((2, 6, 4), lambda x: functional.pixel_unshuffle(x, 2).exp(), 3),
    "views that unshuffle": (
        (2, 6, 4),
        lambda x: x.view(-1, 2, 3, 2, 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(-1, 8, 3, 2).exp(),
        3,
    ),
    "slices that unshuffle": (
        (2, 6, 4),
        lambda x: torch.cat([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)], 1).exp(),
        3,
    ),
    "maximum of views": ((2, 6, 4), lambda x: x.view(-1, 2, 3, 2, 2, 2).amax((3, 5)), 3),
    "repeated": (
        (2, 3, 4),
        lambda x: x[:, :, :, None, :].expand(-1, 2, 3, 2, 4).reshape(-1, 2, 6, 4).exp(),
        6,
    ),
    "repeat_interleave": ((2, 3, 4), lambda x: x.repeat_interleave(3, 2).exp(), 9),
    "crop": ((2, 9, 4), lambda x: x[:, :, 2:-1:3].exp(), 2),
    "narrow": ((2, 9, 4), lambda x: x.narrow(2, 3, 4).exp(), 4),
    "index_select": ((2, 5, 4), lambda x: x.index_select(2, torch.tensor([4, 0, 0])).exp(), 3),
    "unfold": ((2, 9, 4), lambda x: x.unfold(2, 3, 2).amax(-1), 4),
    "flip": ((2, 5, 4), lambda x: x.flip(2).exp(), 5),
    "roll": ((2, 5, 4), lambda x: x.roll(2, 2).exp(), 5),
    "cat along rows": ((2, 5, 4), lambda x: torch.cat([x, x[:, :, 1:3]], 2).exp(), 7),
    "cat along channels": ((2, 5, 4), lambda x: torch.cat([x, x.flip(2)], 1).exp(), 5),
    "channel shuffle": ((4, 5, 4), lambda x: functional.channel_shuffle(x, 2).exp(), 5),
    "views of channels": (
        (4, 5, 3),
        lambda x: x.view(-1, 2, 2, 5, 3).transpose(1, 2).reshape(-1, 4, 5, 3).exp(),
        5,
    ),
    "chunks of channels": ((4, 5, 3), lambda x: torch.mul(*x.chunk(2, 1)), 5),
    "stack": ((2, 5, 3), lambda x: torch.stack([x, 2 * x], 1).flatten(1, 2).exp(), 5),
    "channels last": (
        (3, 5, 4),
        lambda x: functional.linear(
            functional.layer_norm(x.permute(0, 2, 3, 1), (3,)).exp(), weight(6, 3)
        ).permute(0, 3, 1, 2),
        5,
    ),
    "softmax over channels": ((3, 5, 4), lambda x: x.softmax(1) + x, 5),
    "softmax over columns": ((3, 5, 4), lambda x: x.softmax(3) + x, 5),
    "matmul of columns": ((3, 5, 4), lambda x: x @ weight(4, 6), 5),
    "mean of columns": ((3, 5, 4), lambda x: x.mean(3), 5),
    "sum of channels": ((3, 5, 4), lambda x: x.sum(1, keepdim=True), 5),
    "batch norm": (
        (3, 5, 4),
        lambda x: functional.batch_norm(x, weight(3), weight(3), weight(3), weight(3)),
        5,
    ),
    "broadcast column": ((3, 5, 4), lambda x: x * x[:, :, :, :1], 5),
    "cumsum along columns": ((3, 5, 4), lambda x: x.cumsum(3), 5),
    "lrn": ((3, 5, 4), lambda x: functional.local_response_norm(x, 2), 5),
    # Rows begin anew where those of the image are merged, or all are read.
    "channels and rows": ((2, 5, 4), lambda x: x.flatten(1, 2).exp(), 4),
    "tokens": ((2, 5, 4), lambda x: x.flatten(2).transpose(1, 2).exp(), 20),
    "linear over rows": ((2, 4, 5), lambda x: x.transpose(2, 3) @ weight(4, 3), 5),
    "attention": ((2, 5, 4), lambda x: functional.scaled_dot_product_attention(x, x, x), 5),
    "causal attention": (
        (2, 5, 4),
        lambda x: functional.scaled_dot_product_attention(x, x.exp(), x.sin(), is_causal=True),
        5,
    ),
    "causal attention to itself": (
        (2, 5, 4),
        lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
        5,
    ),
    "x + x transposed": ((2, 4, 4), lambda x: x + x.transpose(2, 3), 4),
    "product of maps": ((2, 5, 4), lambda x: x @ x.transpose(2, 3), 5),
}

# name: (shape of a sample, function, reason)
ENDED: dict[str, tuple[tuple[int, ...], Function, str]] = {
    "flatten": (
        (2, 5, 4),
        lambda x: functional.linear(x.flatten(1), weight(3, 40)),
        "flatten merges rows with other dimensions",
    ),
    "window partition": (
        (2, 6, 4),
        lambda x: x.view(-1, 2, 3, 2, 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(-1, 2, 2, 2).exp(),
        "flatten merges rows with other dimensions",
    ),
    "softmax": ((2, 5, 4), lambda x: x.softmax(2), "softmax needs all rows"),
    "group norm": ((2, 5, 4), lambda x: functional.group_norm(x, 1), "group_norm needs all rows"),
    "instance norm": ((2, 5, 4), functional.instance_norm, "instance_norm needs all rows"),
    "layer norm": (
        (2, 5, 4),
        lambda x: functional.layer_norm(x, (5, 4)),
        "hgpart.layer_statistics needs all rows",
    ),
    "pixel_shuffle": (
        (8, 4, 3),
        lambda x: functional.pixel_shuffle(x, 2).exp(),
        "its channels lie along its rows",
    ),
    "views that shuffle": (
        (8, 4, 3),
        lambda x: x.view(-1, 2, 2, 2, 4, 3).permute(0, 1, 4, 2, 5, 3).reshape(-1, 2, 8, 6).exp(),
        "its channels lie along its rows",
    ),
    "maximum": ((2, 5, 4), lambda x: x.amax((2, 3)), "amax needs all rows"),
    "adaptive maximum": (
        (2, 5, 4),
        lambda x: functional.adaptive_max_pool2d(x, 1),
        "a maximum over all rows",
    ),
    "variance": ((2, 5, 4), lambda x: x.var((2, 3)), "var needs all rows"),
    "cumsum": ((2, 5, 4), lambda x: x.cumsum(2), "cumsum needs all rows"),
    "fractional": (
        (2, 8, 8),
        lambda x: functional.fractional_max_pool2d(x, 2, output_size=4),
        "its windows are drawn",
    ),
    "a weight of rows": (
        (3, 3, 3),
        lambda x: functional.conv2d(x, x),
        "a convolution whose weight is computed from rows",
    ),
    "one row": (
        (2, 5, 4),
        lambda x: functional.conv2d(x, weight(2, 2, 5, 1)),
        "its maps have one row",
    ),
}

# name: (shape of a sample, function, rows that are summed)
SUMMED: dict[str, tuple[tuple[int, ...], Function, int]] = {
    "mean": ((2, 5, 4), lambda x: x.mean((2, 3)), 5),
    "mean of all": ((2, 5, 4), lambda x: x.mean((-2, -1), keepdim=True), 5),
    "sum of rows": ((2, 5, 4), lambda x: x.sum(2), 5),
    "adaptive pooling": ((2, 5, 4), lambda x: functional.adaptive_avg_pool2d(x, 1), 5),
    "pooling of all": ((2, 5, 4), lambda x: functional.avg_pool2d(x, (5, 4)), 5),
    "behind a convolution": (
        (2, 7, 4),
        lambda x: functional.conv2d(x, weight(2, 2, 3, 1)).relu().mean((2, 3)),
        5,
    ),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", LOCAL)
def test_windows_are_those_that_autograd_finds(name: str) -> None:
    shape, function, height = LOCAL[name]
    layers, traced, graph = rows_of(function, *shape)
    assert layers[-2].height == height
    assert [rows.ended_by for rows in layers] == [""] * len(layers)
    check_rows(traced, graph)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ENDED)
def test_what_needs_all_rows_says_why(name: str) -> None:
    shape, function, reason = ENDED[name]
    layers, _, _ = rows_of(function, *shape)
    ended = next(rows for rows in layers if rows.ended_by)
    assert ended.reason.startswith(reason)
    assert ended.height is None
    assert ended.total is None
    assert said(ended)[0] == [[*range(shape[1] if len(shape) > 1 else 0)]]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SUMMED)
def test_sums_of_rows_are_marked(name: str) -> None:
    shape, function, height = SUMMED[name]
    layers, _, _ = rows_of(function, *shape)
    rows = layers[1]
    assert rows.total is not None
    assert (rows.height, rows.total.height) == (None, height)
    assert [item.is_summed for item in rows.reads] == [True]
    (item,) = rows.total.reads
    assert (len(item.windows), item.windows.height) == (height, shape[1])
    assert item.windows.widest == shape[1] - height + 1
    assert rows.reason.endswith("sums all rows, so partial sums can travel")


def test_lp_pooling_reads_what_a_mean_reads() -> None:
    """Autograd finds nothing in the sign that is among its operators."""
    layers, _, _ = rows_of(lambda x: functional.lp_pool2d(x, 2, 3, 2, ceil_mode=True), 2, 8, 4)
    means, _, _ = rows_of(lambda x: functional.avg_pool2d(x, 3, 2, ceil_mode=True), 2, 8, 4)
    pooled = next(rows for rows in layers if rows.height == 4)
    assert said(pooled)[0] == said(means[1])[0]
    assert layers[-2].height == 4


def test_a_map_without_bands_begins_new_ones() -> None:
    """As in the decoder behind a linear layer: each row reads the one band of its source."""

    def decode(x: Tensor) -> Tensor:
        maps = functional.linear(x.flatten(1), weight(24, 20)).view(-1, 2, 3, 4)
        return functional.conv_transpose2d(maps, weight(2, 2, 3, 3), None, 2)

    layers, _, _ = rows_of(decode, 1, 5, 4)
    assert [rows.height for rows in layers] == [5, None, 7, None]
    assert said(layers[2]) == {1: [[0]] * 7}


def test_a_pooled_branch_leaves_the_others_their_bands() -> None:
    """The pooled map is read as a whole by every row, the other one row by row."""

    def gated(x: Tensor) -> Tensor:
        gate = functional.conv2d(x.mean((2, 3), keepdim=True), weight(2, 2, 1, 1)).sigmoid()
        return functional.conv2d(x * gate, weight(3, 2, 3, 3))

    layers, traced, graph = rows_of(gated, 2, 7, 5)
    assert [rows.height for rows in layers] == [7, None, 7, 5, None]  # the gate is in its product
    assert said(layers[2]) == {0: [[row] for row in range(7)], 1: [[0]] * 7}
    check_rows(traced, graph)
