"""A model's spec -> what it names: a built-in model, one of a package, or code of the user's."""

from __future__ import annotations

import re
from pathlib import Path

PROGRAM = ".pt2"  # how a file of torch.export.save ends
# By the word in front of the colon: the Python packages that have the code of the models.
PACKAGES = {
    "timm": ("timm", "torchvision"),
    "torchvision": ("torchvision",),
    "pytorchcv": ("pytorchcv",),
    "hf": ("transformers", "timm", "torchvision"),
}
# A factory's name is not a number, so no other spec ends like this.
TRANSFORMED = re.compile(r"(.+)\+(\w+):(\d{1,4})", re.ASCII)


def taken_apart(spec: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """The model that a spec begins with, and the kinds and parts of its transformations, in order.

    >>> taken_apart("timm:resnet18+split:2+grouped:4")
    ('timm:resnet18', (('split', 2), ('grouped', 4)))
    """
    transformations: list[tuple[str, int]] = []
    while (match := TRANSFORMED.fullmatch(spec)) is not None:
        spec = match[1]
        transformations.insert(0, (match[2], int(match[3])))
    return spec, tuple(transformations)


def is_user_code(spec: str) -> bool:
    """Whether `load_model` would import and call code that a spec names.

    If not, the model is built in or comes from a package that hgpart knows, and no other code
    runs: such a spec from a file need not be trusted. A file of torch.export counts as code, as
    torch unpickles it.

    >>> [is_user_code(spec) for spec in ("vgg16", "timm:resnet18", "net.py:make", "os:abort")]
    [False, False, True, True]
    >>> is_user_code("model.pt2")
    True
    """
    spec, _ = taken_apart(spec)
    source, colon, _ = spec.partition(":")
    return spec.endswith(PROGRAM) or (source not in PACKAGES if colon else spec.endswith(".py"))


def hf_config(name: str) -> Path:
    """The file of the configuration in ``hf:NAME``, which may be its folder."""
    path = Path(name).expanduser()
    return path / "config.json" if path.is_dir() else path
