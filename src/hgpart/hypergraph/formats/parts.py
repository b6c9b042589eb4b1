"""Partition <-> partition file: the part of every vertex, in the order of the vertices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from hgpart.arrays import Int32
from hgpart.errors import HypergraphError
from hgpart.files.reading import malformed
from hgpart.hypergraph.formats.integers import CHUNK, NEWLINE, read_numbers, text_of, write_text

_MOST_PARTS = 2**31  # parts are int32


def write_partition(parts: Int32, file: Path | str | TextIO) -> None:
    """Write the part of every vertex, one on each line: what PaToH and hMETIS both read.

    Parameters
    ----------
    parts : int32 array, shape (vertices,)
        Parts >= 0.
    file
        A path, which is replaced only once the file is complete, or an open text file.

    Raises
    ------
    HypergraphError
        A part is negative.
    OutputError
        The path can't be written.

    Examples
    --------
    >>> import sys
    >>> write_partition(np.array([0, 1, 1], dtype=np.int32), sys.stdout)
    0
    1
    1
    """
    if parts.min(initial=0) < 0:
        raise HypergraphError(f"found part {parts.min()}; accepted: parts from 0 on")
    write_text(file, _text(parts))


def _text(parts: Int32) -> Iterator[bytes]:
    for first in range(0, len(parts), CHUNK):
        chunk = parts[first : first + CHUNK].astype(np.int64)
        text = text_of(chunk, np.full(len(chunk), NEWLINE, dtype=np.uint8))
        yield text[1:] + b"\n"  # a line end behind each number, not in front of it


def read_partition(path: Path | str, vertices: int | None = None, k: int | None = None) -> Int32:
    """Read a partition file: numbers with blanks (PaToH) or line ends (hMETIS) between them.

    A ``%`` starts a comment.

    Parameters
    ----------
    path
        The file.
    vertices
        How many numbers it must have; None means any.
    k
        The number of parts, which every number must be below; None means any.

    Returns
    -------
    int32 array, shape (vertices,)
        The part of each vertex.

    Raises
    ------
    FormatError
        The file can't be read, is malformed, or is not a partition of that many vertices into k
        parts; names the line.
    """
    most = _MOST_PARTS if k is None else min(k, _MOST_PARTS)
    parts, count, line = [np.empty(0, dtype=np.int32)], 0, 1
    for values, lines in read_numbers(path):
        if vertices is not None and count + len(values) > vertices:
            line = int(lines[vertices - count])
            found = f"'{values[vertices - count]}' after the last of {vertices} parts"
            raise malformed(path, line, found, "the end of the file")
        outside = np.flatnonzero(values >= most)
        if len(outside):
            found = f"part '{values[outside[0]]}'"
            raise malformed(path, int(lines[outside[0]]), found, f"parts from 0 to {most - 1}")
        parts.append(values.astype(np.int32))
        count, line = count + len(values), int(lines[-1])
    if vertices is not None and count < vertices:
        found = f"the end of the file after {count} of {vertices} parts"
        raise malformed(path, line, found, f"{vertices} parts, one for each vertex")
    return np.concatenate(parts)
