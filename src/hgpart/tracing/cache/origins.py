"""A model's spec -> its origin, which changes whenever code that builds or traces the model does.

Code is told apart as Python tells whether what it has compiled of a file is up to date: by the
file's size and the time of writing. This takes no import: neither torch's nor the model's package.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from hgpart import _STARTED as STARTED
from hgpart.specs.models import PACKAGES, hf_config, is_user_code, taken_apart

_HGPART = Path(__file__).parents[2]
_LIBRARIES = "torch", "numpy"  # which count by version
_origins: WeakKeyDictionary[Any, Origin] = WeakKeyDictionary()


@dataclass(frozen=True)
class Origin:
    """What decides how a model is built and traced.

    Attributes
    ----------
    spec : str
        The model's spec.
    code : str
        Versions of Python and of all packages installed, files of hgpart and of the packages that
        the model is from, the configuration of a model of Hugging Face, and variables of the
        environment that begin with a package's name, as TIMM_FUSED_ATTN does.
    """

    spec: str
    code: str

    def is_current(self) -> bool:
        """Whether all is as it was."""
        return origin_of(self.spec) == self


def origin_of(spec: str) -> Origin | None:
    """The origin of a model.

    None where it can't be told: the model is code of the user's, a rule of the user's is in force,
    or a file was written since this process began, which may have read it before.
    """
    if is_user_code(spec) or _has_rules_of_users():
        return None
    source, colon, name = taken_apart(spec)[0].partition(":")
    packages = PACKAGES[source] if colon else ()
    try:
        config = hf_config(name).read_text(encoding="utf-8") if source == "hf" else ""
        files = [*_files_in(_HGPART)]
        for package in packages:
            files += _files_of(package)
        libraries = [_file(_path_of(library)) for library in _LIBRARIES]
        distributions = sorted({*_distributions()})
    except (OSError, ValueError, AttributeError):  # such as a package that was made by hand
        return None
    if max(written for _, _, written in files) >= STARTED * 1e9:
        return None
    prefixes = tuple(f"{package.upper()}_" for package in packages)
    variables = sorted(item for item in os.environ.items() if item[0].startswith(prefixes))
    python = sys.version, platform.machine()
    code = repr((python, libraries, distributions, files, config, variables))
    return Origin(spec, hashlib.blake2b(code.encode(), digest_size=16).hexdigest())


def set_origin(model: Any, origin: Origin | None) -> None:
    """Remember the origin of a model that was just built, or copied."""
    with suppress(TypeError):  # a model without a hash
        if origin is not None:
            _origins[model] = origin


def origin_of_model(model: Any) -> Origin | None:
    """The origin that a model had when it was built, if it is known."""
    with suppress(TypeError):
        return _origins.get(model)
    return None


def _has_rules_of_users() -> bool:
    table = sys.modules.get("hgpart.operators.table")  # it would import torch
    return table is not None and bool(table.rules_of_users())


def _distributions() -> Iterator[tuple[str, int]]:
    """What is installed: folders that are named after a package and its version."""
    for folder in {*filter(os.path.isdir, sys.path)}:
        for entry in os.scandir(folder):
            if entry.name.endswith((".dist-info", ".egg-info")):
                yield entry.path, entry.stat().st_mtime_ns


def _path_of(package: str) -> Path:
    module = find_spec(package)
    if module is None or module.origin is None:
        raise ValueError(f"{package} is no package with a file")
    return Path(module.origin)


def _files_of(package: str) -> Iterator[tuple[str, int, int]]:
    """The files of a package, if it is installed."""
    if find_spec(package) is not None:
        yield from _files_in(_path_of(package).parent)


def _files_in(folder: str | Path) -> Iterator[tuple[str, int, int]]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not entry.is_dir():
            yield _file(entry)
        elif entry.name != "__pycache__":
            yield from _files_in(entry.path)


def _file(file: Path | os.DirEntry[str]) -> tuple[str, int, int]:
    """Path, bytes, and nanoseconds of the last writing."""
    facts = file.stat()
    return str(getattr(file, "path", file)), facts.st_size, facts.st_mtime_ns
