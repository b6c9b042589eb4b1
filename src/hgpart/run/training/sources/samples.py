"""Samples of any kind of data: images with labels, in part for training, in part for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

VALIDATION_SHARE = 5  # every fifth sample of a class is for validation


class Samples(Protocol):
    """Images with labels, read only when asked for, so that a part reads only what it needs.

    Randomness in a sample depends on the seed, the epoch and the sample's number alone, so that
    all processes read the same, whichever samples they read before.
    """

    def __len__(self) -> int:
        """Number of samples."""

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """Some of the images, float32, along the first dimension."""

    def labels(self, indices: Sequence[int], epoch: int = 0) -> Any:
        """What the loss compares their results with; the labels of classes are int64."""


def divided(labels: Sequence[int]) -> tuple[list[int], list[int]]:
    """Numbers of the samples to train and to validate on: of each class every fifth is validated.

    >>> divided([7, 7, 8, 7, 7, 7])
    ([0, 1, 2, 3, 4], [5])
    """
    train: list[int] = []
    validation: list[int] = []
    seen: dict[int, int] = {}
    for at, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        (validation if seen[label] % VALIDATION_SHARE == 0 else train).append(at)
    return train, validation


def seed_of(seed: int, purpose: str, *numbers: int) -> int:
    """A seed for each random thing."""
    text = " ".join(map(str, (seed, purpose, *numbers)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def generator_of(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A generator for each random thing; torch's own one is neither read nor changed."""
    return torch.Generator().manual_seed(seed_of(seed, purpose, *numbers))
