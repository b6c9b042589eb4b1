"""Sequences of numbers against lists of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hgpart.sequences import Sequences, distinct, equal_rows, starts_of_runs

small = st.integers(0, 4)
lists = st.lists(st.lists(small, max_size=4), max_size=8)


def packed(values: list[list[int]]) -> Sequences:
    flat = [number for own in values for number in own]
    return Sequences(
        np.cumsum([0, *map(len, values)], dtype=np.int64), np.array(flat, dtype=np.int64)
    )


def unpacked(found: Sequences) -> list[list[int]]:
    return [found[at].tolist() for at in range(len(found))]


def numbered(values: list[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Numbers by first appearance, and where each appears first."""
    seen: dict[tuple[int, ...], int] = {}
    return (
        [seen.setdefault(one, len(seen)) for one in values],
        [values.index(one) for one in dict.fromkeys(values)],
    )


@given(lists)
def test_equal_sequences_have_one_number(values: list[list[int]]) -> None:
    numbers, first = packed(values).alike()
    assert (numbers.tolist(), first.tolist()) == numbered([tuple(one) for one in values])


@given(
    st.integers(0, 3).flatmap(
        lambda columns: st.lists(
            st.tuples(*[st.sampled_from([0, 1, -(2**62), 2**62])] * columns), max_size=6
        )
    )
)
def test_equal_rows_have_one_number_however_far_apart_their_numbers_are(
    rows: list[tuple[int, ...]],
) -> None:
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(rows[0]) if rows else 2)
    numbers, first = equal_rows(table)
    assert (numbers.tolist(), first.tolist()) == numbered(rows)


@given(lists, st.data())
def test_chosen_and_united_sequences(values: list[list[int]], data: st.DataObject) -> None:
    sequences = packed(values)
    which = st.integers(0, max(0, len(values) - 1))
    outer = data.draw(st.lists(st.lists(which, max_size=3), max_size=4)) if values else [[]]
    chosen = [at for own in outer for at in own]
    assert unpacked(sequences.take(np.array(chosen, dtype=np.int64))) == [
        values[at] for at in chosen
    ]
    united = packed(outer).united(sequences)
    assert unpacked(united) == [sorted({n for at in own for n in values[at]}) for own in outer]
    both = Sequences.joined([sequences, sequences.shifted(1)])
    assert unpacked(both) == [*values, *([n + 1 for n in own] for own in values)]


@given(st.lists(st.tuples(small, small), max_size=12))
def test_pairs_are_grouped_and_each_is_there_once(pairs: list[tuple[int, int]]) -> None:
    owners, values = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    found = Sequences.of_pairs(owners, values, 6)
    assert unpacked(found) == [sorted({v for o, v in pairs if o == at}) for at in range(6)]
    assert found.owners.tolist() == sorted(o for o, _ in set(pairs))


@given(st.lists(st.tuples(small, small), max_size=8))
def test_spans_are_ranges(ends: list[tuple[int, int]]) -> None:
    first, length = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    found = Sequences.of_spans(first, first + length)
    assert unpacked(found) == [list(range(begin, begin + size)) for begin, size in ends]


@given(st.lists(st.integers(-3, 3), max_size=10))
def test_distinct_values_and_runs(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    assert distinct(array).tolist() == sorted(set(values))
    starts = starts_of_runs(array).tolist()
    changes = [at for at in range(len(values)) if at == 0 or values[at] != values[at - 1]]
    assert starts == [*changes, len(values)]
