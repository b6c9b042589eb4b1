"""Data spec -> Data: images and labels to train and test on, in an order that a seed decides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hgpart.errors import ArgumentError
from hgpart.run.training.data_wanted import check_data
from hgpart.run.training.image_folder import image_folder
from hgpart.run.training.samples import Samples, divided

SYNTHETIC_SAMPLES = 2**16


@dataclass(frozen=True, eq=False)
class Data:
    """Samples to train and to test on.

    The order of the training samples depends on the seed and the epoch, and on nothing else:
    torch's own generator is neither read nor moved.

    Attributes
    ----------
    spec : str
        What `load_data` was given.
    train : Samples
    test : Samples or None
        None where the labels are random, so that there is nothing to learn.
    classes : int
        Labels are 0 to classes - 1.
    seed : int
    """

    spec: str
    train: Samples
    test: Samples | None
    classes: int
    seed: int

    def training_indices(self, step: int, batch_size: int) -> list[int]:
        """Which samples step `step`, counted from 0, trains on; an epoch's last few are left out.

        >>> data = load_data("synthetic", (1, 8, 8), classes=10, seed=0)
        >>> data.training_indices(3, 2) == data.training_indices(3, 2)
        True
        """
        self.check_batch(batch_size)
        epoch, batch = divmod(step, len(self.train) // batch_size)
        order = _order(len(self.train), self.seed, epoch)
        return order[batch * batch_size : (batch + 1) * batch_size].tolist()

    def check_batch(self, batch_size: int) -> None:
        """Refuse a batch that the training samples do not fill."""
        if not 1 <= batch_size <= len(self.train):
            raise ArgumentError(
                f"batch size {batch_size}: accepted is 1 to {len(self.train)}, "
                f"the training samples of {self.spec}"
            )


def load_data(spec: str, input_shape: Sequence[int], classes: int, seed: int) -> Data:
    """Open a data set for a model.

    Parameters
    ----------
    spec : str
        ``synthetic``: random images with random labels. ``digits``: scikit-learn's 1797
        handwritten digits. ``imagefolder:PATH``: a folder with one folder of images for each
        class, or with such folders in ``train`` and ``test`` (or ``val``). Where it has no test
        set of its own, every fifth sample of each class is for testing. Images are of 8 or 16 bits.
    input_shape : sequence of int
        Of one sample of the model: channels, height, width.
    classes : int
        Width of the model's output; the data may have fewer classes, not more.
    seed : int
        Of the order of the samples, and of synthetic ones.

    Raises
    ------
    ArgumentError
        If there is no such data, or it does not fit the model.
    MissingPackageError
        If it needs a package that is not installed.

    >>> data = load_data("synthetic", (3, 16, 16), classes=10, seed=0)
    >>> data.train.images([4, 5]).shape, data.train.labels([4, 5]).shape
    (torch.Size([2, 3, 16, 16]), torch.Size([2]))
    """
    check_data(spec)
    if spec == "synthetic":
        return Data(spec, Synthetic(tuple(input_shape), classes, seed), None, classes, seed)
    if len(input_shape) != 3:
        raise ArgumentError(
            f"data {spec!r} are images, the model's input has shape {tuple(input_shape)}: "
            "accepted is channels, height, width"
        )
    channels, height, width = input_shape
    train: Samples
    test: Samples | None
    if spec == "digits":
        train, test, found = _digits(channels, height, width)
    else:
        train, test, found = image_folder(Path(spec.partition(":")[2]), channels, height, width)
    if found > classes:
        raise ArgumentError(
            f"{spec} has {found} classes, the model's output has {classes} values a sample: "
            "accepted is a model with one for each class"
        )
    return Data(spec, train, test, found, seed)


@dataclass(frozen=True)
class Synthetic:
    """Images of normally distributed pixels, each made anew from the seed and its number."""

    shape: tuple[int, ...]
    classes: int
    seed: int

    def __len__(self) -> int:
        """As many as an epoch has."""
        return SYNTHETIC_SAMPLES

    def images(self, indices: Sequence[int]) -> Tensor:
        """Make images."""
        return torch.stack(
            [
                torch.randn(self.shape, generator=_generator(self.seed, "image", index))
                for index in indices
            ]
        )

    def labels(self, indices: Sequence[int]) -> Tensor:
        """Make labels."""
        return torch.cat(
            [
                torch.randint(self.classes, (1,), generator=_generator(self.seed, "label", index))
                for index in indices
            ]
        )


@dataclass(frozen=True, eq=False)
class InMemory:
    """Images that are small enough to be held."""

    all_images: Tensor
    all_labels: Tensor

    def __len__(self) -> int:
        """How many there are."""
        return len(self.all_labels)

    def images(self, indices: Sequence[int]) -> Tensor:
        """Pick images."""
        return self.all_images[list(indices)]

    def labels(self, indices: Sequence[int]) -> Tensor:
        """Pick labels."""
        return self.all_labels[list(indices)]


def _digits(channels: int, height: int, width: int) -> tuple[Samples, Samples, int]:
    """Digits of 8 x 8 grey pixels, scaled; mean 0 and deviation 1 over the training samples."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    train, test = divided(labels.tolist())
    pixels = torch.tensor(bunch.images, dtype=torch.float32)
    pixels = (pixels - pixels[train].mean()) / pixels[train].std()
    images = functional.interpolate(pixels[:, None], (height, width), mode="bilinear")
    images = images.expand(-1, channels, -1, -1)
    return (
        InMemory(images[train], labels[train]),
        InMemory(images[test], labels[test]),
        len(bunch.target_names),
    )


@lru_cache(maxsize=1)
def _order(samples: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(samples, generator=_generator(seed, "order", epoch))


def _generator(seed: int, purpose: str, number: int) -> torch.Generator:
    """A generator of its own for each thing that is random."""
    digest = hashlib.sha256(f"{seed} {purpose} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
