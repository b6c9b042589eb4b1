"""Reading a file only as far as it can be one of ours: a device or a pipe need not have an end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hgpart.errors import FormatError

LARGEST = 2**28  # bytes; the largest plans have some millions
BLOCK = 2**20


def read_bytes(path: Path | str, most: int | None = None) -> bytearray:
    """Read a whole file of at most so many bytes, `LARGEST` when left out.

    Raises
    ------
    OSError
        If it can't be read, or has more.

    Examples
    --------
    >>> read_bytes("/dev/zero", most=1000)
    Traceback (most recent call last):
    OSError: [Errno 27] more than 1000 bytes
    """
    content = bytearray()
    with Path(path).open("rb") as file:
        for block in blocks(file, BLOCK, LARGEST if most is None else most):
            content += block
    return content


def blocks(file: BinaryIO, size: int, most: int | None = None) -> Iterator[bytes]:
    """Read a file block by block; each has `size` bytes but the last.

    Parameters
    ----------
    file
        Open for reading, at its start.
    size
        Bytes of a block.
    most
        How many bytes it may have. When left out, a regular file may have any number, whose room
        on the disk is proof that it is meant, and everything else `LARGEST`.

    Raises
    ------
    OSError
        If it has more.
    """
    if most is None and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        most = LARGEST
    count = 0
    while block := file.read(size):
        count += len(block)
        if most is not None and count > most:
            raise OSError(errno.EFBIG, f"more than {most} bytes")
        yield block


def malformed(path: Path | str, line: int, found: str, accepted: str) -> FormatError:
    """Make the error for a line of a file: what is there, and what could be."""
    return FormatError(f"{path}, line {line}: found {found}; accepted: {accepted}")
