"""The --data option, checked before torch is imported and before any process starts."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hgpart.errors import ArgumentError, not_installed, not_one_of

# Kind of data -> the module that reads it, and the package with that module.
PACKAGES = {"digits": ("sklearn", "scikit-learn"), "imagefolder": ("PIL", "Pillow")}
USER = "user"  # a function of the user's
AUGMENT = ",augment="  # behind a folder, whose name may have commas


@dataclass(frozen=True)
class DataWanted:
    """What a data spec asks for.

    Attributes
    ----------
    path : str
        The folder, if it is one.
    augment : bool
        Whether images are cropped and mirrored at random.
    """

    kind: str
    path: str = ""
    augment: bool = False


def check_data(spec: str) -> DataWanted:
    """Read a data spec, refusing unknown data, and data that can't be read here; see `load_data`.

    Raises
    ------
    ArgumentError
        If there are no such data.
    MissingPackageError
        If they need a package that is not installed.

    >>> check_data("synthetic")
    DataWanted(kind='synthetic', path='', augment=False)
    """
    kind, _, path = spec.partition(":")
    if spec not in ("synthetic", "digits") and not (kind and path):
        accepted = "synthetic", "digits", "imagefolder:PATH", "FILE.py:FUNCTION"
        raise not_one_of("data", spec, accepted)
    if path and kind != "imagefolder":
        return DataWanted(USER)
    if kind in PACKAGES:
        module, package = PACKAGES[kind]
        if find_spec(module) is None:
            raise not_installed(f"--data {kind}", package, extra="train")
    folder, keyed, augment = path.rpartition(AUGMENT)
    if not keyed:
        folder, augment = path, "no"
    if augment not in ("yes", "no"):
        raise ArgumentError(f"{spec}: accepted are {AUGMENT[1:]}yes and {AUGMENT[1:]}no")
    if folder and not Path(folder).is_dir():
        raise ArgumentError(
            f"{spec}: there is no such folder; accepted is a folder with a folder of images for "
            "each class"
        )
    return DataWanted(kind, folder, augment == "yes")
