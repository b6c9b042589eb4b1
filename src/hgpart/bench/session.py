"""Way + Job -> Session: the processes of one way on this machine, told what to do, and watched.

Processes are forked by a server that has imported what they need (`multiprocessing`'s forkserver).
So a way's processes start in a moment, belong to it alone, and take all their memory with them: a
process that dies or hangs concerns only its way, and the next way finds the machine as the first
did.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from types import ModuleType, TracebackType
from typing import Any

import torch

from hgpart.bench.ways.job import Job
from hgpart.bench.ways.traced_before import asking
from hgpart.bench.ways.way import Layout, TrainingWay
from hgpart.bench.ways.worker import Failure, Lap, Learn, Show
from hgpart.errors import HgpartError
from hgpart.run.processes.launch import how_it_ended, new_store, rank_environment
from hgpart.tracing.input_shape import InputShape

NOTICING = 2.0  # seconds in which another process may still tell the cause of a failure
ENDING = 3.0  # seconds that processes have to end by themselves


class WayError(HgpartError):
    """A way can't go on; `is_refusal` says whether it never could."""

    def __init__(self, why: str, is_refusal: bool = False) -> None:
        super().__init__(why)
        self.is_refusal = is_refusal


class Session:
    """The processes of a way, from their start to their end; a context manager.

    Parameters
    ----------
    layout : Layout
        The result of `layout_of`.

    Raises
    ------
    WayError
        If a process can't begin; in any method, if one dies or does not answer in time.
    """

    def __init__(self, way: TrainingWay, job: Job, layout: Layout) -> None:
        self._job, self._way, self.done = job, way, 0
        self._store = new_store("0")
        count = way.processes(job.workers)
        told = replace(way, division=None, plan=None)  # functions, and what the layout has
        context = start_server(job.model, job.input_shape, job.threads, not job.inference)
        # Multiprocessing's own pickles would share each tensor of a graph by a file, of hundreds.
        cuts = pickle.dumps(layout)
        self._steps_ended: Any = context.RawArray("q", count)
        self._processes = []
        self._orders: list[Connection[Any, Any]] = []
        with started_with(job.threads):
            for rank in range(count):
                here, there = context.Pipe()
                environment = {
                    **rank_environment(rank, count, self._store.port),
                    "OMP_NUM_THREADS": str(job.threads),
                }
                process = context.Process(
                    target=_begin,
                    args=(told, job, cuts, rank, environment, there, self._steps_ended),
                    daemon=True,
                )
                process.start()
                there.close()
                self._processes.append(process)
                self._orders.append(here)

    def __enter__(self) -> Session:
        """Wait until all processes are ready."""
        try:
            self._answers("begun")
        except BaseException:
            self._end(0.0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the processes end; end them if they don't, or if something went wrong."""
        if error is None:
            for orders in self._orders:
                with suppress(OSError):
                    orders.send(None)
        self._end(ENDING if error is None else 0.0)

    def learn(self, count: int) -> list[Lap]:
        """Train for `count` more steps, or run so many passes; returns what each process did."""
        laps: list[Lap] = self._ask(Learn(self.done, count), "ended a step")
        self.done += count
        return laps

    def state(self) -> dict[str, torch.Tensor]:
        """The model's state_dict, assembled from what all processes have."""
        shown: list[Mapping[str, Any]] = self._ask(Show(), "shown its state")
        state: dict[str, torch.Tensor] = {}
        for own_state in shown:
            for name, array in own_state.items():
                value = torch.from_numpy(array)
                state[name] = state[name] + value if name in state else value
        return state

    def _ask(self, order: Learn | Show, doing: str) -> list[Any]:
        for orders in self._orders:
            with suppress(OSError):  # a lost process is noticed below
                orders.send(order)
        return self._answers(doing)

    def _answers(self, doing: str) -> list[Any]:
        """The answers of the processes, in their order.

        They have the timeout to answer, again after each step that ends meanwhile, and a moment
        more, because they know better whom they wait for.
        """
        answers: dict[int, Any] = {}
        failures: dict[int, Failure] = {}
        patience = self._job.timeout + NOTICING
        ended, deadline = self._steps_ended[:], time.monotonic() + patience
        while len(answers) + len(failures) < len(self._orders):
            left = deadline - time.monotonic()
            ready = self._ready({*answers, *failures}, max(0.0, left))
            if not ready:
                before, ended = ended, self._steps_ended[:]
                if failures or ended == before:
                    break
                deadline = time.monotonic() + patience
            for rank in ready:
                answer = self._heard(rank)
                if isinstance(answer, Failure):
                    failures[rank] = answer
                    deadline = min(deadline, time.monotonic() + NOTICING)
                else:
                    answers[rank] = answer
        silent = [rank for rank in range(len(self._orders)) if rank not in {**answers, **failures}]
        ranks = f"rank{'s' * (len(silent) > 1)} {', '.join(map(str, silent))}"
        if failures:
            rank, first = min(failures.items(), key=lambda item: item[1].is_noticed)
            is_named = first.is_refusal or first.why.startswith("rank")
            why = first.why if is_named else f"rank {rank}: {first.why}"
            if first.is_noticed and silent:
                why += f"; no word of {ranks}"
            raise WayError(why, first.is_refusal)
        if silent:
            raise WayError(f"{ranks} had not {doing} in {self._job.timeout:g} s, the timeout")
        return [answers[rank] for rank in sorted(answers)]

    def _ready(self, heard: set[int], seconds: float) -> list[int]:
        """Ranks that are not heard yet, and have something to say or have ended."""
        watched: dict[Any, int] = {}
        for rank, (orders, process) in enumerate(zip(self._orders, self._processes, strict=True)):
            if rank not in heard:
                watched[orders] = watched[process.sentinel] = rank
        return sorted({watched[source] for source in wait([*watched], seconds)})

    def _heard(self, rank: int) -> Any:
        try:
            if self._orders[rank].poll():
                return self._orders[rank].recv()
        except (EOFError, OSError):
            pass
        process = self._processes[rank]
        process.join(NOTICING)
        status = process.exitcode
        return Failure(how_it_ended(rank, 1 if status is None else status), is_refusal=False)

    def _end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for orders in self._orders:
            orders.close()


def start_server(
    model: str, input_shape: InputShape, threads: int, training: bool = True
) -> ForkServerContext:
    """Let the server that processes are forked from begin, if it is not there; it returns at once.

    It imports what they need, and traces the model that it was begun for.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hgpart.bench.process", "hgpart.calibration.calibrate"])
    with started_with(threads), asking(model, input_shape, training):
        ensure_running()
    return context


@contextmanager
def started_with(threads: int) -> Iterator[None]:
    """Set what a process that starts inside the block begins with.

    OpenMP reads the number of threads once, when it is loaded. This program's main module would be
    run again: the processes do not need it, and it may not be made for that. Ctrl-C goes to the
    process that started them, which ends them.
    """
    before, main = os.environ.get("OMP_NUM_THREADS"), sys.modules["__main__"]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ["OMP_NUM_THREADS"] = str(threads)
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.modules["__main__"] = main
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _begin(*arguments: Any) -> None:
    """Run a process; only the process itself needs what this imports."""
    from hgpart.bench.process import work

    work(*arguments)
