"""Files that others wrote -> values; values -> files, whole or not at all.

The public functions, listed in ``__init__.pyi``, are those of the stages whose records the files
hold: as in `hgpart`, each is imported when it is asked for.
"""

import re
from pathlib import Path

import lazy_loader

_homes: dict[str, list[str]] = {}
for _module, _name in re.findall(
    r"^from hgpart\.([\w.]+) import (\w+) as",
    Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"),
    re.MULTILINE,
):
    _homes.setdefault(_module, []).append(_name)

__getattr__, __dir__, __all__ = lazy_loader.attach("hgpart", submod_attrs=_homes)
