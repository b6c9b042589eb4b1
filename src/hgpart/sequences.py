"""Sequences of numbers of any lengths in two flat arrays: which are equal, and what they contain.

A model of millions of tasks has as many sequences of readers or of nets. Everything here takes a
little more than linear time, and has no loop over sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Float64, Int64


@dataclass(frozen=True)
class Sequences:
    """Sequence i is ``values[pointers[i]:pointers[i + 1]]``.

    Examples
    --------
    >>> lists = Sequences.of_pairs(np.array([0, 2, 0, 0]), np.array([7, 7, 1, 7]), 3)
    >>> lists.pointers.tolist(), lists.values.tolist()
    ([0, 2, 2, 3], [1, 7, 7])
    >>> lists[0].tolist()
    [1, 7]
    """

    pointers: Int64
    values: Int64

    @classmethod
    def of_pairs(cls, owners: Int64, values: Int64, count: int) -> Sequences:
        """For each owner from 0 to count - 1, its values >= 0, ascending, each once."""
        owners, values = distinct_pairs(owners, values)
        return cls(np.searchsorted(owners, np.arange(count + 1)), values)

    @classmethod
    def of_spans(cls, first: Int64, last: Int64) -> Sequences:
        """Sequences ``first[i], ..., last[i] - 1``.

        >>> Sequences.of_spans(np.array([5, 0]), np.array([7, 1])).values.tolist()
        [5, 6, 0]
        """
        reach = np.concatenate([[0], np.cumsum(last - first)])
        numbered = cls(reach, np.arange(reach[-1]))
        return cls(reach, numbered.values + (first - reach[:-1])[numbered.owners])

    @classmethod
    def joined(cls, pieces: Iterable[Sequences]) -> Sequences:
        """All sequences of several pieces, one piece after another."""
        none = cls(np.zeros(1, np.int64), np.zeros(0, np.int64))
        all_pieces = [none, *pieces]
        lengths = np.concatenate([piece.lengths for piece in all_pieces])
        values = np.concatenate([piece.values for piece in all_pieces])
        return cls(np.concatenate([[0], np.cumsum(lengths)]), values)

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.pointers) - 1

    def __getitem__(self, at: int) -> Int64:
        """The values of a sequence."""
        return self.values[self.pointers[at] : self.pointers[at + 1]]

    @property
    def lengths(self) -> Int64:
        """Length of each sequence."""
        return np.diff(self.pointers)

    @property
    def owners(self) -> Int64:
        """The number of the sequence that each value is in."""
        owners: Int64 = np.repeat(np.arange(len(self)), self.lengths)
        return owners

    def take(self, chosen: Int64) -> Sequences:
        """The chosen sequences, in that order."""
        places = Sequences.of_spans(self.pointers[chosen], self.pointers[chosen + 1])
        return Sequences(places.pointers, self.values[places.values])

    def shifted(self, by: int) -> Sequences:
        """The same sequences with `by` added to each value."""
        return Sequences(self.pointers, self.values + by)

    def alike(self) -> tuple[Int64, Int64]:
        """Number the sequences, with equal ones sharing a number, as `equal_rows` does.

        >>> lists = Sequences(np.array([0, 2, 3, 5]), np.array([7, 1, 7, 7, 1]))
        >>> [side.tolist() for side in lists.alike()]
        [[0, 1, 0], [0, 1]]
        """
        lengths = self.lengths
        numbers = np.zeros(len(self), dtype=np.int64)
        firsts = [np.zeros(0, np.int64)]
        count = 0
        for length in np.flatnonzero(np.bincount(lengths)).tolist():
            chosen = np.flatnonzero(lengths == length)
            table = self.values[self.pointers[chosen, None] + np.arange(length)]
            own, first = equal_rows(table)
            numbers[chosen] = count + own
            firsts.append(chosen[first])
            count += len(first)
        return _by_appearance(numbers, np.concatenate(firsts))

    def united(self, inner: Sequences) -> Sequences:
        """For each sequence, the values of all inner sequences that it names, each once.

        >>> inner = Sequences(np.array([0, 2, 4]), np.array([3, 5, 1, 5]))
        >>> Sequences(np.array([0, 2]), np.array([0, 1])).united(inner)[0].tolist()
        [1, 3, 5]
        """
        named = inner.take(self.values)
        return Sequences.of_pairs(self.owners[named.owners], named.values, len(self))


def distinct(values: Int64) -> Int64:
    """Each value once, ascending: like `np.unique`, which is slow for millions of values.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = values if (np.diff(values) >= 0).all() else np.sort(values)
    distinct_values: Int64 = ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]
    return distinct_values


def distinct_pairs(left: Int64, right: Int64) -> tuple[Int64, Int64]:
    """Each pair of numbers >= 0 once, in order.

    >>> [side.tolist() for side in distinct_pairs(np.array([1, 0, 1]), np.array([2, 5, 2]))]
    [[0, 1], [5, 2]]
    """
    width = int(right.max(initial=0)) + 1
    keys = distinct(left.astype(np.int64) * width + right)
    return keys // width, keys % width


def sums_of(owners: Int64, values: NDArray[Any], count: int) -> Float64:
    """The sum of each owner's values, from 0 to count - 1.

    >>> sums_of(np.array([1, 0, 1]), np.array([0.5, 2, 1]), 3).tolist()
    [2.0, 1.5, 0.0]
    """
    return np.bincount(owners, values, count).astype(np.float64)


def starts_of_runs(keys: Int64) -> Int64:
    """Where each run of equal keys begins, and then the number of keys.

    >>> starts_of_runs(np.array([4, 4, 7])).tolist()
    [0, 2, 3]
    """
    changes = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    return np.append(changes, len(keys)).astype(np.int64)


def equal_rows(table: Int64) -> tuple[Int64, Int64]:
    """Number the rows of a table in order of first appearance; equal rows share a number.

    Returns
    -------
    int64 array, shape (rows,)
        Number of each row.
    int64 array, shape (numbers,)
        The first row of each number.

    >>> [side.tolist() for side in equal_rows(np.array([[7, 1], [0, 2], [7, 1]]))]
    [[0, 1, 0], [0, 1]]
    """
    count, columns = table.shape
    if count == 0 or columns == 0:
        return np.zeros(count, dtype=np.int64), np.zeros(min(1, count), dtype=np.int64)
    low = table.min(axis=0)
    widths = [
        int(high) - int(least) + 1 for high, least in zip(table.max(axis=0), low, strict=True)
    ]
    if math.prod(widths) < 2**63:  # a single number per row, which sorts faster
        rows: NDArray[Any] = np.zeros(count, dtype=np.int64)
        for column, least, width in zip(table.T, low, widths, strict=True):
            rows = rows * width + (column - least)
    else:
        packed = np.ascontiguousarray(table)
        rows = packed.view(np.dtype((np.void, packed.itemsize * columns))).ravel()
    _, first, numbers = np.unique(rows, return_index=True, return_inverse=True)
    return _by_appearance(numbers, first)


def _by_appearance(numbers: Int64, first: Int64) -> tuple[Int64, Int64]:
    order = np.argsort(first)
    rank = np.empty(len(first), dtype=np.int64)
    rank[order] = np.arange(len(first))
    return rank[numbers], first[order]
