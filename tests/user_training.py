"""Data and losses as a user writes them: of pixels, not of classes. It is named, never imported."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset

UNKNOWN = 255  # in masks


class Shapes(Dataset):
    """Images with masks, mirrored at random, some of whose pixels are unknown."""

    def __init__(self, count, seed, pack):
        self.count, self.seed, self.pack = count, seed, pack
        self.read = []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        image = torch.randn(1, 12, 12, generator=generator)
        mask = (image[0] > 0).long()
        mask[: index % 7] = UNKNOWN
        for is_mirrored, dim in (
            (torch.rand(1).item() < 0.5, 0),
            (np.random.random() < 0.5, 1),  # noqa: NPY002
        ):
            if is_mirrored:
                image, mask = image.flip(dim + 1), mask.flip(dim)
        return image + random.random() / 10, self.pack(mask)


def masks(seed):
    return Shapes(40, seed, lambda mask: mask), Shapes(10, seed + 1, lambda mask: mask)


def dicts(seed):
    def pack(mask):
        return {"mask": mask, "name": "any"}

    return Shapes(40, seed, pack), Shapes(10, seed + 1, pack)


known_pixels = partial(cross_entropy, ignore_index=UNKNOWN)


def summed(result, targets):
    """(sum, count) over known pixels, of targets in dicts."""
    mask = torch.stack([target["mask"] for target in targets]).to(result.device)
    return known_pixels(result, mask, reduction="sum"), (mask != UNKNOWN).sum()


def classes(seed):
    return [(torch.full((1, 12, 12), float(at % 2)), at % 2) for at in range(8)]


def network():
    """Scores of two classes for each pixel."""
    down = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.ReLU())
    up = nn.Sequential(nn.ConvTranspose2d(6, 4, 2, stride=2), nn.ReLU(), nn.Conv2d(4, 2, 1))
    return nn.Sequential(down, up)


# ------------------------------------------------------------------ mistakes


def nothing(seed):
    return None


def empty(seed):
    return []


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def stream(seed):
    return Stream()


def alone(seed):
    return [torch.zeros(1, 12, 12)] * 3


def arrays(seed):
    return [(np.zeros((1, 12, 12)), 0)] * 3


def small(seed):
    return [(torch.zeros(1, 6, 6), 0)] * 3


def uneven(seed):
    return [(torch.zeros(1, 12, 12), torch.zeros(at + 1)) for at in range(3)]


def far(seed):
    return [(torch.zeros(1, 12, 12), at) for at in (0, 1, 2)]


def failing(seed):
    raise KeyError("photos")


def no_tensor(result, targets):
    return 0.5


def failing_loss(result, targets):
    return result - targets.boxes
