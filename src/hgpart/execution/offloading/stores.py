"""Bytes -> slower memory: a file of a part on a CPU, the memory of the host of one on a GPU."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hgpart.errors import RunError


class StoredBytes(Protocol):
    """Bytes in slower memory, which are given up with the last reference to their place."""

    def read(self) -> Tensor:
        """The bytes, on the part's device: a uint8 tensor of one dimension with its own memory."""


class SlowStore(Protocol):
    """A part's slower memory."""

    def write(self, data: Tensor) -> StoredBytes:
        """Write bytes: a uint8 tensor of one dimension."""


def slow_store(device: torch.device) -> SlowStore:
    """A file for a part on a CPU, the memory of the host for one on a GPU."""
    return InFile() if device.type == "cpu" else OnHost(device)


class InFile:
    """A file without a name in the folder for temporary files, which goes with its process.

    Its places are used again for as many bytes, so that steps of one kind need no more room than
    the first.
    """

    def __init__(self) -> None:
        self._file: Any = None
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._unused: dict[int, list[int]] = {}  # where places of so many bytes begin
        self.nbytes = 0  # of the file

    def write(self, data: Tensor) -> StoredBytes:
        """Write bytes; a RunError if they can't be written."""
        with _refused(f"{data.nbytes} bytes to offload"):
            if self._file is None or self._process != os.getpid():  # a child has its own
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as its part
                self._forget()
            unused, rest = self._unused.setdefault(data.nbytes, []), data.numpy().data
            begin = unused.pop() if unused else self.nbytes
            self.nbytes = max(self.nbytes, begin + data.nbytes)
            place = _InFile(self, self._file, begin, data.nbytes)
            while rest:
                written = os.pwrite(self._file.fileno(), rest, begin)
                rest, begin = rest[written:], begin + written
        return place

    def read(self, file: Any, begin: int, nbytes: int) -> Tensor:
        """Read bytes that were written to a file; a RunError if they can't be read."""
        data = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        rest = data.numpy().data
        with _refused(f"{nbytes} offloaded bytes to read back"):
            while rest:
                count = os.preadv(file.fileno(), [rest], begin)
                if not count:
                    raise OSError(errno.EIO, "they are gone from their file")
                rest, begin = rest[count:], begin + count
        return data

    def give_up(self, file: Any, begin: int, nbytes: int) -> None:
        """Let a place be used again, unless it is of the process that this was forked from."""
        if file is self._file:
            self._unused.setdefault(nbytes, []).append(begin)


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{what}: {error.strerror}; accepted is a folder for temporary files that has room "
            "for them: TMPDIR names it"
        ) from error


@dataclass(frozen=True, eq=False)
class _InFile:
    memory: InFile
    file: Any
    begin: int
    nbytes: int

    def read(self) -> Tensor:
        return self.memory.read(self.file, self.begin, self.nbytes)

    def __del__(self) -> None:
        self.memory.give_up(self.file, self.begin, self.nbytes)


@dataclass(frozen=True)
class OnHost:
    """Pinned memory of a GPU's host, copied to and from in the order of the GPU's work."""

    device: torch.device

    def write(self, data: Tensor) -> StoredBytes:
        """Begin to copy bytes to the host."""
        copy = torch.empty(data.shape, dtype=torch.uint8, device="cpu", pin_memory=True)
        copy.copy_(data, non_blocking=True)
        return _OnHost(copy, self.device)


@dataclass(frozen=True, eq=False)
class _OnHost:
    copy: Tensor
    device: torch.device

    def read(self) -> Tensor:
        return self.copy.to(self.device, non_blocking=True)
