"""The folder of Tiny ImageNet -> samples; see `hgpart.run.training.data`."""

from __future__ import annotations

from pathlib import Path

from hgpart.errors import ArgumentError, FormatError
from hgpart.run.training.sources.image_folder import (
    ImageFiles,
    check_channels,
    class_names,
    files_by_class,
)

NAME = "tiny-imagenet"


def tiny_imagenet(
    folder: Path, channels: int, height: int, width: int, augment: bool, seed: int
) -> tuple[ImageFiles, ImageFiles, int]:
    """Samples for training, samples for validation, and the number of classes.

    Classes are numbered in the order of their names, n01443537 and so on. The images of ``test``
    have no labels, and are not read.

    Raises
    ------
    ArgumentError
        If a folder or a file is missing.
    FormatError
        If ``val_annotations.txt`` names no class, or no image.
    """
    check_channels(f"{NAME}:{folder}", channels)
    inside = folder / "tiny-imagenet-200"
    folder = inside if inside.is_dir() else folder
    listed = folder / "val" / "val_annotations.txt"
    for path in (folder / "train", listed):
        if not path.exists():
            raise ArgumentError(
                f"{NAME}: there is no {path}; accepted is the folder with train and val"
            )
    labels = {name: at for at, name in enumerate(class_names(folder / "train"))}
    validated = []
    for number, line in enumerate(listed.read_text(errors="replace").splitlines(), 1):
        name, label, *_ = *line.split("\t"), ""
        path = listed.parent / "images" / name
        if label not in labels or not path.is_file():
            raise FormatError(
                f"{listed}, line {number}: accepted are an image in val/images and a class of train"
            )
        validated.append((path, labels[label]))
    if not validated:
        raise FormatError(f"{listed} is empty: accepted is a line for each image in val/images")
    size = (channels, height, width)
    train = ImageFiles((*files_by_class(folder / "train"),), *size, augment, seed)
    return train, ImageFiles((*validated,), *size, augment), len(labels)
