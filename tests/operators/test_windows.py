"""Windows against sets of rows."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart.operators import windows as module
from hgpart.operators.windows import Windows

Sets = list[set[int]]


@st.composite
def sets(draw: st.DrawFn, count: int, height: int) -> Sets:
    rows = st.sets(st.integers(0, height - 1)) if height else st.just(set())
    return draw(st.lists(rows, min_size=count, max_size=count))


def windows_of(reads: Sets, height: int) -> Windows:
    pairs = [(row, read) for row, own in enumerate(reads) for read in own]
    rows, read = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Windows.of_pairs(rows, read, len(reads), height)


def sets_of(windows: Windows) -> Sets:
    return [set(windows.reads[row].tolist()) for row in range(len(windows))]


@given(st.data(), st.integers(0, 5), st.integers(0, 5), st.integers(0, 70), st.booleans())
def test_windows_are_composed_united_and_turned_round(
    data: st.DataObject, count: int, middle: int, height: int, small: bool
) -> None:
    outer, other = (data.draw(sets(count, middle)) for _ in range(2))
    inner = data.draw(sets(middle, height))
    first, second = windows_of(outer, middle), windows_of(inner, height)
    with pytest.MonkeyPatch.context() as monkeypatch:
        if small:  # no table fits
            monkeypatch.setattr(module, "LARGEST_TABLE", 0)
        composed = first.compose(second)
    expected = [set().union(*(inner[row] for row in own)) for own in outer]
    assert sets_of(composed) == expected
    assert (len(composed), composed.height) == (count, height)
    assert composed.widest == max(map(len, expected), default=0)
    union = first.union(windows_of(other, middle))
    assert sets_of(union) == [left | right for left, right in zip(outer, other, strict=True)]
    readers = [{row for row, own in enumerate(outer) if read in own} for read in range(middle)]
    assert sets_of(first.readers()) == readers
    assert sets_of(first.together()) == [set().union(*outer)]
    assert sets_of(Windows.of_table(first.table)) == outer
    assert first.is_identity == (outer == [{row} for row in range(middle)])


def test_rows_are_chosen_in_pieces_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Windows.all_rows(40, 50)
    inner = Windows.sliding(3, height=60, count=50)
    monkeypatch.setattr(module, "LARGEST_TABLE", 3000)
    assert sets_of(full.compose(inner)) == [set(range(52))] * 40


@pytest.mark.parametrize(
    ("windows", "stride"),
    [
        (Windows.identity(5), 1),
        (Windows.sliding(3, 32, 16, stride=2, padding=1), 2),
        (Windows.sliding(3, 7, 7, padding=1), 1),
        (Windows.sliding(3, 2, 1, stride=2, padding=1), 2),
        (Windows.spread(2, 8, 16, stride=2), Fraction(1, 2)),
        (Windows.of_spans(np.arange(24) * 2 // 3, np.arange(24) * 2 // 3 + 1, 16), Fraction(2, 3)),
        (Windows.all_rows(1, 7), 7),
        (Windows.all_rows(4, 1), Fraction(1, 4)),
        (Windows.of_table(np.eye(6, dtype=bool)[::-1]), -1),
        (Windows.of_table(np.zeros((3, 6), dtype=bool)), 2),
    ],
)
def test_strides_are_read_off_windows(windows: Windows, stride: Fraction) -> None:
    assert windows.stride == stride


def test_many_layers_are_composed() -> None:
    """150 convolutions of maps of 1,024 rows, in a moment: sets would take minutes."""
    kernel = windows = Windows.sliding(3, 1024, 1024, padding=1)
    for _ in range(149):
        windows = kernel.compose(windows)
    assert windows.widest == 301
