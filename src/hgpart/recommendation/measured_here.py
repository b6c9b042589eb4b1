"""Devices, TracedModel -> Machine, LayerTimes: what a recommendation is not told, it measures."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from hgpart.calibration.here import device_here
from hgpart.cores import processor, usable_cores
from hgpart.errors import RunError
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.machines.machine import Link, Machine
from hgpart.machines.machine_files import load_machine
from hgpart.processes import run
from hgpart.timing.layer_timing import time_layers
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.layer_times import LayerTimes


def machine_here(k: int, threads: int, otherwise: str) -> tuple[Machine, str]:
    """So many devices like this machine's, with the links between its processes; and what it is.

    Where it has fewer cores, two processes are measured, and all links are taken to be like theirs;
    `otherwise` says how to have others.
    """
    if k == 1:
        device = device_here(torch.device("cpu"), threads, 1)
        return Machine(processor(), (device,), (1,), Link.of(0.0, 1e9)), "This machine alone"
    processes = k if k <= usable_cores() else 2
    with TemporaryDirectory() as folder:
        file = Path(folder) / "machine.json"
        options = "--processes", str(processes), "--threads", str(threads), "--output", str(file)
        begin = "from hgpart.__main__ import main; main()"
        if status := run(begin, ["calibrate", *options], stdout=subprocess.DEVNULL):
            raise RunError(f"'hgpart calibrate' has failed with status {status}")
        measured = load_machine(file)
    if processes == k:
        keep = f"hgpart calibrate --processes {k} --threads {threads} -o machine.json"
        return measured, f"Links were measured now; to keep that: {keep}"
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
        return time_layers(module, traced, graph, batch_size=batch_size)
    finally:
        torch.set_num_threads(before)
