from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from hgpart.timing.steady import LEAST, steady_seconds


def runs(seconds: Iterable[tuple[float, ...]]) -> tuple[Callable[[], tuple[float, ...]], list[int]]:
    """Something that takes so long each time, and how often it ran."""
    durations, count = iter(seconds), [0]

    def run() -> tuple[float, ...]:
        count[0] += 1
        return next(durations)

    return run, count


def test_the_first_run_does_not_count_and_outliers_do_not_move_the_rest() -> None:
    run, count = runs([(9.0, 1.0), (2.0, 3.0), (2.0, 3.0), (50.0, 3.0), (2.0, 3.0), (2.0, 4.0)])
    assert steady_seconds(run, 80.0) == (2.0, 3.0)
    assert count == [6]


def test_it_ends_as_soon_as_it_is_steady() -> None:
    run, count = runs([(7.0,), *[(1.0,)] * 100])
    assert steady_seconds(run, 1000.0) == (1.0,)
    assert count == [1 + LEAST]


def test_it_goes_on_while_it_is_not() -> None:
    run, count = runs([(1.0,), *[(1.0,), (2.0,)] * 50])
    assert steady_seconds(run, 20.0) == (1.0,)
    assert count == [14]


@pytest.mark.parametrize("enough", [0.0, 1.0, 4.0])
def test_a_first_run_that_is_enough_is_all(enough: float) -> None:
    run, count = runs([(1.0, 3.0)])
    assert steady_seconds(run, enough) == (1.0, 3.0)
    assert count == [1]
