"""What --data says, checked before torch is imported, and before any process is started."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hgpart.errors import ArgumentError, not_installed, not_one_of

# Kind of data -> the module that reads it, and the package that brings that.
PACKAGES = {"digits": ("sklearn", "scikit-learn"), "imagefolder": ("PIL", "Pillow")}


def check_data(spec: str) -> None:
    """Refuse what are no data, or can't be read here; see `hgpart.run.training.data.load_data`.

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
