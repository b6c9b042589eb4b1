"""Keys and bytes <-> files in the user's folder of caches, whole, bounded, and the user's own."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hgpart.errors import OutputError
from hgpart.files.writing import replacing
from hgpart.terminal import warn

SWITCH = "HGPART_TRACES"
KEEP, NOT = "keep", "off"
LARGEST = 256 * 10**6  # bytes of all files
_OLD = 3600.0  # seconds after which a file that was begun is no other process's any more
_SUFFIX = ".trace"
_DIGEST = 16


def is_on() -> bool:
    """Whether traces are kept: as the variable HGPART_TRACES says, which processes pass on."""
    return os.environ.get(SWITCH) == KEEP


@contextmanager
def keeping(wanted: bool) -> Iterator[None]:
    """Keep traces inside the block, or none; so do processes that are started there.

    Where the variable is set already, it decides.
    """
    before = os.environ.get(SWITCH)
    if not wanted or before is None:
        os.environ[SWITCH] = KEEP if wanted else NOT
    try:
        yield
    finally:
        os.environ.pop(SWITCH)
        if before is not None:
            os.environ[SWITCH] = before


def folder() -> Path:
    """Where traces are kept: in $XDG_CACHE_HOME, or else in ~/.cache."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    caches = Path(given) if given.startswith("/") else Path("~/.cache").expanduser()
    return caches / "hgpart" / "traces"


def load(key: str) -> bytes | None:
    """What was kept under a key; None where there is nothing, or nothing that can be read.

    A file that is damaged is said to be, and removed.
    """
    try:
        path = folder() / f"{key}{_SUFFIX}"
        if not path.parent.is_dir() or not _is_own(path.parent):
            return None
        data = path.read_bytes()
        os.utime(path)  # the one that is not read for longest goes first
    except (OSError, RuntimeError):  # a RuntimeError: the user has no home
        return None
    if data[:_DIGEST] == _digest(key, data[_DIGEST:]):
        return data[_DIGEST:]
    drop(key, "is damaged")
    return None


def save(key: str, data: bytes) -> None:
    """Keep bytes under a key; where that fails, nothing is kept, and a line says so."""
    try:
        path = folder()
        for made in (path.parent, path):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(path):
            return
        with replacing(path / f"{key}{_SUFFIX}", "wb") as file:
            file.write(_digest(key, data) + data)
        _make_room(path)
    except (OSError, OutputError, RuntimeError) as error:
        warn(f"the trace of the model can't be kept: {error}")


def drop(key: str, why: str) -> None:
    """Remove what is kept under a key, and say why."""
    path = folder() / f"{key}{_SUFFIX}"
    warn(f"{path} {why}: the model is traced anew")
    with suppress(OSError):
        path.unlink()


def _is_own(path: Path) -> bool:
    """Whether a folder is the user's alone; says so if not."""
    facts = path.lstat()
    is_own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
    if not is_own or facts.st_mode & 0o077:
        warn(
            f"{path} is another user's, a link, or open to others, and not used: accepted is a "
            "folder of your own with mode 700"
        )
        return False
    return True


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.blake2b(key.encode() + data, digest_size=_DIGEST).digest()


def _make_room(path: Path) -> None:
    """Remove the files that were not read for longest, until all take LARGEST bytes at most."""
    files: list[tuple[float, int, Path]] = []
    for file in path.iterdir():
        with suppress(OSError):  # another process may have removed it
            facts = file.lstat()
            if file.suffix == _SUFFIX:
                files.append((facts.st_mtime, facts.st_size, file))
            elif time.time() - facts.st_mtime > _OLD:
                file.unlink()
    room = LARGEST
    for _, size, file in sorted(files, reverse=True):
        room -= size
        if room < 0:
            with suppress(OSError):
                file.unlink()
