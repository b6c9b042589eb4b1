"""Devices, TracedModel -> Machine, LayerTimes: what a recommendation is not told, it measures.

Briefly: the ways that come out best are run afterwards.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait

import torch
from torch import nn

from hgpart.bench.session import started_with
from hgpart.calibration.calibrate import calibrate
from hgpart.calibration.here import device_here
from hgpart.cores import processor, usable_cores
from hgpart.errors import HgpartError, RunError
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.machines.machine import Link, Machine
from hgpart.processes import end_with_starter
from hgpart.run.processes.connection import connect
from hgpart.run.processes.launch import new_store, rank_environment
from hgpart.timing.layer_timing import time_layers
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.layer_times import LayerTimes

Tell = Callable[[str, float], None]
TIMEOUT = 60.0  # seconds that processes wait for each other


def machine_here(k: int, threads: int, otherwise: str, tell: Tell) -> tuple[Machine, str]:
    """So many devices like this machine's, with the links between its processes; and what it is.

    Where it has fewer cores, two processes are measured, and all links are taken to be like theirs;
    `otherwise` says how to have others.

    Raises
    ------
    RunError
        If links can't be measured.
    """
    if k == 1:
        device = device_here(torch.device("cpu"), threads, 1)
        return Machine(processor(), (device,), (1,), Link.of(0.0, 1e9)), "This machine alone"
    processes = k if k <= usable_cores() else 2
    measured = _calibrated(processes, threads, tell)
    if processes == k:
        better = f"hgpart calibrate --processes {k} --threads {threads} -o machine.json"
        return measured, f"Links were measured now, briefly; to measure them well: {better}"
    assumed = replace(
        measured,
        name=f"{k} devices like one of {measured.name}",
        devices=measured.devices[:1] * k,
        nodes=(k,),
        pairs={},
        all_reduce=None,
    )
    return assumed, (
        f"Assumed: {k} devices, each as fast as a process on this machine, which has "
        f"{usable_cores()} cores, and linked as two of these were measured to be now; {otherwise}"
    )


def times_here(
    module: nn.Module, traced: TracedModel, graph: ChannelGraph, batch_size: int, threads: int
) -> LayerTimes:
    """What layers take in a process of so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return time_layers(module, traced, graph, batch_size=batch_size, briefly=True)
    finally:
        torch.set_num_threads(before)


def _calibrated(processes: int, threads: int, tell: Tell) -> Machine:
    """Measure processes of this machine, forked where torch is imported already."""
    store = new_store("0")
    context = multiprocessing.get_context("forkserver")
    started, pipes = [], []
    try:
        with started_with(threads):
            for rank in range(processes):
                here, there = context.Pipe(duplex=False)
                environment = rank_environment(rank, processes, store.port)
                process = context.Process(
                    target=_measure, args=(processes, threads, environment, there), daemon=True
                )
                process.start()
                there.close()
                started.append(process)
                pipes.append(here)
        return _result(pipes, tell)
    finally:
        for process in started:
            process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()


def _result(pipes: list[Pipe], tell: Tell) -> Machine:
    """The machine that the first process sends, who tells how far it is; or why there is none."""
    waiting, why = {*pipes}, "a process has ended"
    while pipes[0] in waiting:
        for pipe in wait(waiting):
            assert isinstance(pipe, Pipe)
            try:
                heard = pipe.recv()
            except EOFError:
                waiting.remove(pipe)
                continue
            if isinstance(heard, Machine):
                return heard
            if isinstance(heard, str):
                why = heard
            else:
                tell(*heard)
    raise RunError(f"links between processes can't be measured: {why}")


def _measure(k: int, threads: int, environment: Mapping[str, str], pipe: Pipe) -> None:
    """Measure as one of the processes; the first one sends the machine."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    end_with_starter()
    os.environ.update(environment)
    torch.set_num_threads(threads)
    is_first = environment["RANK"] == "0"

    def say(what: str, done: float) -> None:
        if is_first:
            with suppress(OSError):
                pipe.send((what, done))

    try:
        with connect(k, timeout=TIMEOUT) as connection:
            machine = calibrate(connection, threads, say, briefly=True)
        if is_first:
            pipe.send(machine)
    except HgpartError as error:
        pipe.send(" ".join(str(error).split()))
    pipe.close()
    os._exit(0)  # threads of gloo may abort a process that is at its end
