"""A name that does not exist -> the error that offers the nearest ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hgpart.errors import ModelError


def unknown_name(what: str, name: str, names: Iterable[str], otherwise: str) -> ModelError:
    """The error for an unknown ``name`` of kind ``what``.

    It offers up to three of ``names`` that are nearest, and says where to find the rest
    (``otherwise``).

    >>> print(unknown_name("model", "vgg15", ["vgg16", "unet"], "see 'hgpart models'"))
    unknown model 'vgg15'; nearest: vgg16; see 'hgpart models'
    """
    nearest = difflib.get_close_matches(name, list(names), n=3)
    hint = f"nearest: {', '.join(nearest)}; " if nearest else ""
    return ModelError(f"unknown {what} {name!r}; {hint}{otherwise}")
