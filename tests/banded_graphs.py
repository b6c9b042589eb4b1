"""Small networks whose layers have rows, and how their hypergraphs may be in tiles."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from attention_blocks import Attention, Patches
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import hgpart
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph

BATCH = 4


class Net(nn.Module):
    """Heights that go down and up again, a skip between layers, a mean over rows in the middle
    (squeeze and excitation), and a head that has no rows, or a mean of all.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        kernel, last = random.integers(1, 6, 2).tolist()
        stride, dilation = random.integers(1, 3, 2).tolist()
        self.first = nn.Conv2d(3, 4, kernel, stride, padding=int(random.integers(0, 3)))
        self.norm, self.second = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2) if random.integers(2) else nn.Identity()
        self.third = nn.Conv2d(4, 6, last, dilation=dilation, padding=4)
        self.up = nn.Upsample(scale_factor=2) if random.integers(2) else nn.Identity()
        self.spread, self.head = nn.ConvTranspose2d(6, 2, 3, stride=2), nn.LazyLinear(5)
        self.excite = nn.Conv2d(6, 6, 1) if random.integers(2) else None
        self.last = nn.AdaptiveAvgPool2d(1) if random.integers(2) else nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.pool(self.norm(self.first(images)).relu())
        maps = maps + self.second(maps)
        maps = self.third(maps)
        if self.excite is not None:
            maps = maps * self.excite(maps.mean((2, 3), keepdim=True)).sigmoid()
        return self.head(self.last(self.spread(self.up(maps))).flatten(1))


class Halves(nn.Module):
    """Halves of channels are read in different rows, by a layer with or without tied weights."""

    def __init__(self, *, is_tied: bool = False, has_norm: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
        self.activation = nn.PReLU(2) if is_tied else nn.Identity()
        self.norm = nn.BatchNorm2d(2) if has_norm else nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.first(images)
        swapped = maps[:, 2:][:, :, torch.arange(maps.shape[2]) ^ 1]  # rows, in pairs
        once = self.activation(self.norm(maps[:, :2] * swapped))
        other = self.activation(maps[:, [1, 0]] * torch.roll(maps[:, [3, 2]], 3, 2))
        pooled = functional.max_pool2d(once, (1, 1), (2, 1))  # of every other row
        return self.last(torch.cat([pooled, other[:, :, ::2]], 1))


class OfInput(nn.Module):
    """Channels of an input, which is one task, are read in different rows by different tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(2, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        ones, rolled = torch.ones_like(images[:, :1]), torch.roll(images[:, 1:2], 3, 2)
        return self.last(torch.cat([images[:, :1], ones], 1) * torch.cat([ones, rolled], 1))


class Shifted(nn.Module):
    """Each channel is read in other rows than the others, by one layer."""

    def __init__(self, channels: int = 7) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, channels, 1), nn.Conv2d(1, 2, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.first(images)
        total = maps[:, :1]
        for channel in range(1, maps.shape[1]):
            total = total + torch.roll(maps[:, channel : channel + 1], channel, 2)
        return self.last(total)


READ_APART = [Halves(), Halves(is_tied=True), Halves(has_norm=True), OfInput(), Shifted()]
ATTENTIONS = [  # of the seeds behind those of `Net`
    Attention(heads=2),
    Attention(heads=2, products="matmul", mask="added"),
    Attention(products="bmm", sharing=2),
    Attention(heads=2, projection="mixed"),
    Attention(heads=2, projection="apart", products="einsum"),
    Attention(heads=1, width=4),
]
LAST_NET = 9


@cache
def graph_of(seed: int) -> ChannelGraph:
    """A network for each seed from 0 to 20; the last ones read channels in different rows."""
    model, images = Net(seed), torch.randn(BATCH, 3, 14, 10)
    if seed > LAST_NET + len(READ_APART):
        attention, images = ATTENTIONS[seed - 21], images[:3, :, :4, :4]
        model = Patches(attention, is_pooled=bool(seed % 2))
    elif seed > LAST_NET:
        model = READ_APART[seed - LAST_NET - 1]
    model(images)
    return hgpart.channel_graph(hgpart.trace(model, (images,)))


@st.composite
def modellings(draw: st.DrawFn, grains: tuple[str, ...] = ("coarse",)) -> Modelling:
    return Modelling(
        grain=draw(st.sampled_from(grains)),
        batch_size=BATCH,
        slices=draw(st.integers(1, 3)),
        bands=draw(st.integers(2, 6)),
        training=draw(st.booleans()),
        norms=draw(st.sampled_from(["slice", "batch"])),
        input_vertex=draw(st.booleans()),
    )


def random_parts(model: CnnHypergraph, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 3, model.vertices).astype(np.int32)
