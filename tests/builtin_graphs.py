"""The built-in models on small images: each traced once, in the process that tests it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import TracedModel, example_inputs, trace
from hgpart.zoo import load_model

# A chain, residual adds, branches.
REPRESENTATIVE = ("lenet5", "resnet18", "squeezenet1_1")

# Those that take longest.
DEEP = ("densenet121", "inception_resnet_v2", "resnet1001", "densenet1000")

# One of each family: the others have the same layers, more of them or in other sizes.
FAMILIES = (
    *("lenet5", "alexnet", "vgg11_bn", "resnet18", "resnet50", "squeezenet1_1", "googlenet"),
    *("inception_v3", "inception_resnet_v2", "densenet121", "mobilenet_v2", "efficientnet_b0"),
    *("shufflenet_v2_x1_0", "unet"),
)

# Models of unlike layers, for tests that compute each layer.
UNLIKE = ("lenet5", "dense", "efficientnet_b0", "shufflenet_v2_x1_0", "unet")

# The smallest images that a model can take, and others whose last maps hold more than one pixel.
IMAGES = {
    "lenet5": (1, 32, 32),
    "alexnet": (3, 64, 64),
    "inception_v3": (3, 107, 107),
    "inception_resnet_v2": (3, 107, 107),
    "unet": (3, 32, 32),
}


def each_model(
    *more: Any, names: Iterable[str] | None = None, quick: Collection[str] = REPRESENTATIVE
) -> list[Any]:
    """Parameters of a test of built-in models: the `quick` ones, the others in `pytest -m full`."""
    return [
        pytest.param(
            name,
            *more,
            marks=[] if name in quick else [pytest.mark.full, *[pytest.mark.long] * (name in DEEP)],
        )
        for name in (FAMILIES if names is None else names)
    ]


class Dense(nn.Module):
    """A norm of maps that are concatenated is a layer of its own, as all over densenet121."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.more = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3, padding=1)
        self.norm, self.narrow = nn.BatchNorm2d(12), nn.Conv2d(12, 6, 1)
        self.last, self.head = nn.BatchNorm2d(6), nn.Linear(6, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.stem(image)
        maps = self.norm(torch.cat([maps, self.more(maps)], 1)).relu()
        maps = nn.functional.avg_pool2d(self.narrow(maps), 2)
        return self.head(self.last(maps).relu().mean((2, 3)))


def unlike(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """One of `UNLIKE` on the meta device, as the commands have it, and the size of its images."""
    if name == "dense":
        return Dense().to("meta"), (3, 16, 16)
    return load_model(name, device="meta")[0], IMAGES.get(name, (3, 64, 64))


@cache
def builtin_graph(name: str) -> tuple[TracedModel, ChannelGraph]:
    """Trace on the CPU, so that operators can run, but with weights that nobody touches."""
    model, _ = load_model(name, device="meta")
    model = model.to_empty(device="cpu")
    traced = trace(model, example_inputs(model, IMAGES.get(name, (3, 64, 64))))
    return traced, channel_graph(traced)


@cache
def full_size_graph(name: str) -> ChannelGraph:
    """The layers of a model for images of its default size."""
    model, shape = load_model(name, device="meta")
    return channel_graph(trace(model, example_inputs(model, shape)))
