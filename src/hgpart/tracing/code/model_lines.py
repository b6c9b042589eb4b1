"""A call stack -> the line of the model's own code in it, for messages."""

from __future__ import annotations

import sys
import sysconfig
from inspect import getfile
from pathlib import Path
from types import FrameType

import numpy as np
import torch

PACKAGES = frozenset({"site-packages", "dist-packages"})
_PYTHON = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_BASE = tuple(Path(getfile(package)).parent for package in (torch, np))
_TRACING = Path(__file__).parents[1]


def is_pythons(path: Path) -> bool:
    """Whether a file is Python's, NumPy's or torch's."""
    if any(path.is_relative_to(folder) for folder in _BASE):
        return True
    # Packages may lie inside the standard library.
    is_inside = any(path.is_relative_to(folder) for folder in _PYTHON)
    return is_inside and PACKAGES.isdisjoint(path.parts)


def is_the_models(filename: str) -> bool:
    """Whether a file holds a model's code: not torch's, NumPy's, Python's or what traces it."""
    path, is_made_at_run_time = Path(filename), filename.startswith("<")
    return not (is_made_at_run_time or is_pythons(path) or path.is_relative_to(_TRACING))


def running_line() -> str:
    """The line of the model's code that runs now, as FILE:LINE; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_the_models(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
