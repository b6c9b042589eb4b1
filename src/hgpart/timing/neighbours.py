"""WholeModel -> processes that go through its steps, on the remaining cores, while asked to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

import torch

from hgpart.cores import usable_cores
from hgpart.errors import RunError
from hgpart.freed_memory import keep_freed_memory
from hgpart.processes import OwnProcess, end
from hgpart.timing.whole_model import WholeModel

START = "from hgpart.timing.neighbours import work; work(int(sys.argv[1]), int(sys.argv[2]))"
GO, WAIT, READY = b"go\n", b"wait\n", b"ready\n"


def room_for(device: torch.device) -> int:
    """Number of further processes, with as many threads as this, that the cores have room for."""
    return max(0, usable_cores() // torch.get_num_threads() - 1) if device.type == "cpu" else 0


@contextmanager
def neighbours(whole: WholeModel, samples: int, count: int) -> Iterator[Neighbours]:
    """Start processes that end with the context, or with this process."""
    started = Neighbours(whole, samples, count)
    try:
        yield started
    finally:
        started.end()


class Neighbours:
    """Processes that go through steps of a model while they are told to.

    Parameters
    ----------
    samples : int
        Samples in their batches.
    """

    def __init__(self, whole: WholeModel, samples: int, count: int) -> None:
        threads = torch.get_num_threads()
        self._processes: list[OwnProcess] = []
        text = whole.to_bytes()
        try:
            for _ in range(count):
                process = OwnProcess(
                    START,
                    [str(samples), str(threads)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                )
                self._processes.append(process)
                self._tell(process, len(text).to_bytes(8, "little") + text)
            self._hear_all()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> None:
        """Let the processes begin; returns when they are computing."""
        for process in self._processes:
            self._tell(process, GO)
        self._hear_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the processes wait; each ends its present step first."""
        if error is None:
            for process in self._processes:
                self._tell(process, WAIT)
            self._hear_all()

    def end(self) -> None:
        """End the processes."""
        end(self._processes)
        for process in self._processes:
            process.communicate()

    def _tell(self, process: OwnProcess, what: bytes) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # `_hear_all` raises an error for it
            process.stdin.write(what)
            process.stdin.flush()

    def _hear_all(self) -> None:
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline() != READY:
                raise RunError("a process that should compute beside this one has ended")


def work(samples: int, threads: int) -> None:
    """Run as a neighbour: read the model, then go through steps between GO and WAIT, until EOF."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    orders, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what libraries print
    keep_freed_memory()
    torch.set_num_threads(threads)
    text = orders.read(int.from_bytes(orders.read(8), "little"))
    whole = WholeModel.from_bytes(text)
    whole.step(samples)
    answers.write(READY)
    at_work = threading.Event()

    def listen() -> None:
        for order in orders:
            if order == GO:
                at_work.set()
            else:
                at_work.clear()
        os._exit(0)  # the process that started this one has ended, or is done with it

    threading.Thread(target=listen, daemon=True).start()
    while True:
        at_work.wait()
        answers.write(READY)
        while at_work.is_set():
            whole.step(samples)
        answers.write(READY)
