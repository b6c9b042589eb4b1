"""A model with keyword inputs, a flag and a number, and calls of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Masked(nn.Module):
    """Takes an image and, by name alone, a mask of it, weights of channels, a number and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, image, *, mask=None, gains=(), scale=1.0, twice=False):
        maps = self.norm(self.first(image)) * scale
        for gain in gains:
            maps = maps * gain
        if mask is not None:
            maps = maps * mask
        maps = self.second(maps.relu()).mean((2, 3))
        return (self.head(maps), maps) if twice else self.head(maps)


def example(samples: int, *names: str, seed: int = 0) -> dict[str, Any]:
    """An image and other inputs of the model in float64, by name: in an order of their own."""
    torch.manual_seed(seed)
    found = {
        "scale": 0.5,
        "twice": True,
        "mask": torch.rand(samples, 1, 8, 8, dtype=torch.float64),
        "gains": [
            torch.rand(6, 1, 1, dtype=torch.float64),
            torch.rand(samples, 6, 1, 1, dtype=torch.float64),
        ],
        "image": torch.randn(samples, 3, 8, 8, dtype=torch.float64),
    }
    return {name: value for name, value in found.items() if name in (*names, "image")}
