"""``path/file.py:factory`` or ``package.module:factory`` -> the model that user code builds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from hgpart.errors import ModelError
from hgpart.zoo.user_code import UserCode

# And the shape of one sample, or None where it is not known: `Any`, so that who knows that it is
# need not ask before each use.
Model = tuple[nn.Module, tuple[int, ...] | Any]


def user_factory(spec: str) -> Callable[[], Model]:
    """Import the code that ``spec`` names and return a function that builds its model.

    The factory is called without arguments and returns an ``nn.Module``, or one together with
    the shape of its input without the batch dimension: ``(module, (3, 224, 224))``.

    Raises
    ------
    ModelError
        If file, module or factory do not exist, raise anything, or return something else. The
        message names the file and the line in it.
    """
    code = UserCode(spec, "factory", ModelError)
    factory = code.load()
    if isinstance(factory, nn.Module):
        kind = type(factory).__name__
        raise ModelError(
            f"{spec} is a module, {kind}: accepted is a function that makes it, as def make(): "
            f"return {kind}(...)"
        )

    def build() -> Model:
        with code.running():
            built = factory()
        return _checked(built, spec)

    return build


def _checked(built: Any, spec: str) -> Model:
    match built:
        case nn.Module():
            return built, None
        case (nn.Module() as module, Sequence() as shape) if shape and all(
            type(size) is int and size > 0 for size in shape
        ):
            return module, tuple(shape)
    raise ModelError(
        f"{spec} returned {' '.join(repr(built).split())[:80]}; a factory returns an nn.Module, "
        "or (nn.Module, input shape without the batch, such as (3, 224, 224))"
    )
