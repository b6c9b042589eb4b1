"""A model that goes by the size of its batch, and batches for it."""

from __future__ import annotations

import torch
from torch import nn


class Branching(nn.Module):
    """Of more samples than `most` it takes a norm, of one alone it makes something else."""

    def __init__(self, most: int = 4) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm1d(6)
        self.last, self.most = nn.Linear(6, 4), most

    def forward(self, image):
        maps = self.first(image).mean((2, 3))
        if image.shape[0] > self.most:
            maps = self.norm(maps)
        made = self.last(maps)
        return made.tanh() if image.shape[0] == 1 else made


def batch(samples):
    torch.manual_seed(samples)
    return torch.randn(samples, 3, 6, 6).double()
