"""Samples of any kind of data: images with labels, divided into those to train and to test on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

TEST_SHARE = 5  # every fifth sample of a class is for testing


class Samples(Protocol):
    """Images with labels, read only when asked for, so that a part reads only what it needs."""

    def __len__(self) -> int:
        """Number of samples."""

    def images(self, indices: Sequence[int]) -> Tensor:
        """Some of the images, float32, along the first dimension."""

    def labels(self, indices: Sequence[int]) -> Tensor:
        """Their labels, int64."""


def divided(labels: Sequence[int]) -> tuple[list[int], list[int]]:
    """Numbers of the samples to train and to test on: every fifth of each class is for testing.

    >>> divided([7, 7, 8, 7, 7, 7])
    ([0, 1, 2, 3, 4], [5])
    """
    train: list[int] = []
    test: list[int] = []
    seen: dict[int, int] = {}
    for at, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        (test if seen[label] % TEST_SHARE == 0 else train).append(at)
    return train, test
