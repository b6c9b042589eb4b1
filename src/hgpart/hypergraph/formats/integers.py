"""Text of whole numbers <-> int64 arrays, a chunk at a time.

The files of all partitioners are whole numbers with blanks and line ends between them, up to
hundreds of megabytes. So text is made and read in chunks by array operations: no Python object
per number, and no more memory than a few chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int64
from hgpart.errors import FormatError
from hgpart.files.reading import blocks, malformed
from hgpart.files.writing import replacing

CHUNK = 1 << 18  # numbers (writing) or bytes (reading) at a time: these fit the cache
LARGEST = 2**63 - 1
_DIGITS = len(str(LARGEST))

SPACE, NEWLINE = ord(" "), ord("\n")

Numbers: TypeAlias = tuple[Int64, Int64]
"""A chunk of a file: its numbers, and the 1-based line of each."""

_COMMENT = re.compile(rb"%[^\n]*")
_TOKEN = re.compile(rb"[^ \t\r\n]+")


def text_of(numbers: Int64, separators: NDArray[np.uint8]) -> bytes:
    r"""Write numbers >= 0 in decimal, each after its separator (a byte).

    >>> text_of(np.array([10, 0, 7]), np.array([NEWLINE, SPACE, SPACE], dtype=np.uint8))
    b'\n10 0 7'
    """
    widths = np.ones(len(numbers), dtype=np.int64)
    largest = int(numbers.max(initial=0))
    for digits in range(1, len(str(largest))):
        widths += numbers >= 10**digits
    ends = np.cumsum(widths + 1)
    text = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    text[ends - widths - 1] = separators
    rest, place = numbers.astype(np.uint64), ends - 1
    while len(rest):  # all last digits, then all last but one, ...
        tens = rest // np.uint64(10)
        text[place] = (rest - tens * np.uint64(10)).astype(np.uint8) + np.uint8(ord("0"))
        longer = np.flatnonzero(tens)
        rest, place = tens[longer], place[longer] - 1
    return text.tobytes()


def write_text(file: Path | str | TextIO, chunks: Iterable[bytes]) -> None:
    """Write chunks of ASCII text to a path (whole or not at all) or to an open text file."""
    if isinstance(file, (Path, str)):
        with replacing(file, "wb") as stream:
            stream.writelines(chunks)
    else:
        file.writelines(chunk.decode("ascii") for chunk in chunks)


def read_numbers(path: Path | str) -> Iterator[Numbers]:
    """Read the numbers of a file, chunk by chunk; no chunk is empty.

    A ``%`` starts a comment, to the end of its line. Only digits, blanks and line ends may stand
    outside comments, and no number may exceed 2^63 - 1.

    Raises
    ------
    FormatError
        If the file can't be read, or a line has anything else in it.
    """
    line = 1
    for text in _chunks(path):
        values, lines = _parse(path, text, line)
        if len(values):
            yield values, lines
        line += text.count(b"\n")


def split_header(
    path: Path | str, numbers: Iterator[Numbers], accepted: str
) -> tuple[list[int], int, Iterator[Numbers]]:
    """Split off the first line with numbers: its numbers, its line, and the numbers after it.

    Raises
    ------
    FormatError
        If the file has no number; `accepted` says what its first line could be.
    """
    try:
        values, lines = next(numbers)
    except StopIteration:
        raise malformed(path, 1, "a file without a number", accepted) from None
    size = int(np.searchsorted(lines, lines[0], side="right"))
    rest = chain([(values[size:], lines[size:])], numbers)
    return values[:size].tolist(), int(lines[0]), rest


def shortened(line: bytes | list[int]) -> str:
    """Quote what a line has, in at most 40 characters.

    >>> shortened(b"1.5"), shortened([3, 4])
    ("'1.5'", "'3 4'")
    """
    if isinstance(line, list):
        line = " ".join(map(str, line[:40])).encode()
    text = line[:40].decode("ascii", "backslashreplace")
    return repr(text if len(text) <= 36 else f"{text[:33]}...")


def _chunks(path: Path | str) -> Iterator[bytes]:
    """Read a file without its comments, cut between numbers; an endless file is refused."""
    tail = b""
    try:
        with Path(path).open("rb") as file:
            for block in blocks(file, CHUNK):
                is_last = len(block) < CHUNK
                block = tail + block
                cut = len(block) if is_last else block.rfind(b"\n") + 1
                if not cut and (comment := block.find(b"%")) >= 0:
                    # The comment goes on in the next block: its "%" goes there too.
                    yield block[:comment]
                    tail = b"%"
                    continue
                if not cut:  # a line longer than a block, such as all weights of a PaToH file
                    cut = max(block.rfind(b" "), block.rfind(b"\t"), block.rfind(b"\r")) + 1
                cut = cut or len(block)  # more digits than any number has
                yield _COMMENT.sub(b"", block[:cut])
                tail = block[cut:]
    except OSError as error:
        raise FormatError(f"can't read {path}: {error.strerror}") from error
    yield _COMMENT.sub(b"", tail)


def _parse(path: Path | str, text: bytes, line: int) -> Numbers:
    """Read the numbers of a text whose first line is line `line` of the file."""
    codes = np.frombuffer(text, dtype=np.uint8)
    digits = codes - np.uint8(ord("0"))  # wraps: characters below "0" become large
    is_digit = digits < 10
    is_blank = (codes == SPACE) | (codes == NEWLINE) | (codes == ord("\r")) | (codes == ord("\t"))
    edges = np.flatnonzero(np.diff(is_digit, prepend=False, append=False))
    starts, widths = edges[::2], edges[1::2] - edges[::2]
    longest = int(widths.max(initial=0))
    if longest > _DIGITS or not (is_digit | is_blank).all():
        raise _unreadable(path, text, line)

    values = np.zeros(len(starts), dtype=np.int64)
    longer = np.arange(len(starts))
    for digit in range(longest):  # all first digits, then all second ones, ...
        longer = longer[widths[longer] > digit]
        values[longer] = values[longer] * 10 + digits[starts[longer] + digit]
    if (values < 0).any():  # 19 digits fit in 64 bits, so numbers that are too large are negative
        raise _unreadable(path, text, line)

    line_ends = np.flatnonzero(codes == NEWLINE)
    return values, line + np.searchsorted(line_ends, starts)


def _unreadable(path: Path | str, text: bytes, line: int) -> FormatError:
    """The error about the first token that `_parse` could not read."""
    token = next(
        token
        for token in _TOKEN.finditer(text)
        if not token[0].isdigit() or len(token[0]) > _DIGITS or int(token[0]) > LARGEST
    )
    line += text.count(b"\n", 0, token.start())
    return malformed(path, line, shortened(token[0]), f"whole numbers from 0 to {LARGEST}")
