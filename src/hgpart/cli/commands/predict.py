"""hgpart predict: Model, plan, machine, times of layers -> seconds of a step, simulated."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hgpart.cli.options import (
    HtmlFile,
    InFlight,
    JsonFile,
    MicroBatches,
    PlanFile,
    PlannedModel,
    Recompute,
    ScheduleRule,
    Timeout,
    Unit,
    checked_unit,
)
from hgpart.cli.outputs import check_outputs, lead_on, of_plan, plain_console, tables_wanted
from hgpart.cli.placing import Placing, progress
from hgpart.cli.planned import plan_and_model
from hgpart.cli.processes import on_several_machines, start_ranks, started_as_rank
from hgpart.cli.stages import Stages
from hgpart.errors import ArgumentError
from hgpart.schedule_wanted import Scheduling, scheduling_of

if TYPE_CHECKING:
    from hgpart.report.prediction.record import PredictionReport
    from hgpart.run.measuring import Measurement


def predict(
    context: typer.Context,
    plan: PlanFile,
    machine: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Devices and links: a file of 'hgpart calibrate', or a named machine.",
        ),
    ],
    times: Annotated[
        Path,
        typer.Option(metavar="FILE", help="What layers take: a file of 'hgpart profile'."),
    ],
    model: PlannedModel = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of a step; those of the plan when left out.")
    ] = None,
    micro_batches: MicroBatches = None,
    schedule: ScheduleRule = None,
    in_flight: InFlight = None,
    recompute: Recompute = False,
    measure: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            help="Run so many steps besides, in a process for each part, as 'hgpart run "
            "--backward' does.",
        ),
    ] = None,
    timeout: Timeout = 300.0,
    unit: Unit = "MB",
    json: JsonFile = None,
    html: HtmlFile = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What each part should do when, for Perfetto and chrome://tracing.",
        ),
    ] = None,
) -> None:
    """Simulate a training step of a plan on a machine: seconds, waiting, memory."""
    check_outputs({"--json": json, "--html": html, "--timeline": timeline})
    if measure is not None and measure < 1:
        raise ArgumentError(f"--measure {measure}: accepted is 1 or more")
    if batch_size is not None and batch_size < 1:
        raise ArgumentError(f"--batch-size {batch_size}: accepted is 1 or more")
    with Stages() as stage, stage("import"):
        from hgpart.run.processes.connection import check_timeout
    checked_unit(unit)
    check_timeout(timeout)
    loaded, model = plan_and_model(plan, model)
    scheduling = scheduling_of(
        *(schedule, micro_batches, in_flight), recompute=recompute, planned=loaded.scheduling
    )
    placing = Placing(model, loaded, ("cpu",) * loaded.k, None, seed=0)
    samples = batch_size or loaded.modelling.batch_size
    scheduling.sizes(samples)
    placing.check_step(scheduling, samples, True, "gloo")
    wanted = _Predicting(
        placing, machine, times, samples, scheduling, unit, json, html, timeline, plan
    )
    if measure is None:
        wanted.show(wanted.report(None))
    elif started_as_rank():
        measured = wanted.measured(measure, timeout)
        if measured is not None:
            wanted.show(wanted.report(measured))
    else:
        wanted.report(None)  # what is wrong with it is said before any process is started
        start_ranks(context, loaded.k)


@dataclass(frozen=True)
class _Predicting:
    """What was asked for, checked."""

    placing: Placing
    machine: str
    times: Path
    batch_size: int
    scheduling: Scheduling
    unit: str
    json: str | None
    html: Path | None
    timeline: Path | None
    plan: Path

    def report(self, measured: Measurement | None) -> PredictionReport:
        """Simulate."""
        from hgpart.machines.machine_files import load_machine
        from hgpart.prediction.predict import predict
        from hgpart.report.prediction.record import PredictionReport
        from hgpart.run.scheduling import wanted_schedule
        from hgpart.work.layer_times import load_layer_times

        with Stages() as stage:
            machine = load_machine(self.machine, self.placing.plan.k)
            with stage("place"), redirect_stdout(sys.stderr):
                placement = self.placing.without_memory(training=True)
                times = load_layer_times(self.times, placement.programs.blueprint.graph)
            with stage("schedule"):
                made = wanted_schedule(
                    *(placement, self.scheduling, True),
                    batches=self.scheduling.sample_batches,
                    batch_size=self.batch_size,
                )
            with stage("simulate"):
                found = predict(placement, made, machine, times, self.batch_size)
        return PredictionReport(
            *(self.placing.model, machine, times.source, found, self.scheduling, measured)
        )

    def measured(self, steps: int, timeout: float) -> Measurement | None:
        """Run steps in this process, which is one of several; returns them in the first."""
        import torch

        from hgpart.run.measuring import measure

        with self.placing.connected("gloo", timeout) as connection:
            placement = self.placing.part_of(connection)
            torch.manual_seed(self.placing.seed)
            batch = torch.randn(self.batch_size, *self.placing.plan.input_shape)
            first = connection.rank == 0
            with progress("steps", steps, first) as (bar, task):
                found = measure(
                    placement,
                    batch,
                    steps,
                    backward=True,
                    connection=connection,
                    scheduling=self.scheduling,
                    timeline=self.html is not None and not on_several_machines(),
                    on_step=lambda done: bar.update(task, completed=done),
                )
        return found if first else None

    def show(self, report: PredictionReport) -> None:
        """Write the files, and print."""
        from hgpart.report.prediction.fields import prediction_json
        from hgpart.report.prediction.printing import print_prediction
        from hgpart.report.timeline import write_timeline

        if self.timeline is not None:
            devices = [device.kind for device in report.machine.devices]
            devices = devices[: report.prediction.schedule.k]
            write_timeline(self.timeline, report.timeline, report.model, devices)
        if self.html is not None:
            from hgpart.report.page.document import write_page
            from hgpart.report.page.prediction import prediction_page

            write_page(prediction_page(report), self.html)
        if tables_wanted(self.json, prediction_json(report)):
            print_prediction(report, plain_console(), self.unit)
            lead_on(f"hgpart run {of_plan(self.placing.model, self.plan)} --backward")
