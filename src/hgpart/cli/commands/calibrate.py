"""hgpart calibrate: processes on their devices -> what the machine does, as a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import typer

import hgpart
from hgpart.cli.groups import Ranks
from hgpart.cli.options import Positive
from hgpart.cli.outputs import Figures, kept, lead_on, plain_console
from hgpart.cli.processes import check_devices, start_ranks, started_as_rank
from hgpart.cores import usable_cores
from hgpart.errors import ArgumentError
from hgpart.run.processes.transports import check_carries, check_transport
from hgpart.terminal import share_done


@dataclass(frozen=True, kw_only=True)
class Processes(Ranks):
    """The processes that send each other messages.

    Attributes
    ----------
    backend : gloo|nccl
        Transport of the messages: gloo (through the CPU) or nccl (from GPU to GPU).
    """


@dataclass(frozen=True, kw_only=True)
class CalibrateResults(Figures):
    """Where the results go.

    Attributes
    ----------
    output : FILE
        Write the machine, for --machine FILE of other commands.
    """

    output: Path | None = None


def calibrate(
    context: typer.Context,
    ranks: Processes,
    results: CalibrateResults,
    processes: int | None = None,
    threads: Positive = 1,
) -> None:
    """Measure how fast messages between processes are here, and what slows computing.

    Parameters
    ----------
    processes : K
        Number of processes to start here. Default: one per usable core.
    threads : N
        Threads of each process.

    Examples
    --------
    $ hgpart calibrate -o machine.json
    """
    results.check()
    check_transport(ranks.backend)
    k = _processes(processes)
    ranks.check_timeout()
    devices = ranks.of_each(k)
    if started_as_rank():
        check_carries(ranks.backend, devices)
        _measure(k, threads, devices, ranks, results)
    else:
        check_devices(devices, ranks.backend)
        start_ranks(context, k)


def _processes(wanted: int | None) -> int:
    """The number of processes, those that torchrun started included."""
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
    k: int, threads: int, devices: tuple[str, ...], ranks: Ranks, results: CalibrateResults
) -> None:
    """Measure as one of the processes; the first one writes and prints."""
    import torch

    from hgpart.calibration.calibrate import calibrate as measure
    from hgpart.machines.machine_files import machine_json
    from hgpart.report.machines import print_machine

    rank = int(os.environ["RANK"])
    torch.set_num_threads(threads)
    with (
        hgpart.connect(
            k, device=devices[rank], transport=ranks.backend, timeout=ranks.timeout
        ) as connection,
        share_done(shown=rank == 0) as tell,
    ):
        machine = measure(connection, threads, tell)
    if rank:
        return
    if results.output is not None:
        hgpart.files.save_machine(machine, results.output)
    if results.want_tables(machine_json(machine)):
        print_machine(machine, plain_console())
        first, file = kept(results.output, "machine.json")
        lead_on(f"{first}hgpart recommend MODEL --machine {file}")
