"""Convolutions with a norm of the channels between them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import nn

SAMPLES = 3
NORMS = ("layer", "rms", "group", "tokens", "plain")


@dataclass(frozen=True)
class Norm:
    """A norm between two layers, of maps or of tokens."""

    kind: str
    channels: int
    groups: int = 1
    residual: bool = False
    joined: bool = False  # of maps of two layers, one after the other
    twice: bool = False  # the same norm for two maps
    flattened: bool = False


@st.composite
def norms(draw: st.DrawFn) -> Norm:
    kind, groups = draw(st.sampled_from(NORMS)), 1
    if kind == "group":
        groups = draw(st.integers(1, 3))
    channels = groups * draw(st.integers(5, 9))
    return Norm(kind, channels, groups, *(draw(st.booleans()) for _ in range(4)))


class Normed(nn.Module):
    """A convolution, a norm of its channels, and a convolution that reads all of these."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.norm, own = norm, norm.channels
        self.first, self.second = nn.Conv2d(3, own, 1), nn.Conv2d(3, own, 3, padding=1)
        width = own * (1 + norm.joined)
        if norm.kind == "group":
            self.normalise: nn.Module = nn.GroupNorm(norm.groups, width)
        elif norm.flattened and norm.kind == "layer":
            self.normalise = nn.LayerNorm([width, 4, 2])
        elif norm.kind == "rms":
            self.normalise = nn.RMSNorm(width)
        else:
            self.normalise = nn.LayerNorm(width, elementwise_affine=norm.kind != "plain")
        for vector in self.normalise.parameters():
            nn.init.normal_(vector)
        self.last = nn.Conv2d(width, 4, 1)

    def forward(self, x):
        maps = self.first(x) + 3
        other = self.second(x).tanh()
        if self.norm.joined:
            maps = torch.cat([maps, other], 1)
        normed = self.normed(maps)
        if self.norm.twice and not self.norm.joined:
            normed = normed * self.normed(other)
        if self.norm.residual:
            normed = normed.relu() + maps
        return self.last(normed).mean((2, 3))

    def normed(self, maps):
        if self.norm.kind == "group" or (self.norm.kind == "layer" and self.norm.flattened):
            return self.normalise(maps)
        if self.norm.kind == "tokens":
            return self.normalise(maps.flatten(2).transpose(1, 2)).transpose(1, 2).view(maps.shape)
        return self.normalise(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def images() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(SAMPLES, 3, 4, 2, dtype=torch.float64)


def normed(norm: Norm) -> Normed:
    torch.manual_seed(0)
    return Normed(norm).double()
