"""``path/file.py:factory`` or ``package.module:factory`` -> the model that user code builds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from torch import nn

from hgpart.errors import ArgumentError, ModelError
from hgpart.specs.user_code import UserCode
from hgpart.tracing.input_shape import InputShape

# The shape may be None. It is `Any` for the type checker, so that code that knows it to be there
# need not ask before each use.
Model = tuple[nn.Module, InputShape | Any]


def user_factory(spec: str) -> Callable[[], Model]:
    """Import the code that ``spec`` names and return a function that builds its model.

    The factory is called without arguments. It returns an ``nn.Module``, or a tuple of a module and
    what it takes for each sample, as `InputShape` is made of: ``(module, (3, 224, 224))``.

    Raises
    ------
    ModelError
        If the file, module or factory does not exist, raises anything, or returns something else.
        The message names the file and the line.
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
        case (nn.Module() as module, Sequence() as shape):
            with suppress(ArgumentError):
                return module, InputShape(shape)
    raise ModelError(
        f"{spec} returned {' '.join(repr(built).split())[:80]}; a factory returns an nn.Module, "
        "or (nn.Module, input shape without the batch, such as (3, 224, 224) or "
        '("image=3,224,224", "labels=:int64:1000"))'
    )
