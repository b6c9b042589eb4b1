"""Rows of layers against what autograd finds, and in words."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from row_dependence import check_rows, traced_graph
from torch import Tensor, nn
from torch.nn import functional

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
    # Where sizes are equal, antialiasing copies, but its gradient is another one's.
    if more.get("antialias") or draw(st.booleans()):
        more["size"] = (draw(st.integers(1, 20)), WIDTH)
    else:
        more["scale_factor"] = (draw(st.sampled_from([0.4, 0.5, 1.3, 1.7, 2.0])), 1.0)
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
    assert {rows.ended_by for rows in graph.layer_rows} == {""}
    check_rows(traced, graph)
