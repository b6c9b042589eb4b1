"""The --data option, checked before torch is imported and before any process starts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hgpart.errors import ArgumentError, not_installed, not_one_of

# Kind of data -> the module that reads it, and the package with that module.
PACKAGES = {"digits": ("sklearn", "scikit-learn"), "imagefolder": ("PIL", "Pillow")}


def check_data(spec: str) -> None:
    """Refuse unknown data, and data that can't be read here; `load_data` says what is accepted.

    Raises
    ------
    ArgumentError
        If there are no such data.
    MissingPackageError
        If they need a package that is not installed.

    >>> check_data("synthetic")
    """
    kind, _, path = spec.partition(":")
    if spec not in ("synthetic", "digits") and not (kind == "imagefolder" and path):
        raise not_one_of("data", spec, ("synthetic", "digits", "imagefolder:PATH"))
    if kind in PACKAGES:
        module, package = PACKAGES[kind]
        if find_spec(module) is None:
            raise not_installed(f"--data {kind}", package, extra="train")
    if path and not Path(path).is_dir():
        raise ArgumentError(
            f"{spec}: there is no such folder; accepted is a folder with a folder of images for "
            "each class"
        )
