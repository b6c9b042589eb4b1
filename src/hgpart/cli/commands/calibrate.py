"""hgpart calibrate: processes on their devices -> what the machine does, as a file."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.progress import TaskProgressColumn, TimeElapsedColumn

from hgpart.cli.options import Devices, JsonFile, Timeout, Transport
from hgpart.cli.outputs import check_outputs, lead_on, plain_console, tables_wanted
from hgpart.cli.processes import check_devices, device_of_each, start_ranks, started_as_rank
from hgpart.cli.stages import Stages
from hgpart.cores import usable_cores
from hgpart.errors import ArgumentError
from hgpart.run.processes.transports import check_carries, check_transport
from hgpart.terminal import progress_bar


def calibrate(
    context: typer.Context,
    processes: Annotated[
        int | None,
        typer.Option(help="That are started here; one for each usable core when left out."),
    ] = None,
    threads: Annotated[int, typer.Option(help="That each process computes with.")] = 1,
    devices: Devices = "cpu",
    transport: Transport = "gloo",
    timeout: Timeout = 300.0,
    json: JsonFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The machine, as JSON.")
    ] = None,
) -> None:
    """Measure what messages cost between processes here, and what slows computing."""
    check_outputs({"--json": json, "--output": output})
    check_transport(transport)
    if threads < 1:
        raise ArgumentError(f"--threads {threads}: accepted is 1 or more")
    k = _processes(processes)
    with Stages() as stage, stage("import"):
        from hgpart.run.processes.connection import check_timeout
    check_timeout(timeout)
    places = device_of_each(devices, k)
    if started_as_rank():
        check_carries(transport, places)
        _measure(k, threads, places, transport, timeout, json, output)
    else:
        check_devices(places, transport)
        start_ranks(context, k)


def _processes(wanted: int | None) -> int:
    """How many there are to be, or are already."""
    if started_as_rank():
        k = int(os.environ["WORLD_SIZE"])
        if wanted not in (None, k):
            raise ArgumentError(f"--processes {wanted}: accepted are the {k} that torchrun started")
    else:
        k = max(2, usable_cores()) if wanted is None else wanted
    if k < 2:
        raise ArgumentError(f"{k} processes: accepted are 2 or more, which have a link")
    return k


def _measure(
    k: int,
    threads: int,
    places: tuple[str, ...],
    transport: str,
    timeout: float,
    json: str | None,
    output: Path | None,
) -> None:
    """Be one of the processes; the first one writes and prints."""
    import torch

    from hgpart.calibration.calibrate import calibrate as measure
    from hgpart.machines.machine_files import machine_json, save_machine
    from hgpart.report.machine.printing import print_machine
    from hgpart.run.processes.connection import connect

    rank = int(os.environ["RANK"])
    torch.set_num_threads(threads)
    with (
        connect(k, device=places[rank], transport=transport, timeout=timeout) as connection,
        progress_bar(TaskProgressColumn(), TimeElapsedColumn(), shown=rank == 0) as bar,
    ):
        task = bar.add_task("", total=1.0)
        machine = measure(
            connection,
            threads,
            lambda what, done: bar.update(task, description=what, completed=done),
        )
    if rank:
        return
    if output is not None:
        save_machine(machine, output)
    if tables_wanted(json, machine_json(machine)):
        print_machine(machine, plain_console())
        file = "machine.json" if output is None else quote(str(output))
        kept = "the same with -o machine.json, then " if output is None else ""
        lead_on(f"{kept}hgpart recommend MODEL --machine {file}")
