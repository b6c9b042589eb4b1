"""Files of small images, as MNIST's and CIFAR-10's -> samples in memory."""

from __future__ import annotations

import gzip
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hgpart.errors import ArgumentError, FormatError

Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # images (samples, channels, ...), labels
CLASSES = 10
MOST_BYTES = 2**30  # of a file: a short compressed one may declare any number
MNIST = {  # as torchvision leaves them in MNIST/raw
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
CIFAR10 = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
CIFAR10_SHAPE = 3, 32, 32
# All that a pickled array of numpy's names, by any version; other code is not run.
PICKLED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


@dataclass(frozen=True, eq=False)
class SmallImages:
    """Images of 8 bits in memory, scaled to a model's input when they are asked for.

    Attributes
    ----------
    pixels : Tensor
        Images (samples, channels, height, width), uint8.
    mean, deviation : float
        Mean and standard deviation of the training samples, which become 0 and 1.
    size : tuple of int
        Channels, height and width of the model's input; grey images have the same in all channels.
    """

    pixels: Tensor
    all_labels: Tensor
    mean: float
    deviation: float
    size: tuple[int, int, int]

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.all_labels)

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The images of some samples."""
        channels, *size = self.size
        images = (self.pixels[list(indices)].float() - self.mean) / self.deviation
        if [*images.shape[2:]] != size:
            images = functional.interpolate(images, size, mode="bilinear")
        return images.expand(-1, channels, -1, -1)

    def labels(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The labels of some samples."""
        return self.all_labels[list(indices)]


def small_images(
    kind: str, folder: Path, size: tuple[int, int, int]
) -> tuple[SmallImages, SmallImages]:
    """The training and the test samples of ``mnist`` or ``cifar10``.

    Raises
    ------
    ArgumentError
        If a file is missing, or the model's input does not have the images' channels.
    FormatError
        If a file is damaged.
    """
    read = _mnist if kind == "mnist" else _cifar10
    trained, tested = (read(folder, subset) for subset in ("train", "test"))
    channels = trained[0].shape[1]
    if channels not in (1, size[0]):
        raise ArgumentError(
            f"{kind}:{folder}: the model's input has {size[0]} channels, accepted is {channels}"
        )
    mean, deviation = float(trained[0].mean()), max(float(trained[0].std()), 1.0)

    def samples(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> SmallImages:
        return SmallImages(
            torch.from_numpy(images), torch.from_numpy(labels).long(), mean, deviation, size
        )

    return samples(*trained), samples(*tested)


def _mnist(folder: Path, subset: str) -> Arrays:
    paths = [
        _found("mnist", folder, ("", "MNIST/raw"), (name, f"{name}.gz")) for name in MNIST[subset]
    ]
    images, labels = (
        _idx(path, dimensions) for path, dimensions in zip(paths, (3, 1), strict=True)
    )
    if len(images) != len(labels):
        raise FormatError(f"{paths[0]} has {len(images)} images, {paths[1]} {len(labels)} labels")
    return images[:, None], _checked(labels, paths[1])


def _idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An array: bytes 0, 0, 8, number of dimensions, these in four bytes, then all elements."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            begin = file.read(4 + 4 * dimensions)
            shape = np.frombuffer(begin[4:], ">u4").tolist()
            if begin[:4] != bytes((0, 0, 8, dimensions)) or len(shape) != dimensions:
                raise ValueError(f"it does not begin as {dimensions} dimensions of bytes do")
            wanted = math.prod(shape)
            if not 0 < wanted <= MOST_BYTES:
                raise ValueError(f"it declares {wanted} elements")
            content = file.read(wanted + 1)
    except (OSError, EOFError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if len(content) != wanted:
        raise _damaged(path, f"it declares {wanted} elements, and has fewer or more")
    elements: NDArray[np.uint8] = np.frombuffer(bytearray(content), np.uint8)
    shaped: NDArray[np.uint8] = elements.reshape(shape)
    return shaped


def _cifar10(folder: Path, subset: str) -> Arrays:
    batches = []
    for name in CIFAR10[subset]:
        inside = "", "cifar-10-batches-py", "cifar-10-batches-bin"
        path = _found("cifar10", folder, inside, (name, f"{name}.bin"))
        images, labels = _rows(path) if path.suffix == ".bin" else _pickled(path)
        batches.append((images.reshape(-1, *CIFAR10_SHAPE), _checked(labels, path)))
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return images, labels


def _rows(path: Path) -> Arrays:
    content, pixels = path.read_bytes(), math.prod(CIFAR10_SHAPE)
    if not content or len(content) % (pixels + 1):
        raise _damaged(path, f"{len(content)} bytes are no whole images of {pixels + 1}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, pixels + 1)
    return rows[:, 1:], rows[:, 0]


def _pickled(path: Path) -> Arrays:
    try:
        with path.open("rb") as file:
            batch = _Arrays(file, encoding="bytes").load()
        images, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
        if images.dtype != np.uint8 or images.shape != (len(labels), math.prod(CIFAR10_SHAPE)):
            raise ValueError(f"its images are {images.dtype} numbers of shape {images.shape}")
        return images, labels
    except Exception as error:  # unpickling raises almost anything
        raise _damaged(path, " ".join(str(error).split()) or type(error).__name__) from error


class _Arrays(pickle.Unpickler):
    """Reads arrays, and runs no code that a file brings."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PICKLED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of an array")
        return super().find_class(module, name)


def _checked(labels: NDArray[Any], path: Path) -> NDArray[np.uint8]:
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise _damaged(path, f"labels from {labels.min()} to {labels.max()}")
    checked: NDArray[np.uint8] = labels.astype(np.uint8)
    return checked


def _found(kind: str, folder: Path, inside: Sequence[str], names: Sequence[str]) -> Path:
    for path in (folder / within / name for within in inside for name in names):
        if path.is_file():
            return path
    raise ArgumentError(
        f"{kind}:{folder}: there is no {' or '.join(names)}; accepted is the folder with all files "
        f"of {kind}"
    )


def _damaged(path: Path, reason: str) -> FormatError:
    return FormatError(f"can't read {path}: {reason}; accepted is the file as it was published")
