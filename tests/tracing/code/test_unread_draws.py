"""Numbers that are drawn can be handed on; the line that reads one is known."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hgpart.tracing.code.unread_draws import watched_draws


def test_what_is_handed_on_is_not_read() -> None:
    before = random.getstate()
    with watched_draws() as draws:
        drawn = [random.random(), np.random.rand(3), random.choice([1, 2])]  # noqa: NPY002
        kept = {"drawn": drawn, "same": drawn[0] is drawn[1]}
    assert kept["same"] is False
    assert draws.read_at is None
    assert random.getstate() == before
    assert 0 <= random.random() < 1


READS: dict[str, Callable[[Any], Any]] = {
    "condition": lambda drawn: 1 if drawn else 2,
    "sum": lambda drawn: 1 + drawn,
    "tensor": lambda drawn: torch.ones(2) * drawn,
    "filled": lambda drawn: torch.full((2,), drawn),
    "array": lambda drawn: np.asarray(drawn),
    "index": lambda drawn: [1, 2][drawn],
    "attribute": lambda drawn: drawn.shape,
    "type": lambda drawn: isinstance(drawn, np.ndarray),
    "text": lambda drawn: f"{drawn}",
    "rounded": math.floor,
    "shuffled": lambda drawn: random.shuffle([1, 2]),
}


@pytest.mark.parametrize("name", READS)
def test_the_first_line_that_reads_is_known(name: str) -> None:
    with watched_draws() as draws:
        drawn = np.random.randint(3)  # noqa: NPY002
        with pytest.raises((RuntimeError, TypeError)):
            READS[name](drawn)
        if name == "filled":  # torch asks for the type only, and refuses it
            return
    line = inspect.getsourcelines(READS[name])[1] if name != "rounded" else None
    assert draws.read_at is not None
    assert draws.read_at.startswith(f"{__file__}:{line or ''}")
