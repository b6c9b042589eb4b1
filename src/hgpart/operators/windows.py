"""Windows: for each row of a result, the rows of an operand that it is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from hgpart.arrays import Bool, Int64
from hgpart.sequences import Sequences

LARGEST_TABLE = 2**25  # bytes; windows on more rows are composed pair by pair, without a table
LONGEST_PERIOD = 32  # rows after which a stride is looked for in windows that repeat


@dataclass(frozen=True, eq=False)
class Windows:
    """For each row of a result, the rows of an operand that it is computed from: its window.

    Attributes
    ----------
    reads : Sequences
        The window of each row of the result: rows of the operand, ascending, each once. A window
        may have gaps, as that of a dilated convolution has, and may be empty.
    height : int
        Number of rows of the operand.
    """

    reads: Sequences
    height: int

    # ------------------------------------------------------------------ how windows are made

    @classmethod
    def of_pairs(cls, rows: Int64, read: Int64, count: int, height: int) -> Windows:
        """Windows of `count` rows, from pairs of a row and a row that it reads, in any order."""
        return cls(Sequences.of_pairs(rows, read, count), height)

    @classmethod
    def of_table(cls, table: Bool) -> Windows:
        """Windows from a table that says of each row (line) which rows (columns) it reads."""
        places = np.flatnonzero(table)
        pointers = np.concatenate([[0], np.cumsum(table.sum(axis=1))])
        return cls(Sequences(pointers, places % max(1, table.shape[1])), table.shape[1])

    @classmethod
    def identity(cls, height: int) -> Windows:
        """Each row reads the row at its own place."""
        return cls(Sequences(np.arange(height + 1), np.arange(height)), height)

    @classmethod
    def all_rows(cls, count: int, height: int) -> Windows:
        """Each of `count` rows reads all."""
        return cls.of_spans(np.zeros(count, np.int64), np.full(count, height), height)

    @classmethod
    def of_spans(cls, first: Int64, last: Int64, height: int) -> Windows:
        """Row i reads the rows ``first[i], ..., last[i] - 1``."""
        return cls(Sequences.of_spans(first, last), height)

    @classmethod
    def sliding(
        cls,
        kernel: int,
        height: int,
        count: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        padding: int = 0,
    ) -> Windows:
        """Windows of a convolution or a pooling with `count` rows; padding is not read.

        >>> Windows.sliding(3, height=5, count=3, stride=2, padding=1).reads[0].tolist()
        [0, 1]
        """
        rows = np.repeat(np.arange(count), kernel)
        read = rows * stride - padding + np.tile(np.arange(kernel), count) * dilation
        inside = (read >= 0) & (read < height)
        return cls.of_pairs(rows[inside], read[inside], count, height)

    @classmethod
    def spread(
        cls,
        kernel: int,
        height: int,
        count: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        padding: int = 0,
    ) -> Windows:
        """Windows of a transposed convolution: those of a convolution, read backwards.

        >>> windows = Windows.spread(3, height=3, count=7, stride=2)
        >>> [windows.reads[row].tolist() for row in range(4)]
        [[0], [0], [0, 1], [1]]
        """
        slides = cls.sliding(
            kernel, count, height, stride=stride, dilation=dilation, padding=padding
        )
        return slides.readers()

    # ------------------------------------------------------------------ what they say

    def __len__(self) -> int:
        """Number of rows of the result."""
        return len(self.reads)

    @cached_property
    def is_identity(self) -> bool:
        """Whether each row reads the row at its own place, and there are as many."""
        same = np.arange(self.height)
        return len(self) == self.height and (
            np.array_equal(self.reads.values, same) and bool((self.reads.lengths == 1).all())
        )

    def equals(self, other: Windows) -> bool:
        """Whether each row reads the same rows as in other windows."""
        return (
            self.height == other.height
            and np.array_equal(self.reads.pointers, other.reads.pointers)
            and np.array_equal(self.reads.values, other.reads.values)
        )

    @property
    def widest(self) -> int:
        """Number of rows of the largest window."""
        return int(self.reads.lengths.max(initial=0))

    @cached_property
    def stride(self) -> Fraction:
        """Rows of the operand for each row of the result.

        It is read off windows inside the operand that repeat, else off both numbers of rows.

        >>> Windows.sliding(3, height=16, count=8, stride=2, padding=1).stride
        Fraction(2, 1)
        """
        rows = np.flatnonzero(self.reads.lengths > 0)
        first = self.reads.values[self.reads.pointers[rows]]
        last = self.reads.values[self.reads.pointers[rows + 1] - 1]
        inside = rows[(first > 0) & (last < self.height - 1)]
        ends = np.full((len(self), 2), -1, dtype=np.int64)
        ends[rows] = np.stack([first, last], axis=1)
        for period in range(1, 1 + min(LONGEST_PERIOD, len(self))):
            left = inside[np.isin(inside + period, inside)]
            shifts = np.unique(ends[left + period] - ends[left])
            if len(left) and len(shifts) == 1:
                return Fraction(int(shifts[0]), period)
        return Fraction(self.height, max(1, len(self)))

    # ------------------------------------------------------------------ windows of windows

    def compose(self, inner: Windows) -> Windows:
        """Windows of the same rows on what the operand itself is computed from, by `inner`.

        >>> kernel = Windows.sliding(3, height=8, count=8, padding=1)
        >>> kernel.compose(kernel).reads[4].tolist()
        [2, 3, 4, 5, 6]
        """
        if self.is_identity:
            return inner
        if inner.is_identity:
            return self
        if len(inner) * inner.height > LARGEST_TABLE:
            return Windows(self.reads.united(inner.reads), inner.height)
        words = -(-inner.height // 64)
        bits = np.zeros((len(inner), 8 * words), dtype=np.uint8)
        bits[:, : -(-inner.height // 8)] = np.packbits(inner.table, axis=1)
        lines = bits.view(np.uint64)
        united = np.zeros((len(self), words), dtype=np.uint64)
        reads = self.reads
        filled = np.flatnonzero(reads.lengths)
        begin = 0
        while begin < len(filled):  # so many rows at once that their lines do not take too much
            first = reads.pointers[filled[begin]]
            within = first + max(1, LARGEST_TABLE // (8 * words))
            end = max(begin + 1, int(np.searchsorted(reads.pointers[filled + 1], within, "right")))
            chosen = filled[begin:end]
            taken = lines[reads.values[first : reads.pointers[chosen[-1] + 1]]]
            starts = reads.pointers[chosen] - first
            united[chosen] = np.bitwise_or.reduceat(taken, starts, axis=0)
            begin = end
        table = np.unpackbits(united.view(np.uint8), axis=1, count=inner.height)
        return Windows.of_table(table.astype(np.bool_))

    def union(self, other: Windows) -> Windows:
        """For each row, the rows that it reads by either of two windows."""
        if self.is_identity and other.is_identity:
            return self
        rows = np.concatenate([self.reads.owners, other.reads.owners])
        read = np.concatenate([self.reads.values, other.reads.values])
        return Windows.of_pairs(rows, read, len(self), self.height)

    def readers(self) -> Windows:
        """The same pairs the other way round: for each row of the operand, the rows that read it.

        >>> Windows.sliding(3, height=5, count=3).readers().reads[2].tolist()
        [0, 1, 2]
        """
        return Windows.of_pairs(self.reads.values, self.reads.owners, self.height, len(self))

    def together(self) -> Windows:
        """A single window: the rows that any row reads."""
        read = self.reads.values
        return Windows.of_pairs(np.zeros(len(read), np.int64), read, 1, self.height)

    @property
    def table(self) -> Bool:
        """A table that says of each row (line) which rows (columns) it reads."""
        table = np.zeros((len(self), self.height), dtype=np.bool_)
        table[self.reads.owners, self.reads.values] = True
        return table
