"""The links of this machine are measured by processes, of which any may die."""

from __future__ import annotations

from multiprocessing import Pipe

import pytest

from hgpart.errors import RunError
from hgpart.recommendation.measured_here import _result


@pytest.mark.parametrize("dead", [(0,), (1,), (0, 1)])
def test_that_none_is_left_to_measure_is_said(dead: tuple[int, ...]) -> None:
    """When both had ended, one was struck off a list that was empty."""
    here, there = zip(*(Pipe() for _ in range(2)), strict=True)
    for rank in dead:
        there[rank].close()
    if 0 not in dead:  # it hears nothing from the other one
        there[0].send("process 1 is gone")
        there[0].close()
    with pytest.raises(RunError, match=r"^links between processes can't be measured: "):
        _result([*here], lambda what, done: None)
