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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from secrets import token_bytes
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from hgpart import _native
from hgpart.errors import RunError

INBOX = 2**23  # bytes of memory for all that comes to a process
LEAST = 2**16  # bytes of a lane that is worth having
LINE = 64  # bytes; messages begin at multiples of it
HEADER = 16  # bytes before a message, which say its number and its size
NAME, TOKEN = "hgpart-inbox", 16  # TOKEN bytes at its begin tell an inbox from another
LOOK = 0.5  # seconds between looks at whether the other process still is there
WRITTEN, TAKEN, CLOSED = 0, 8, 16  # words of a lane, each in a cache line of its own
WORDS = 24


class Lane:
    """A ring of bytes from one process to another, whose messages both ends know beforehand.

    Both ends say them in the same order. Bytes are counted from the first one ever sent.

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
        self._words = memory[:head].view(torch.int64).numpy()
        self._ring = memory[head:]
        self._headers = self._ring.view(torch.int64).numpy()
        self._is_gone, self._timeout = is_gone, timeout
        self._said = 0
        self._coming: dict[int, bool] = {}  # where messages begin, and whether they were taken

    def fitting(self, sizes: Mapping[int, int]) -> frozenset[int]:
        """The messages, by number, that have room together if they are chosen from the smallest on.

        They take half of the ring, as a message that does not fit before the ring's end begins
        again at its start: so none of them waits for another to be received.

        Parameters
        ----------
        sizes : mapping of int to int
            Bytes of the messages of a pass.

        >>> memory = torch.zeros(WORDS * 8 + 1024, dtype=torch.uint8)
        >>> sorted(Lane(memory, lambda: False, 1.0).fitting({7: 300, 8: 100, 9: 400}))
        [7, 8]
        """
        fitting, taken = set[int](), 0
        for number, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
            taken += _space(size)
            if taken > len(self._ring) // 2:
                break
            fitting.add(number)
        return frozenset(fitting)

    def send(self, number: int, pieces: Sequence[Tensor]) -> None:
        """Copy a message into the ring as soon as there is room.

        Parameters
        ----------
        pieces : sequence of Tensor
            Bytes on the CPU, one after the other.

        Raises
        ------
        RuntimeError
            If the other end is gone, or leaves no room until the timeout.
        """
        nbytes = sum(map(len, pieces))
        begin = self._next(nbytes)
        self._wait(TAKEN, self._said - len(self._ring))
        at = begin % len(self._ring)
        self._headers[at // 8], self._headers[at // 8 + 1] = number, nbytes
        at += HEADER
        for piece in pieces:
            self._ring[at : at + len(piece)].copy_(piece)
            at += len(piece)
        _native.publish(self._words, WRITTEN, self._said)

    def expect(self, nbytes: int) -> int:
        """Say the next message that is to come; returns where it begins, for `receive`."""
        begin = self._next(nbytes)
        self._coming[begin] = False
        return begin

    def receive(self, begin: int, number: int, memory: Tensor) -> None:
        """Wait for an expected message, and copy it out of the ring.

        Raises
        ------
        RunError
            If another message comes.
        RuntimeError
            If the other end is gone, or does not send it until the timeout.
        """
        self._wait(WRITTEN, begin + _space(len(memory)))
        at = begin % len(self._ring)
        sent, nbytes = self._headers[at // 8], self._headers[at // 8 + 1]
        if (sent, nbytes) != (number, len(memory)):
            raise RunError(
                f"message {sent} of {nbytes} bytes came for message {number} of {len(memory)}: "
                "accepted are the same calls on all ranks, and new processes after an error"
            )
        memory.copy_(self._ring[at + HEADER : at + HEADER + len(memory)])
        self._coming[begin] = True
        for first in [*takewhile(self._coming.__getitem__, self._coming)]:
            del self._coming[first]
        _native.publish(self._words, TAKEN, next(iter(self._coming), self._said))

    def close(self) -> None:
        """Let the other end wait no more."""
        _native.publish(self._words, CLOSED, 1)

    def _next(self, nbytes: int) -> int:
        """Where a message begins."""
        begin, size = self._said, len(self._ring)
        if begin % size + _space(nbytes) > size:
            begin += size - begin % size
        self._said = begin + _space(nbytes)
        return begin

    def _wait(self, word: int, number: int) -> None:
        end = time.monotonic() + self._timeout
        while not _native.wait_for(self._words, word, number, CLOSED, min(LOOK, self._timeout)):
            gone = self._words[CLOSED] or self._is_gone()
            if gone and not _native.wait_for(self._words, word, number, CLOSED, 0):
                raise RuntimeError("Connection closed by the other process")
            if time.monotonic() > end:
                raise RuntimeError("Timed out waiting for the other process")


def lane_bytes(k: int) -> int:
    """Bytes of lanes in a process, of k on a machine: its inbox, and its lanes to the others.

    >>> [lane_bytes(k) for k in (1, 2, 8)] == [0, 2 * INBOX, 2 * INBOX]
    True
    """
    return 2 * INBOX if k > 1 and INBOX // (k - 1) >= LEAST else 0


def _space(nbytes: int) -> int:
    """Bytes that a message takes in a ring."""
    return -(-(HEADER + nbytes) // LINE) * LINE


@dataclass(frozen=True)
class Lanes:
    """The two lanes between this process and another.

    Attributes
    ----------
    there, back : Lane
        To the other process, and from it.
    inbox : Inbox
        This process's, kept because it is locked as long as it is there.
    """

    there: Lane
    back: Lane
    inbox: Inbox


def lanes_of(
    rank: int, k: int, gather: Callable[[Any], list[Any]], timeout: float
) -> dict[int, Lanes]:
    """Lanes to all processes on this machine and in its network; all ranks call it.

    If one of them can't have a lane, they all have none, so that all ranks send the same way.

    Parameters
    ----------
    gather : callable
        Collects a value of each rank.
    timeout : float
        Seconds that an end of a lane waits for the other.
    """
    machines = gather(_machine())
    here = [peer for peer in range(k) if machines[peer] == machines[rank] is not None]
    others = len(here) - 1
    inbox, inboxes = None, dict[int, Inbox]()
    if others > 0 and INBOX // others >= LEAST:
        with suppress(OSError):
            inbox = Inbox.made()
    addresses: list[Address | None] = gather(None if inbox is None else inbox.address)
    for peer in here:
        address = addresses[peer]
        if address is not None and peer != rank:
            with suppress(OSError):
                inboxes[peer] = Inbox.of(address)
    reached = gather(len(inboxes) == others)
    if inbox is None or not all(reached[peer] for peer in here):
        return {}
    lanes = {}
    for peer, outbox in inboxes.items():
        there = outbox.part([sender for sender in here if sender != peer].index(rank), others)
        back = inbox.part([sender for sender in here if sender != rank].index(peer), others)
        ends = outbox.is_gone, timeout
        lanes[peer] = Lanes(Lane(there, *ends), Lane(back, *ends), inbox)
    return lanes


@dataclass(frozen=True)
class Address:
    """Where other processes find an inbox: a file of a process, which begins with a token."""

    process: int
    file: int
    token: bytes


class Inbox:
    """The memory of a process's incoming lanes, which is locked as long as the process lives.

    Its own process must not open it once more: if it closed that, the lock would be gone.
    """

    def __init__(self, file: int, address: Address) -> None:
        self._file, self.address = file, address
        finalize(self, os.close, file)
        self._memory = torch.frombuffer(mmap.mmap(file, LINE + INBOX), dtype=torch.uint8)

    @staticmethod
    def made() -> Inbox:
        """Make one for this process."""
        with ExitStack() as failing:
            file = os.memfd_create(NAME)
            failing.callback(os.close, file)
            token = token_bytes(TOKEN)
            os.write(file, token)
            os.ftruncate(file, LINE + INBOX)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            failing.pop_all()
        return Inbox(file, Address(os.getpid(), file, token))

    @staticmethod
    def of(address: Address) -> Inbox:
        """Open that of another process.

        Raises
        ------
        OSError
            If it can't be opened, or is another file.
        """
        path = Path(f"/proc/{address.process}/fd/{address.file}")
        if not str(path.readlink()).startswith(f"/memfd:{NAME}"):
            raise FileNotFoundError(address)
        with ExitStack() as failing:
            file = os.open(path, os.O_RDWR)
            failing.callback(os.close, file)
            if os.read(file, TOKEN) != address.token or os.fstat(file).st_size != LINE + INBOX:
                raise FileNotFoundError(address)
            failing.pop_all()
        return Inbox(file, address)

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


def _machine() -> tuple[object, ...] | None:
    """What two processes have in common if they can share memory; None if this one can't.

    The user, the machine, and the namespaces of networks and of process numbers.
    """
    if not hasattr(os, "memfd_create"):
        return None
    try:
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("net", "pid")]
        return Path("/proc/sys/kernel/random/boot_id").read_text(), os.getuid(), *spaces
    except OSError:
        return None
