"""A box of what works channel by channel is that box of the whole, and nothing more is computed."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from cut_steps import CHANNELS, Cutter, boxes, divided_channels
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn
from torch.nn import functional


class Scaled(nn.Module):
    """A parameter and a buffer that broadcast, each in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(CHANNELS, 1, 1))
        self.offset = nn.Parameter(torch.rand(1, CHANNELS, 4, 1))
        self.register_buffer("mask", torch.rand(4))

    def forward(self, maps):
        return (maps * self.gain + self.offset) * self.mask + 2


def squeezed(maps):
    return maps * maps.mean((2, 3), keepdim=True).sigmoid()


CHANGES = {
    "relu": torch.relu,
    "hardswish": functional.hardswish,
    "double": lambda maps: maps + maps.tanh(),
    "shifted": lambda maps: maps + torch.cat([maps[:, 6:], maps[:, :6]], 1),
    "one for all": lambda maps: maps * maps[:, :1],
    "add along maps": lambda maps: maps + maps[:, :, :1],
    "gate": squeezed,
    "max pool": nn.MaxPool2d(2),
    "average pool": nn.AvgPool2d(3, 1, 1),
    "adaptive pool": nn.AdaptiveAvgPool2d(2),
    "pad": lambda maps: functional.pad(maps, (1, 0, 0, 2)),
    "upsample": lambda maps: functional.interpolate(maps, scale_factor=2.0),
    "batch norm": nn.BatchNorm2d(CHANNELS),
    "batch norm of features": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(CHANNELS * 16)),
    "prelu": nn.PReLU(),
    "prelu of channels": nn.PReLU(CHANNELS),
    "scaled": Scaled(),
    "clamp of shuffled": lambda maps: nn.ChannelShuffle(3)(maps).clamp(-0.5, 0.5),
    "chain": nn.Sequential(nn.BatchNorm2d(CHANNELS), nn.PReLU(CHANNELS), nn.MaxPool2d(2)),
    "where": lambda maps: torch.where(maps > 0, maps, 0.1 * maps),
    "sum of maps": lambda maps: maps.sum((2, 3)),
    "sum of channels": lambda maps: maps.sum(1),  # not channel by channel: taken from the whole
    "group norm": nn.GroupNorm(3, CHANNELS),
    "softmax of channels": lambda maps: maps.softmax(1),
}


@cache
def cutter() -> Cutter:
    return Cutter(CHANGES)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CHANGES)
@given(data=st.data())
def test_a_box_is_that_of_the_whole(name, data):
    cut = cutter()
    cut.check(name, data.draw(boxes(cut.fixed(name))), data.draw(divided_channels()))


class Sizes(fx.Interpreter):
    """Counts the elements that each operator makes."""

    def run_node(self, n):
        made = super().run_node(n)
        if n.op == "call_function" and isinstance(made, torch.Tensor):
            self.largest = max(getattr(self, "largest", 0), made.numel())
        return made


@pytest.mark.parametrize(
    "name", ["relu", "double", "batch norm", "prelu of channels", "scaled", "where"]
)
def test_computes_only_the_channels_that_are_wanted(name):
    wanted = np.array([2, 3, 9])
    cut = cutter()
    module, names = cut.program(name, {1: wanted}, [np.arange(CHANNELS)])
    assert names == ("piece_0",)
    sizes = Sizes(module)
    found = sizes.run(torch.randn(3, CHANNELS, 4, 4, dtype=torch.float64))
    assert sizes.largest == found.numel() == 3 * len(wanted) * 16


@pytest.mark.parametrize("name", ["batch norm", "prelu of channels", "chain"])
def test_holds_only_the_slices_of_the_channels_that_are_wanted(name):
    wanted = np.array([2, 3, 9])
    cut = cutter()
    step = cut.begin([np.arange(CHANNELS)])
    step.value(cut.results[name], {1: wanted})
    assert step.slices
    for held in step.slices.values():
        assert held.positions[0].tolist() == wanted.tolist()
