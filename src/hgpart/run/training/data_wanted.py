"""The --data option, checked before torch is imported and before any process starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hgpart.errors import ArgumentError, not_installed, not_one_of

# Kind of data -> the module that reads it, and the package with that module.
PILLOW = "PIL", "Pillow"
PACKAGES = {
    "digits": ("sklearn", "scikit-learn"),
    "imagefolder": PILLOW,
    "tiny-imagenet": PILLOW,
}
USER = "user"  # a function of the user's
ALONE = "synthetic", "digits", "shapes"
OF_FILES = "imagefolder", "tiny-imagenet"  # whose images are files, which can be augmented
IN_FOLDERS = (*OF_FILES, "mnist", "cifar10")
SETTINGS = re.compile(r"(.*?)((?:,(?:augment|fold)=[^,]*)*)", re.DOTALL)  # a folder may have commas


@dataclass(frozen=True)
class DataWanted:
    """What a data spec asks for.

    Attributes
    ----------
    path : str
        The folder, or the user's ``FILE.py:FUNCTION``.
    augment : bool
        Whether images are cropped and mirrored at random.
    fold : tuple of int or None
        Number of the fold to validate on, from 0, and how many there are.
    """

    kind: str
    path: str = ""
    augment: bool = False
    fold: tuple[int, int] | None = None


def check_data(spec: str) -> DataWanted:
    """Read a data spec, refusing unknown data, and data that can't be read here; see `load_data`.

    Raises
    ------
    ArgumentError
        If there are no such data.
    MissingPackageError
        If they need a package that is not installed.

    >>> check_data("digits,fold=0/3")
    DataWanted(kind='digits', path='', augment=False, fold=(0, 3))
    """
    matched = SETTINGS.fullmatch(spec)
    assert matched is not None
    source, settings = matched.groups()
    kind, _, path = source.partition(":")
    if source not in ALONE and not (kind and path):
        accepted = (*ALONE, *(f"{name}:PATH" for name in IN_FOLDERS), "FILE.py:FUNCTION")
        raise not_one_of("data", spec, accepted)
    if path and kind not in IN_FOLDERS:
        kind, path = USER, source
    augment, fold = False, None
    for name, _, value in (setting.partition("=") for setting in settings.split(",")[1:]):
        if name == "fold":
            fold = _fold(spec, value)
        else:
            augment = _augment(spec, kind, value)
    if fold and kind == "synthetic":
        raise ArgumentError(f"{spec}: accepted with fold= are data with labels to learn, as digits")
    if kind in PACKAGES:
        module, package = PACKAGES[kind]
        if find_spec(module) is None:
            raise not_installed(f"--data {kind}", package, extra="train")
    if kind in IN_FOLDERS and not Path(path).is_dir():
        content = (
            "a folder of images for each class" if kind == "imagefolder" else f"{kind}'s files"
        )
        raise ArgumentError(f"{spec}: there is no such folder; accepted is a folder with {content}")
    return DataWanted(kind, path, augment, fold)


def _fold(spec: str, value: str) -> tuple[int, int]:
    matched = re.fullmatch(r"(\d{1,9})/(\d{1,9})", value)
    number, folds = map(int, matched.groups()) if matched else (0, 0)
    if not (folds >= 2 and number < folds):
        raise ArgumentError(
            f"{spec}: accepted is fold=NUMBER/FOLDS, 2 folds or more, of which the first is 0, as "
            "in fold=0/5"
        )
    return number, folds


def _augment(spec: str, kind: str, value: str) -> bool:
    if kind not in OF_FILES:
        raise ArgumentError(f"{spec}: accepted with augment= are {' and '.join(OF_FILES)}")
    if value not in ("yes", "no"):
        raise ArgumentError(f"{spec}: accepted are augment=yes and augment=no")
    return value == "yes"
