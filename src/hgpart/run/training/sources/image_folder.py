"""A folder of images by class -> samples; see `hgpart.run.training.data`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hgpart.cores import usable_cores
from hgpart.errors import ArgumentError, FormatError
from hgpart.run.training.sources.augmentation import middle, normalised, random_piece
from hgpart.run.training.sources.samples import generator_of

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 2**26  # a file of a hundred bytes may declare any number; each pixel takes 8 bytes
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tiff", ".webp")
WHITE = 2**16 - 1  # in 16 bits
OF_16_BITS_IN_32 = {"PNG", "PPM"}  # formats whose pixels Pillow may have in mode I
TRAIN, VALIDATIONS = "train", ("val", "test")
# Names of folders that are no classes, but divide the samples.
OTHERS = {"training", "testing", "valid", "validation", "eval", "evaluation", "dev"}
SUBSETS = {TRAIN, *VALIDATIONS, *OTHERS}


@dataclass(frozen=True)
class ImageFiles:
    """Image files, read when they are asked for.

    Attributes
    ----------
    files : tuple of (Path, int)
        Files with their labels.
    augment : bool
        Whether images are those of `augmentation`; else they are scaled to cover the model's input,
        what sticks out is cropped, and pixels are from -1 to 1.
    seed : int or None
        Seed of the random pieces; None for images to validate on, of which nothing is random.
    """

    files: tuple[tuple[Path, int], ...]
    channels: int
    height: int
    width: int
    augment: bool = False
    seed: int | None = None

    def __len__(self) -> int:
        """Number of files."""
        return len(self.files)

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """Read the images of some samples, in a thread for each core."""
        with ThreadPoolExecutor(usable_cores()) as readers:
            return torch.stack([*readers.map(self._image, indices, repeat(epoch))])

    def labels(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The labels of some samples, given by their folders."""
        return torch.tensor([self.files[index][1] for index in indices])

    def _image(self, index: int, epoch: int) -> Tensor:
        image, size = self._read(self.files[index][0]), (self.width, self.height)
        if not self.augment:
            return self._pixels(middle(image, *size, border=0)) / 127.5 - 1
        if self.seed is None:
            image = middle(image, *size)
        else:
            generator = generator_of(self.seed, "augmentation", epoch, index)
            image = random_piece(image, *size, generator)
        return normalised(self._pixels(image) / 255)

    def _read(self, path: Path) -> Image:
        from PIL import Image

        try:
            with Image.open(path) as file:
                width, height = file.size
                if width * height > MOST_PIXELS:
                    raise ValueError(f"{width} x {height} pixels, more than {MOST_PIXELS}")
                return _of_8_bits(file).convert("L" if self.channels == 1 else "RGB")
        except Exception as error:  # Pillow's decoders raise almost anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise FormatError(
                f"can't read {path}: {reason}; accepted is a complete image file of 8 or 16 bits"
            ) from error

    def _pixels(self, image: Image) -> Tensor:
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(self.height, self.width, self.channels).permute(2, 0, 1).float()


def _of_8_bits(image: Image) -> Image:
    """A grey image of 16 bits scaled to 8, where Pillow would clip at 255; others as they are.

    Raises
    ------
    ValueError
        If nothing says which number is white.
    """
    if image.mode == "F" or (image.mode == "I" and image.format not in OF_16_BITS_IN_32):
        kind = "floating-point numbers" if image.mode == "F" else "32-bit integers"
        raise ValueError(f"its pixels are {kind} (mode {image.mode}), of unknown range")
    if not image.mode.startswith("I"):
        return image
    return image.convert("F").point(lambda pixel: pixel * (255 / WHITE) + 0.5)


def image_folder(
    folder: Path, channels: int, height: int, width: int, augment: bool, seed: int
) -> tuple[ImageFiles, ImageFiles | None, int]:
    """All samples, or those of ``train``; those of ``val`` or ``test``; the number of classes.

    Raises
    ------
    ArgumentError
        If it is no folder of images by class, or does not fit the model.
    """
    check_channels(f"imagefolder:{folder}", channels)
    validations = [folder / name for name in VALIDATIONS if (folder / name).is_dir()]
    if (folder / TRAIN).is_dir() and validations:
        files = files_by_class(folder / TRAIN)
        held_out = files_by_class(validations[0], like=folder / TRAIN)
    else:
        names = class_names(folder)
        if SUBSETS.issuperset(name.lower() for name in names):
            raise ArgumentError(
                f"imagefolder: {folder} has {', '.join(names)}, which do not count as classes: "
                f"accepted are {TRAIN} with {' or '.join(VALIDATIONS)}, or a folder of images for "
                "each class"
            )
        files, held_out = files_by_class(folder), []
    classes = 1 + max(label for _, label in files)
    size = (channels, height, width)
    return (
        ImageFiles((*files,), *size, augment, seed),
        ImageFiles((*held_out,), *size, augment) if held_out else None,
        classes,
    )


def check_channels(spec: str, channels: int) -> None:
    """Raise an ArgumentError unless images can have so many channels."""
    if channels not in (1, 3):
        raise ArgumentError(
            f"{spec}: the model's input has {channels} channels, "
            "accepted are 1 (grey) and 3 (red, green, blue)"
        )


def files_by_class(folder: Path, like: Path | None = None) -> list[tuple[Path, int]]:
    """Image files with their labels; classes are numbered in the order of their names."""
    names = class_names(folder)
    if like is not None and names != class_names(like):
        raise ArgumentError(f"imagefolder: {like} and {folder} must have folders of the same names")
    files = []
    for label, name in enumerate(names):
        paths = sorted((folder / name).rglob("*"))
        images = [path for path in paths if path.suffix.lower() in IMAGE_SUFFIXES]
        if not images:
            raise ArgumentError(
                f"imagefolder: there are no images in {folder / name}; accepted are files with "
                f"{', '.join(IMAGE_SUFFIXES)}"
            )
        files += [(path, label) for path in images]
    return files


def class_names(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted."""
    names = [path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]
    if not names:
        raise ArgumentError(
            f"imagefolder: {folder} has no folders; accepted is one folder of images for each class"
        )
    return sorted(names)
