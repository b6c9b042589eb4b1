"""The line of a model's own code, for messages."""

from __future__ import annotations

import contextlib
import inspect
import os
from pathlib import Path

import pytest
from torch import nn

from hgpart.tracing import traced_model
from hgpart.tracing.code.model_lines import is_the_models, running_line


@pytest.mark.parametrize(
    ("filename", "is_model"),
    [
        (__file__, True),
        (inspect.__file__, False),
        (contextlib.__file__, False),
        (nn.modules.conv.__file__, False),
        (traced_model.__file__, False),
        ("<string>", False),
        ("<frozen importlib._bootstrap>", False),
        (str(Path(os.__file__).parent / "site-packages" / "timm" / "models" / "vgg.py"), True),
    ],
)
def test_places_are_in_the_models_code(filename: str, is_model: bool) -> None:
    assert is_the_models(filename) == is_model


def test_the_line_that_runs() -> None:
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    assert list(map(lambda _: running_line(), [0])) == [f"{__file__}:{line}"]
