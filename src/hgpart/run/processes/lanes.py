"""Ranks -> Lanes: memory that two processes of one machine share, one lane for each direction.

A message through a lane is copied into memory and out of it, and takes microseconds, where one by
gloo wakes a thread on each side, which takes a millisecond from the core that computes. A lane has
little memory, so large messages go by gloo. Linux has what lanes are made of; elsewhere there are
none.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from secrets import token_bytes
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from hgpart._native import SharedWords

INBOX = 2**23  # bytes of memory for all that comes to a process
LEAST = 2**16  # bytes of a lane that is worth having
LINE = 64  # bytes; messages begin at multiples of it
TOKEN = 16  # bytes that tell an inbox from any other file
LOOK = 0.05  # seconds between looks at whether the other process still is there
WRITTEN, TAKEN, CLOSED = 0, 8, 16  # words of a lane, each in a cache line of its own
WORDS = 24


class Lane:
    """A ring of bytes from one process to another, which both know the messages of.

    Both ends place messages in the same order. Bytes are counted from the first one ever sent.

    Parameters
    ----------
    memory : Tensor
        The lane's words, and then its ring.
    is_gone : callable
        Whether the process at the other end has ended.
    timeout : float
        Seconds that an end waits for the other.
    """

    def __init__(self, memory: Tensor, is_gone: Callable[[], bool], timeout: float) -> None:
        head = WORDS * 8
        self._words = SharedWords(memory[:head].view(torch.int64).numpy())
        self._ring = memory[head:]
        self._is_gone, self._timeout = is_gone, timeout
        self._placed = 0
        self._coming: dict[int, bool] = {}  # where messages begin, and whether they were taken

    def largest(self, sizes: Sequence[int]) -> int:
        """Of messages with so many bytes, the largest that fits with all smaller ones; -1 if none.

        They take half of the ring, as a message that does not fit before the ring's end begins
        again at its start: so none of them waits for another to be received.

        >>> memory = torch.zeros(WORDS * 8 + 1024, dtype=torch.uint8)
        >>> Lane(memory, lambda: False, 1.0).largest([300, 100, 400])
        100
        """
        largest, taken = -1, 0
        for size, messages in sorted(Counter(sizes).items()):
            taken += messages * _space(size)
            if taken > len(self._ring) // 2:
                break
            largest = size
        return largest

    def send(self, pieces: Sequence[Tensor]) -> None:
        """Copy a message into the ring as soon as there is room.

        Raises
        ------
        RuntimeError
            If the other end is gone, or leaves no room until the timeout.
        """
        begin = self._place(sum(map(len, pieces)))
        self._wait(TAKEN, self._placed - len(self._ring))
        at = begin % len(self._ring)
        for piece in pieces:
            self._ring[at : at + len(piece)].copy_(piece)
            at += len(piece)
        self._words.publish(WRITTEN, self._placed)

    def expect(self, nbytes: int) -> int:
        """Place a message that is to come; returns what `receive` is to be called with."""
        begin = self._place(nbytes)
        self._coming[begin] = False
        return begin

    def receive(self, begin: int, memory: Tensor) -> None:
        """Wait for an expected message, and copy it out of the ring.

        Raises
        ------
        RuntimeError
            If the other end is gone, or does not send it until the timeout.
        """
        self._wait(WRITTEN, begin + _space(len(memory)))
        at = begin % len(self._ring)
        memory.copy_(self._ring[at : at + len(memory)])
        self._coming[begin] = True
        for first in [*takewhile(self._coming.__getitem__, self._coming)]:
            del self._coming[first]
        self._words.publish(TAKEN, next(iter(self._coming), self._placed))

    def close(self) -> None:
        """Let the other end wait no more."""
        self._words.publish(CLOSED, 1)

    def _place(self, nbytes: int) -> int:
        begin, size = self._placed, len(self._ring)
        if begin % size + _space(nbytes) > size:
            begin += size - begin % size
        self._placed = begin + _space(nbytes)
        return begin

    def _wait(self, word: int, number: int) -> None:
        if self._words.wait(word, number, CLOSED, LOOK):
            return
        end = time.monotonic() + self._timeout
        while not self._words.wait(word, number, CLOSED, LOOK):
            gone = self._words.wait(CLOSED, 1, CLOSED, 0) or self._is_gone()
            if gone and not self._words.wait(word, number, CLOSED, 0):
                raise RuntimeError("Connection closed by the other process")
            if time.monotonic() > end:
                raise RuntimeError("Timed out waiting for the other process")


def _space(nbytes: int) -> int:
    """Bytes that a message takes in a ring."""
    return -(-nbytes // LINE) * LINE


@dataclass(frozen=True)
class Lanes:
    """The two lanes between this process and another.

    Attributes
    ----------
    there, back : Lane
        To the other process, and from it.
    inbox : _Inbox
        This process's, which shows that it lives.
    """

    there: Lane
    back: Lane
    inbox: _Inbox


def lanes_of(
    rank: int, k: int, gather: Callable[[Any], list[Any]], timeout: float
) -> dict[int, Lanes]:
    """Lanes to the processes on this machine, and in its network; all ranks call it.

    Parameters
    ----------
    gather : callable
        Collects a value of each rank.
    timeout : float
        Seconds that an end of a lane waits for the other.
    """
    places = gather(_place())
    here = [each for each in range(k) if places[each] == places[rank] is not None]
    inbox, inboxes = None, dict[int, _Inbox]()
    if len(here) > 1 and INBOX // (len(here) - 1) >= LEAST:
        with suppress(OSError):
            inbox = _Inbox.made()
    addresses: list[_Address | None] = gather(None if inbox is None else inbox.address)
    for peer in here:
        address = addresses[peer]
        if inbox is not None and address is not None and peer != rank:
            with suppress(OSError):
                inboxes[peer] = _Inbox.of(address)
    reached: list[set[int]] = gather({*inboxes})
    lanes = {}
    for peer, outbox in inboxes.items():
        if inbox is not None and rank in reached[peer]:
            ends = outbox.is_gone, timeout
            there = outbox.part([each for each in here if each != peer].index(rank), len(here) - 1)
            back = inbox.part([each for each in here if each != rank].index(peer), len(here) - 1)
            lanes[peer] = Lanes(Lane(there, *ends), Lane(back, *ends), inbox)
    return lanes


@dataclass(frozen=True)
class _Address:
    process: int
    file: int
    token: bytes


class _Inbox:
    """The memory of a process's incoming lanes, which is locked as long as the process lives."""

    def __init__(self, file: int, address: _Address) -> None:
        self._file, self.address = file, address
        finalize(self, os.close, file)
        self._memory = torch.frombuffer(mmap.mmap(file, LINE + INBOX), dtype=torch.uint8)

    @staticmethod
    def made() -> _Inbox:
        """A new one."""
        file = os.memfd_create("hgpart-inbox")
        token = token_bytes(TOKEN)
        os.write(file, token)
        os.ftruncate(file, LINE + INBOX)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _Inbox(file, _Address(os.getpid(), file, token))

    @staticmethod
    def of(address: _Address) -> _Inbox:
        """That of another process."""
        file = os.open(f"/proc/{address.process}/fd/{address.file}", os.O_RDWR)
        if os.fstat(file).st_size != LINE + INBOX or os.read(file, TOKEN) != address.token:
            os.close(file)
            raise FileNotFoundError(address)
        return _Inbox(file, address)

    def part(self, at: int, parts: int) -> Tensor:
        """The memory of one lane."""
        size = INBOX // parts // LINE * LINE
        return self._memory[LINE:][at * size : (at + 1) * size]

    def is_gone(self) -> bool:
        """Whether its process has ended; only another process may ask."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        return True


def _place() -> tuple[object, ...] | None:
    """What processes on one machine, which also see each other's numbers, have in common."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("net", "pid")]
        return Path("/proc/sys/kernel/random/boot_id").read_text(), os.getuid(), *spaces
    except OSError:
        return None
