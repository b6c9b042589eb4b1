"""hgpart run: Model, plan -> passes of the model in its parts, timed and counted."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hgpart.cli.options import JsonFile, Model, Unit, checked_unit, names
from hgpart.cli.outputs import check_outputs, plain_console
from hgpart.cli.processes import device_of_each, start_ranks, started_as_rank
from hgpart.cli.stages import Stages
from hgpart.errors import ArgumentError, RunError

if TYPE_CHECKING:
    from hgpart.placement import Placement
    from hgpart.plan import Plan
    from hgpart.run.connection import Connection
    from hgpart.run.measuring import Measurement

BACKENDS = ("gloo", "nccl")


def run(
    model: Model,
    plan: Annotated[
        Path, typer.Option(metavar="PLAN", help="A file of 'hgpart partition -o' for the model.")
    ],
    steps: Annotated[int, typer.Option(help="Passes that are timed, after one that is not.")] = 10,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of a step; those of the plan when left out.")
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="A backward pass in each step, too.")
    ] = False,
    devices: Annotated[
        Any,
        typer.Option(
            parser=names, metavar="D,D,...", help="Of each part, or one for all: cpu, cuda, cuda:0"
        ),
    ] = "cpu",
    backend: Annotated[
        str, typer.Option(help="gloo, by way of the hosts, or nccl, from GPU to GPU.")
    ] = "gloo",
    one_process: Annotated[
        bool, typer.Option("--one-process", help="A thread for each part, not a process.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A state_dict, safetensors or torch's; each process reads its slices only.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the weights and of the batch.")] = 0,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for a process that is alive.")
    ] = 300.0,
    unit: Unit = "MB",
    json: JsonFile = None,
) -> None:
    """Run a model on the devices of a plan: throughput, waiting and what travels."""
    check_outputs({"--json": json if json != "-" else None})
    if backend not in BACKENDS:
        raise ArgumentError(f"backend {backend!r}: accepted are {', '.join(BACKENDS)}")
    for option, value in (("--steps", steps), ("--batch-size", batch_size)):
        if value is not None and value < 1:
            raise ArgumentError(f"{option} {value}: accepted is 1 or more")
    with Stages() as stage, stage("import"):
        from hgpart.plan import load_plan
    checked_unit(unit)
    loaded = load_plan(plan)
    wanted = _Run(
        model,
        loaded,
        steps,
        batch_size or loaded.modelling.batch_size,
        backward,
        device_of_each(devices, loaded.k),
        weights,
        seed,
        unit,
        json,
    )
    if one_process:
        wanted.in_one_process()
    elif started_as_rank():
        wanted.in_this_rank(backend, timeout)
    else:
        options = {
            "--plan": plan,
            "--steps": steps,
            "--batch-size": batch_size,
            "--backward": backward,
            "--devices": wanted.devices,
            "--backend": backend,
            "--weights": weights,
            "--seed": seed,
            "--timeout": timeout,
            "--unit": unit,
            "--json": json,
        }
        start_ranks("run", [model], options, loaded.k)


@dataclass(frozen=True)
class _Run:
    """What was asked for, checked."""

    model: str
    plan: Plan
    steps: int
    batch_size: int
    backward: bool
    devices: tuple[str, ...]
    weights: Path | None
    seed: int
    unit: str
    json: str | None

    def in_one_process(self) -> None:
        """Run all parts here."""
        with Stages() as stage:
            placement = self._placed(stage, self.devices, None)
        self._show(placement, self._measured(placement, None), "threads")

    def in_this_rank(self, backend: str, timeout: float) -> None:
        """Run this process's part; the first process prints."""
        from hgpart.run.connection import connect

        k = self.plan.k
        device = self.devices[int(os.environ["RANK"]) % k]
        with connect(k, device=device, backend=backend, timeout=timeout) as connection:
            with Stages() as stage:
                placement = self._placed(stage, (str(connection.device),) * k, connection.rank)
            measured = self._measured(placement, connection)
            if connection.rank == 0:
                self._show(placement, measured, backend)

    def _placed(self, stage: Stages, devices: tuple[str, ...], part: int | None) -> Placement:
        with stage("import"):
            from hgpart.placement import place
            from hgpart.zoo import load_model
        # What the model's own code prints must not get between the figures of --json -.
        with stage("load"), redirect_stdout(sys.stderr):
            # With a file of weights no process needs room for more than its slices.
            device = "cpu" if self.weights is None else "meta"
            module, _ = load_model(self.model, seed=self.seed, device=device)
        with stage("place"), redirect_stdout(sys.stderr):
            placement = place(module, self.plan, devices, parts=None if part is None else [part])
            if self.weights is not None:
                placement.load_checkpoint(self.weights)
        return placement

    def _measured(self, placement: Placement, connection: Connection | None) -> Measurement:
        import torch

        from hgpart.run.measuring import measure

        torch.manual_seed(self.seed)
        batch = torch.randn(self.batch_size, *self.plan.input_shape)
        with _progress(self.steps, connection is None or connection.rank == 0) as on_step:
            return measure(
                placement,
                [batch],
                self.steps,
                backward=self.backward,
                connection=connection,
                on_step=on_step,
            )

    def _show(self, placement: Placement, measured: Measurement, backend: str) -> None:
        from hgpart.report.running import RunReport, print_run, run_json
        from hgpart.run.measuring import backward_traffic
        from hgpart.writing import replacing

        report = RunReport(
            self.model,
            self.devices,
            backend,
            measured,
            placement.expected(self.batch_size).traffic,
            backward_traffic(placement, self.batch_size),
        )
        if self.json is not None and self.json != "-":
            with replacing(self.json) as file:
                file.write(run_json(report))
        if self.json == "-":
            print(run_json(report), end="")
        else:
            print_run(report, plain_console(), self.unit)
        sys.stdout.flush()
        difference = report.difference()
        if difference is not None:
            raise RunError(f"other bytes travelled than the plan says: {difference}")


@contextmanager
def _progress(steps: int, first: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, in the process that prints."""
    with Progress(
        TextColumn("steps"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not (first and sys.stderr.isatty()),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=steps)
        yield lambda done: bar.update(task, completed=done)
