"""Start one process per part on this machine, watch them, and end all of them when one dies.

The processes get the environment that torchrun would set, so a program does not know which of the
two started it. torch.distributed.elastic is not used: its processes outlive a killed launcher, and
write their output to files, so that a rank's error could not become the command's one line.
"""

from __future__ import annotations

import io
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

from hgpart.cores import take_own_cores, threads_of_each, usable_cores
from hgpart.errors import ArgumentError, OutputError, RunError
from hgpart.freed_memory import keep_freed_memory
from hgpart.processes import OwnProcess, end, ending
from hgpart.terminal import printable

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, not listed

HERE = "127.0.0.1"
LARGEST_PORT = 2**16 - 1
WATCHED_EVERY = 0.05  # seconds
NOTICING = 2.0  # seconds that the others have to notice a death by themselves
LINES_KEPT = 200  # of a rank's standard error
ERROR = "hgpart: error: "  # what the hgpart command writes before its error message
NAMES_RANK = re.compile(r"ranks? \d+\b")
TORCHS_PREFIX = re.compile(r"^\[rank\d+\]: ?")

START = "from hgpart.run.processes.launch import begin; begin()"


def launch(program: str, arguments: Sequence[str], k: int) -> None:
    """Run a Python program in k processes on this machine, until all have ended well.

    Rank 0's standard output and error pass through (its ``hgpart: error:`` line becomes part of
    the `RunError`). The output of the other ranks is dropped, except the standard error of a rank
    that fails without such a line. This process keeps the store that the ranks share, at a free
    port unless the environment has a ``MASTER_PORT``. ``OMP_NUM_THREADS``, if not set, divides the
    cores; each process is bound to its share of them (`hgpart.cores.take_own_cores`).

    When a process fails, the others are ended within 10 seconds; they also end with this process,
    even if that is killed, and on Ctrl-C.

    Parameters
    ----------
    program : str
        A module, as for ``python -m``, or the path of a ``.py`` file.
    k : int
        Number of processes.

    Raises
    ------
    RunError
        If the port is in use, or a process fails. The message names its rank, and the signal that
        ended it or its last line; `exit_status` is that of the process where hgpart ended it.
    OutputError
        If hgpart ended rank 0 because nobody reads its output any more, as in ``hgpart | head``.
    """
    if k < 1:
        raise ArgumentError(f"k is {k}, expected at least 1 process")
    store = new_store(os.environ.get("MASTER_PORT", "0"))
    terminal = "terminal" if sys.stderr.isatty() else ""
    sys.stdout.flush()
    ranks: list[_Rank] = []
    try:
        for rank in range(k):
            environment = rank_environment(rank, k, store.port)
            ranks.append(_Rank(rank, [terminal, program, *arguments], environment))
        failed = _watch(ranks)
    finally:
        end([rank.process for rank in ranks])
        if sys.stderr.isatty():  # show the cursor, which a rank in mid-progress may have hidden
            sys.stderr.write("\x1b[?25h")
    if failed:
        # A rank that ended with a RunError may only have noticed that another rank is gone.
        first = min(failed, key=lambda rank: rank.process.returncode == RunError.exit_status)
        raise first.error()


def new_store(port: str) -> TCPStore:
    """A store in which ranks find each other; bound here, so no other program can take the port."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # as above

    if not port.isdecimal() or int(port) > LARGEST_PORT:
        raise RunError(f"MASTER_PORT is {port!r}, expected a port number up to {LARGEST_PORT}")
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HERE, int(port)))
    except OSError as error:
        listening.close()
        raise RunError(
            f"can't use port {port} ({error.strerror}): set MASTER_PORT to a free one, or leave "
            "it unset"
        ) from None
    listening.listen()
    port_number = listening.getsockname()[1]
    return TCPStore(
        HERE,
        port_number,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def rank_environment(rank: int, k: int, port: int) -> Mapping[str, str]:
    """The variables that torchrun sets, with the store in the launcher as in torchrun's agent."""
    defaults = {
        "OMP_NUM_THREADS": str(max(1, usable_cores() // k)),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # otherwise a lost rank causes pages of warnings
    }
    if sys.platform == "linux":
        defaults["GLOO_SOCKET_IFNAME"] = "lo"  # not the host's name, whatever that is
    return {
        **defaults,
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(k),
        "LOCAL_WORLD_SIZE": str(k),
        "MASTER_ADDR": HERE,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


class _Rank:
    """One of the processes, with its standard error."""

    def __init__(self, rank: int, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.rank = rank
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.process = OwnProcess(
            START,
            arguments,
            apart=True,  # Ctrl-C is for the launcher
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        decoder = getincrementaldecoder("utf-8")("replace")
        line = ""
        while chunk := os.read(self.process.stderr.fileno(), 2**16):
            text = decoder.decode(chunk)
            if self.rank == 0:
                sys.stderr.write("" if ERROR in line else text.partition(ERROR)[0])
                sys.stderr.flush()
            *lines, line = (line + text).split("\n")
            self.lines += lines
        self.lines.append(line)

    def error(self) -> RunError | OutputError:
        """The error that says how the process ended."""
        self.listener.join(timeout=1.0)
        lines = [TORCHS_PREFIX.sub("", line.rstrip()) for line in self.lines]
        lines = [line for line in lines if line]
        last = lines[-1] if lines else "nothing"
        status = self.process.returncode
        if last.startswith(ERROR):
            text = last.removeprefix(ERROR)
            # Some messages name the rank themselves.
            error = RunError(text if NAMES_RANK.match(text) else f"rank {self.rank}: {text}")
            error.exit_status = status
            return error
        if self.rank == 0 and status == OutputError.exit_status:
            return OutputError("nobody reads what rank 0 prints")
        for line in lines if self.rank != 0 else ():  # rank 0's lines have passed through
            print(f"rank {self.rank}: {printable(line)}", file=sys.stderr)
        return RunError(how_it_ended(self.rank, status, last))


def how_it_ended(rank: int, status: int, last: str = "nothing") -> str:
    """Say how a process ended, by its exit status, and its last line.

    >>> how_it_ended(1, -15)
    'rank 1 was ended by SIGTERM'
    """
    ended = f"rank {rank} {ending(status)}"
    if status == -signal.SIGKILL:
        return f"{ended}; the system does so when memory runs out"
    return ended if status < 0 else f"{ended}; it said last: {last}"


def _watch(ranks: Sequence[_Rank]) -> list[_Rank]:
    """Wait until all have ended, or one has failed and the others had time to notice.

    Returns those that failed, in the order of their failures.
    """
    failed: list[_Rank] = []
    deadline = float("inf")
    while time.monotonic() < deadline:
        statuses = [rank.process.poll() for rank in ranks]
        failed += [
            rank
            for rank, status in zip(ranks, statuses, strict=True)
            if status and rank not in failed
        ]
        if None not in statuses:
            break
        if failed:
            deadline = min(deadline, time.monotonic() + NOTICING)
        time.sleep(WATCHED_EVERY)
    return failed


class _PassedOn(io.TextIOWrapper):
    """Standard error that the launcher passes on to its terminal: progress may be shown on it."""

    def isatty(self) -> bool:
        return True


def begin() -> None:
    """Begin a process of `launch`: run the program.

    ``sys.argv[1:]`` is "terminal" if the launcher has one, the program, and its arguments.
    """
    _, terminal, program = sys.argv[:3]
    rank, k = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    take_own_cores(rank, k, threads_of_each(k))
    keep_freed_memory()
    if terminal and rank == 0:
        buffer: IO[bytes] = sys.stderr.buffer
        sys.stderr = _PassedOn(buffer, line_buffering=True)
    del sys.argv[:2]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
