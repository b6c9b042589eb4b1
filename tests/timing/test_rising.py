from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hgpart.timing.rising import rising

tables = arrays(
    np.float64, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.floats(1e-6, 1e3)
)


def largest_error(found: np.ndarray, measured: np.ndarray) -> float:
    return float(np.abs(np.log(found / measured)).max())


@given(tables)
def test_it_rises_along_rows_and_columns(measured: np.ndarray) -> None:
    found = rising(measured)
    assert (np.diff(found, axis=0) >= 0).all()
    assert (np.diff(found, axis=1) >= 0).all()


@given(tables)
def test_what_rises_stays_as_it_is(measured: np.ndarray) -> None:
    measured = measured.cumsum(0).cumsum(1)
    assert np.array_equal(rising(measured), measured)


@given(tables)
def test_no_rising_table_has_a_smaller_largest_error(measured: np.ndarray) -> None:
    """Two points in the wrong order are both missed by half of their ratio, at least."""
    rows, columns = measured.shape
    places = [(row, column) for row in range(rows) for column in range(columns)]
    least = max(
        np.log(measured[low] / measured[high]) / 2
        for low in places
        for high in places
        if low[0] <= high[0] and low[1] <= high[1]
    )
    np.testing.assert_allclose(largest_error(rising(measured), measured), least, atol=1e-9)


def test_passes_that_take_no_time() -> None:
    assert rising(np.zeros((2, 3))).tolist() == [[0.0] * 3] * 2
