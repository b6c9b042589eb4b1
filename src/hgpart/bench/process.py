"""One process of a way: it makes its worker, and follows orders until it is let go."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
import torch

from hgpart.bench.ways.ddp import ddp
from hgpart.bench.ways.fsdp import fsdp
from hgpart.bench.ways.fused_tiles import fused
from hgpart.bench.ways.job import Job
from hgpart.bench.ways.parameter_servers import served
from hgpart.bench.ways.pipelines import pipelined
from hgpart.bench.ways.placed import placed
from hgpart.bench.ways.way import APART, FUSED, PIPELINES, SINGLE, Layout, TrainingWay
from hgpart.bench.ways.worker import Failure, ForwardPasses, Hire, Lap, Learn, Worker, apart, single
from hgpart.cores import take_own_cores
from hgpart.errors import HgpartError, RunError, first_line
from hgpart.freed_memory import give_back_freed_memory, keep_freed_memory
from hgpart.processes import end_with_starter
from hgpart.run.processes.connection import TORCHS_PLACE
from hgpart.run.servers.serving import SERVERS

PLACE_IN_MEMORY = Path("/proc/self")  # Linux's accounts of this process
# Words of gloo's errors when another process is gone, or does not answer.
LOST = re.compile("onnection|imed out|timeout|not connected|pair closure")
HIRES: Mapping[str, Hire] = {
    SINGLE: single,
    APART: apart,
    "ddp": ddp,
    "fsdp": fsdp,
    **dict.fromkeys(PIPELINES, pipelined),
    **dict.fromkeys(SERVERS, served),
    FUSED: fused,
}


def work(
    way: TrainingWay,
    job: Job,
    cuts: bytes,
    rank: int,
    environment: Mapping[str, str],
    orders: Connection,
    steps_ended: Any,
) -> None:
    """Run a process of a way, from its beginning to its end; `cuts` are its pickled layout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    end_with_starter()
    # Otherwise Python would complain of a lock that torch makes when tracing, and never frees.
    multiprocessing.set_start_method("fork", force=True)
    os.environ.update(environment)
    take_own_cores(rank, int(environment["WORLD_SIZE"]), job.threads)
    keep_freed_memory()  # for all ways: this compares ways, not allocators
    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    _say_nothing()
    status = 1
    try:
        layout: Layout = pickle.loads(cuts)
        with HIRES.get(way.name, placed)(way, job, layout, rank) as hired:
            give_back_freed_memory()  # so that no step's peak includes what the start needed
            orders.send(None)
            steps = _Steps(steps_ended, rank)
            worker = ForwardPasses(hired, job, steps.begin) if job.inference else hired
            while (order := orders.recv()) is not None:
                orders.send(
                    _lap(worker, order, steps) if isinstance(order, Learn) else _shown(worker)
                )
        status = 0
    except (EOFError, BrokenPipeError):  # nobody asks any more
        pass
    except BaseException as error:
        with suppress(OSError):
            orders.send(_failure(error))
    os._exit(status)  # threads of gloo may abort a process that is at its end


def _say_nothing() -> None:
    """Drop what the model's own code and libraries print, as it would mix with --json - figures.

    Everything that matters is sent to the process that gives orders.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # standard output and standard error
        os.dup2(nowhere, stream)


def _failure(error: BaseException) -> Failure:
    while error.__cause__ is not None and not isinstance(error, HgpartError):
        error = error.__cause__  # torch's pipelining wraps errors
    why = " ".join(str(error).split())
    if isinstance(error, RunError):
        return Failure(why, is_refusal=False, is_noticed=True)
    if isinstance(error, HgpartError):
        return Failure(why, is_refusal=True)
    text = TORCHS_PLACE.sub("", first_line(error))
    return Failure(
        f"{type(error).__name__}: {text}",
        is_refusal=False,
        is_noticed=isinstance(error, RuntimeError) and LOST.search(text) is not None,
    )


class _Steps:
    """The times at which steps end here, and their count, which the giver of orders can see.

    Parameters
    ----------
    numbers : array in shared memory
        The count of each process.
    """

    def __init__(self, numbers: Any, rank: int) -> None:
        self._numbers, self._rank = numbers, rank
        self.begins: list[float] = []  # in inference
        self.ends: list[float] = []

    def begin(self) -> None:
        """Note that a pass begins."""
        self.begins.append(time.perf_counter())

    def tick(self) -> None:
        """Note that a step has ended."""
        self.ends.append(time.perf_counter())
        self._numbers[self._rank] += 1


def _shown(worker: Worker) -> dict[str, Any]:
    state = worker.state().items()
    return {name: np.array(value.detach().cpu().numpy(), copy=True) for name, value in state}


def _lap(worker: Worker, order: Learn, steps: _Steps) -> Lap:
    steps.begins.clear()
    steps.ends.clear()
    _forget_peak()
    counted = worker.sent_bytes()
    sent = _written_bytes() if counted is None else counted
    cpu, begin = time.process_time(), time.perf_counter()
    losses = worker.learn(order.first, order.count, steps.tick)
    cpu = time.process_time() - cpu
    peak = _peak_bytes()
    after = _written_bytes() if counted is None else worker.sent_bytes()
    departed = None if sent is None or after is None else after - sent
    return Lap(begin, tuple(steps.ends), tuple(losses), cpu, departed, peak, tuple(steps.begins))


def _written_bytes() -> int | None:
    """Bytes that this process has written so far, which are those of its sockets."""
    return _account("io", r"^wchar: (\d+)$")


def _forget_peak() -> None:
    """Let the peak begin anew; see proc(5). Other systems report that of the whole process."""
    with suppress(OSError):
        (PLACE_IN_MEMORY / "clear_refs").write_text("5")


def _peak_bytes() -> int:
    if (kilobytes := _account("status", r"^VmHWM:\s+(\d+) kB$")) is not None:
        return 1024 * kilobytes
    unit = 1 if sys.platform == "darwin" else 1024
    return getrusage(RUSAGE_SELF).ru_maxrss * unit


def _account(file: str, line: str) -> int | None:
    """A figure of Linux's accounts of this process, see proc(5); None where they have none."""
    with suppress(OSError):
        match = re.search(line, (PLACE_IN_MEMORY / file).read_text(), re.MULTILINE)
        return None if match is None else int(match[1])
    return None
