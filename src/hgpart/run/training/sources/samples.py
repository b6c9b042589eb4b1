"""Samples of any kind of data: images with labels, in part for training, in part for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

FOLDS = 5  # of which the last is for validation, where nothing else is asked for


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


@dataclass(frozen=True, eq=False)
class Chosen:
    """Some of the samples, as they are in the whole."""

    samples: Samples
    numbers: Sequence[int]

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.numbers)

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The images of some samples."""
        return self.samples.images([self.numbers[at] for at in indices], epoch)

    def labels(self, indices: Sequence[int], epoch: int = 0) -> Any:
        """The labels of some samples."""
        return self.samples.labels([self.numbers[at] for at in indices], epoch)


def divided(
    labels: Sequence[int], fold: tuple[int, int] | None = None
) -> tuple[list[int], list[int]]:
    """Numbers of the samples to train and to validate on, those of a fold.

    The samples of each class go to the folds in turn. A fold is its number, from 0, and how many
    there are. Without one it is the last of five.

    >>> divided([7, 7, 8, 7, 7, 7])
    ([0, 1, 2, 3, 4], [5])
    >>> divided([7, 7, 8, 7, 7, 7], fold=(0, 2))
    ([1, 4], [0, 2, 3, 5])
    """
    number, folds = fold or (FOLDS - 1, FOLDS)
    train: list[int] = []
    validation: list[int] = []
    seen: dict[int, int] = {}
    for at, label in enumerate(labels):
        turn = seen.get(label, 0)
        seen[label] = turn + 1
        (validation if turn % folds == number else train).append(at)
    return train, validation


def seed_of(seed: int, purpose: str, *numbers: int) -> int:
    """A seed for each random thing."""
    text = " ".join(map(str, (seed, purpose, *numbers)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def generator_of(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A generator for each random thing; torch's own one is neither read nor changed."""
    return torch.Generator().manual_seed(seed_of(seed, purpose, *numbers))
