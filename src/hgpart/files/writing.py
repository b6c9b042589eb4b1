"""Writing a result so that its file is there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TextIO, overload

from hgpart.errors import OutputError


def write_text(path: Path | str, text: str) -> None:
    """Write a text to a file, which is there whole or not at all; see `replacing`.

    Raises
    ------
    OutputError
        If the file can't be written.
    """
    with replacing(path) as file:
        file.write(text)


@overload
def replacing(path: Path | str, mode: Literal["w"] = "w") -> AbstractContextManager[TextIO]: ...
@overload
def replacing(path: Path | str, mode: Literal["wb"]) -> AbstractContextManager[BinaryIO]: ...
def replacing(
    path: Path | str, mode: Literal["w", "wb"] = "w"
) -> AbstractContextManager[TextIO] | AbstractContextManager[BinaryIO]:
    """Open a file for writing that takes its name only once it is complete.

    What is written goes to a temporary file in the same folder, which is renamed to `path` when
    the ``with`` block ends. If the block raises, Ctrl-C included, the temporary file is removed
    and what was at `path` before is untouched. A symbolic link keeps pointing at its file, which
    is replaced; a file that is replaced passes on its permissions; what is not a regular file
    (a pipe, ``/dev/null``) is written to directly.

    Parameters
    ----------
    path
        Where the result is to be.
    mode
        ``"w"`` for text (UTF-8, lines end in a line feed), ``"wb"`` for bytes.

    Raises
    ------
    OutputError
        The file can't be created, written or renamed. Any OSError of the ``with`` block counts as
        that: the block should write and do nothing else.

    Examples
    --------
    >>> import tempfile
    >>> result = Path(tempfile.mkdtemp()) / "result.txt"
    >>> with replacing(result) as file:
    ...     _ = file.write("4 parts")
    ...     result.exists()
    False
    >>> result.read_text()
    '4 parts'
    """
    return _replacing(Path(path), mode)


@contextmanager
def _replacing(path: Path, mode: str) -> Iterator[Any]:
    try:
        if "\0" in str(path):
            raise OSError("a NUL in its name")
        if path.exists() and not path.is_file():
            # Renaming over a device would destroy it; opening a folder fails as it should.
            with _open(path, mode) as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        temporary = target.with_name(f".hgpart-{secrets.token_hex(8)}.tmp")
        try:
            with _open(temporary, mode) as file:
                yield file
            if target.exists():
                temporary.chmod(target.stat().st_mode)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OutputError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(
            f"can't write {path}: {reason}; accepted: a file in a folder that exists, "
            "is writable and has room"
        ) from error


def _open(path: Path, mode: str) -> IO[Any]:
    if mode == "wb":
        return path.open(mode)
    # Half a character, as in a file's name that is no UTF-8, is written as an escape.
    return path.open(mode, encoding="utf-8", errors="backslashreplace", newline="\n")
