"""Data spec -> Data: images and labels to train and to validate on, in an order set by a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hgpart.errors import ArgumentError
from hgpart.run.training.data_wanted import OF_FILES, USER, check_data
from hgpart.run.training.sources.image_folder import ImageFiles, check_channels, image_folder
from hgpart.run.training.sources.samples import Chosen, Samples, divided, generator_of
from hgpart.run.training.sources.shapes import CLASSES, TEST, TRAINING, Shapes
from hgpart.run.training.sources.small_images import small_images
from hgpart.run.training.sources.tiny_imagenet import tiny_imagenet
from hgpart.run.training.sources.user_data import UserSamples, user_data

SYNTHETIC_SAMPLES = 2**16


@dataclass(frozen=True, eq=False)
class Data:
    """Samples to train and to validate on.

    The order of the training samples depends on the seed and the epoch, and on nothing else:
    torch's own generator is neither read nor changed.

    Attributes
    ----------
    spec : str
        The argument of `load_data`.
    validation : Samples or None
        Samples that are held out; None if there are none, or labels are random.
    test : Samples or None
        Samples that the data hold out themselves, where a fold of the others is for validation.
    classes : int or None
        Number of classes, of which labels are 0 to classes - 1; None if that is not known.
    """

    spec: str
    train: Samples
    validation: Samples | None
    classes: int | None
    seed: int
    test: Samples | None = None

    def training_indices(self, step: int, batch_size: int) -> list[int]:
        """Samples of training step `step`, counted from 0; an epoch's last few are left out.

        >>> data = load_data("synthetic", (1, 8, 8), classes=10, seed=0)
        >>> data.training_indices(3, 2) == data.training_indices(3, 2)
        True
        """
        epoch, batch = divmod(step, self.steps_per_epoch(batch_size))
        order = _order(len(self.train), self.seed, epoch)
        return order[batch * batch_size : (batch + 1) * batch_size].tolist()

    def steps_per_epoch(self, batch_size: int) -> int:
        """Number of whole batches of the training samples.

        Raises
        ------
        ArgumentError
            If there is none.
        """
        self.check_batch(batch_size)
        return len(self.train) // batch_size

    def check_batch(self, batch_size: int) -> None:
        """Raise an ArgumentError for a batch larger than the training data."""
        if not 1 <= batch_size <= len(self.train):
            raise ArgumentError(
                f"batch size {batch_size}: accepted is 1 to {len(self.train)}, "
                f"the training samples of {self.spec}"
            )


def load_data(spec: str, input_shape: Sequence[int], classes: int | None, seed: int) -> Data:
    """Open a data set for a model.

    Parameters
    ----------
    spec : str
        ``synthetic``: random images with random labels. ``digits``: scikit-learn's 1797
        handwritten digits. ``shapes``: 20,000 drawn polygons and stars, and 5,000 to validate on;
        see `Shapes`. ``imagefolder:PATH``: a folder with one folder of images for each class, or
        with such folders in ``train`` and ``val`` (or ``test``). ``mnist:PATH``, ``cifar10:PATH``
        and ``tiny-imagenet:PATH``: a folder with their published files. Images have 8 or 16 bits.
        With ``,augment=yes`` behind it images of files are cropped at random, and normalised as
        ImageNet's. ``FILE.py:FUNCTION``: a function that is called with the seed, and returns a
        dataset, or (train, validation), whose samples are (input, target).

        Without samples of their own for validation, every fifth of each class is for that. With
        ``,fold=I/N`` fold I of N of the samples to train on is, those of each class in turn (a
        function's samples in turn), and samples of their own are to test on.
    input_shape : sequence of int
        Shape of a sample of the model: channels, height, width.
    classes : int or None
        Width of the model's output; the data may have fewer classes, not more. None if a loss of
        the user's takes any targets, as those of synthetic data are not.
    seed : int
        Seed of the order of the samples, of synthetic samples and of augmentation.

    Raises
    ------
    ArgumentError
        If there are no such data, or they do not fit the model.
    MissingPackageError
        If they need a package that is not installed.

    >>> data = load_data("synthetic", (3, 16, 16), classes=10, seed=0)
    >>> data.train.images([4, 5]).shape, data.train.labels([4, 5]).shape
    (torch.Size([2, 3, 16, 16]), torch.Size([2]))
    """
    wanted = check_data(spec)
    if wanted.kind == USER:
        mine = user_data(wanted.path, input_shape, classes, seed)
        return _divided(spec, *mine, classes, seed, wanted.fold, divides=wanted.fold is not None)
    if wanted.kind == "synthetic":
        if classes is None:
            raise ArgumentError("synthetic data without classes: accepted is a model of classes")
        return Data(spec, Synthetic(tuple(input_shape), classes, seed), None, classes, seed)
    if len(input_shape) != 3:
        raise ArgumentError(
            f"data {spec!r} are images, the model's input has shape {tuple(input_shape)}: "
            "accepted is channels, height, width"
        )
    size = (input_shape[0], input_shape[1], input_shape[2])
    folder, present = Path(wanted.path), CLASSES
    train: Samples
    held_out: Samples | None
    if wanted.kind in OF_FILES:
        opened = image_folder if wanted.kind == "imagefolder" else tiny_imagenet
        train, held_out, present = opened(folder, *size, wanted.augment, seed)
    elif wanted.kind == "shapes":
        check_channels(spec, size[0])
        train, held_out = Shapes("training", TRAINING, *size), Shapes("test", TEST, *size)
    elif wanted.kind == "digits":
        train, held_out = _digits(*size, wanted.fold), None
    else:
        train, held_out = small_images(wanted.kind, folder, size)
    if classes is not None and present > classes:
        raise ArgumentError(
            f"{spec} has {present} classes, the model's output has {classes} values a sample: "
            "accepted is a model with one for each class"
        )
    divides = held_out is None or wanted.fold is not None
    return _divided(spec, train, held_out, present, seed, wanted.fold, divides)


def _divided(
    spec: str,
    samples: Samples,
    held_out: Samples | None,
    classes: int | None,
    seed: int,
    fold: tuple[int, int] | None,
    divides: bool,
) -> Data:
    """Data whose validation samples are a fold of the samples, or those that are held out."""
    if not divides:
        return Data(spec, samples, held_out, classes, seed)
    everything = range(len(samples))
    # A function's targets may be anything, and reading them would be reading all samples.
    is_users = isinstance(samples, UserSamples)
    labels = [0] * len(samples) if is_users else samples.labels(everything).tolist()
    train, validation = divided(labels, fold)
    if fold and not (train and validation):
        raise ArgumentError(
            f"{spec}: {len(validation)} samples to validate on and {len(train)} to train on: "
            "accepted are fewer folds"
        )
    middles = replace(samples, seed=None) if isinstance(samples, ImageFiles) else samples
    validated = Chosen(middles, validation) if validation else None
    return Data(spec, Chosen(samples, train), validated, classes, seed, held_out)


@dataclass(frozen=True)
class Synthetic:
    """Images of normally distributed pixels, each made from the seed and its number."""

    shape: tuple[int, ...]
    classes: int
    seed: int

    def __len__(self) -> int:
        """Number of samples in an epoch."""
        return SYNTHETIC_SAMPLES

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The images of some samples."""
        return torch.stack(
            [
                torch.randn(self.shape, generator=generator_of(self.seed, "image", index))
                for index in indices
            ]
        )

    def labels(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The labels of some samples."""
        return torch.cat(
            [
                torch.randint(self.classes, (1,), generator=generator_of(self.seed, "label", index))
                for index in indices
            ]
        )


@dataclass(frozen=True, eq=False)
class ImagesInMemory:
    """Images that are small enough to be held in memory."""

    all_images: Tensor
    all_labels: Tensor

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.all_labels)

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The images of some samples."""
        return self.all_images[list(indices)]

    def labels(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The labels of some samples."""
        return self.all_labels[list(indices)]


def _digits(channels: int, height: int, width: int, fold: tuple[int, int] | None) -> ImagesInMemory:
    """Digits of 8 x 8 grey pixels, scaled; mean 0 and deviation 1 over the training samples."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    train, _ = divided(labels.tolist(), fold)
    pixels = torch.tensor(bunch.images, dtype=torch.float32)
    pixels = (pixels - pixels[train].mean()) / pixels[train].std()
    images = functional.interpolate(pixels[:, None], (height, width), mode="bilinear")
    return ImagesInMemory(images.expand(-1, channels, -1, -1), labels)


@lru_cache(maxsize=1)
def _order(samples: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(samples, generator=generator_of(seed, "order", epoch))
