"""A forward pass that draws from Python's or NumPy's generator -> whether it reads what is drawn.

A model may draw numbers that only its training mode has a use for. `watched_draws` has the
generators' functions return something that can be handed on but not read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest import mock

import numpy as np

from hgpart.tracing.code.model_lines import running_line

_SPECIAL_METHODS = """
    bool int float complex index len iter next contains getitem setitem delitem call hash str repr
    format bytes eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv
    mod rmod pow rpow matmul rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift neg
    pos abs invert round trunc floor ceil divmod rdivmod array array_ufunc array_function
    torch_function getattribute setattr delattr reversed
"""
_OPERATIONS = _SPECIAL_METHODS.split()

_IN_PLACE = ("seed", "shuffle", "getstate", "get_state", "setstate", "set_state")


class Draws:
    """What became of the numbers that a pass drew.

    Attributes
    ----------
    read_at : str or None
        The first line of the model's code that reads one; None if none does.
    """

    def __init__(self) -> None:
        self.read_at: str | None = None

    def read(self, *_: object, **__: object) -> NoReturn:
        """Note that a number is read."""
        if self.read_at is None:
            self.read_at = running_line()
        raise RuntimeError("a number that was drawn is read")


@contextmanager
def watched_draws() -> Iterator[Draws]:
    """Let Python's and NumPy's generators draw nothing, and note whether it is read."""
    draws = Draws()
    operations = {f"__{name}__": lambda *_, **__: draws.read() for name in _OPERATIONS}
    unread: Any = type("Drawn", (), operations)

    def draw(*_: object, **__: object) -> Any:
        return object.__new__(unread)

    generators: tuple[tuple[Any, Any], ...] = (
        (random, random._inst),
        (np.random, np.random.mtrand._rand),
    )
    with ExitStack() as patches:
        for module, generator in generators:
            for name, function in list(vars(module).items()):
                if getattr(function, "__self__", None) is generator:
                    new = draws.read if name in _IN_PLACE else draw
                    patches.enter_context(mock.patch.object(module, name, new))
        yield draws
