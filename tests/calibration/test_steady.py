"""Rounds of a measurement: how many, and what comes of them."""

from __future__ import annotations

from itertools import chain, count, repeat
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart.calibration.steady import USUAL, RoundLimits, medians, steady


@given(st.lists(st.tuples(st.floats(1e-6, 10), st.floats(1e-6, 10)), min_size=2, max_size=30))
def test_the_median_of_the_rounds_that_count(rounds: list[tuple[float, float]]) -> None:
    """As many as there are at most: these are not to agree before."""
    waiting = iter(rounds)
    found = steady(lambda: next(waiting), RoundLimits(len(rounds) - 1, len(rounds) - 1))
    columns = zip(*rounds[1:], strict=True)
    assert found == pytest.approx([median(column) for column in columns], rel=1e-3)
    assert medians(rounds)[0] == median(first for first, _ in rounds)


def test_rounds_end_when_every_second_one_says_what_the_others_say() -> None:
    taken = []
    rounds = chain([(100.0,)], repeat((5.0,)))
    assert steady(lambda: taken.append(1) or next(rounds)) == (5.0,)
    assert len(taken) == 1 + USUAL.fewest


def test_rounds_that_never_agree_end_as_well() -> None:
    numbers = count(1)
    assert steady(lambda: (1.0, float(next(numbers)) ** 2), RoundLimits(6, 9)) == (1.0, 36.0)
    assert next(numbers) == 1 + 9 + 1


def test_one_figure_that_is_not_steady_goes_on() -> None:
    taken = []

    def measure() -> tuple[float, float]:
        taken.append(1)
        return 1.0, 1.0 + len(taken) % 2

    steady(measure)
    assert len(taken) == 1 + USUAL.most
