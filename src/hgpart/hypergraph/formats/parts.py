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
    """Write the part of every vertex, one per line, which both PaToH and hMETIS can read.

    Parameters
    ----------
    parts : int32 array, shape (vertices,)
        Parts >= 0.
    file : Path, str or open text file
        A path is replaced only once the file is complete.

    Raises
    ------
    HypergraphError
        If a part is negative.
    OutputError
        If the path can't be written.

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
        yield text[1:] + b"\n"  # a line end after each number, not before it


def read_partition(path: Path | str, vertices: int | None = None, k: int | None = None) -> Int32:
    """Read a partition file: numbers with blanks (PaToH) or line ends (hMETIS) between them.

    A ``%`` starts a comment.

    Parameters
    ----------
    vertices : int, optional
        Number of vertices that the file must have parts for. Default: any.
    k : int, optional
        Number of parts, which every part must be below. Default: any.

    Returns
    -------
    int32 array, shape (vertices,)
        The part of each vertex.

    Raises
    ------
    FormatError
        If the file can't be read, is malformed, or is not a partition of that many vertices into
        k parts; the message names the line.
    """
    most = _MOST_PARTS if k is None else min(k, _MOST_PARTS)
    parts, count, line = [np.empty(0, dtype=np.int32)], 0, 1
    for values, lines in read_numbers(path):
        if vertices is not None and count + len(values) > vertices:
            line = int(lines[vertices - count])
            received = f"'{values[vertices - count]}' after the last of {vertices} parts"
            raise malformed(path, line, received, "the end of the file")
        outside = np.flatnonzero(values >= most)
        if len(outside):
            received = f"part '{values[outside[0]]}'"
            raise malformed(path, int(lines[outside[0]]), received, f"parts from 0 to {most - 1}")
        parts.append(values.astype(np.int32))
        count, line = count + len(values), int(lines[-1])
    if vertices is not None and count < vertices:
        received = f"the end of the file after {count} of {vertices} parts"
        raise malformed(path, line, received, f"{vertices} parts, one for each vertex")
    return np.concatenate(parts)
