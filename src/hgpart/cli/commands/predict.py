"""hgpart predict: Model, plan, machine, times of layers -> seconds of a step, simulated."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hgpart.cli.groups import Step, runs_and_timeout
from hgpart.cli.options import PlannedModel
from hgpart.cli.outputs import Timeline, lead_on, of_plan, plain_console, unit_of
from hgpart.cli.placing import Placing, progress
from hgpart.cli.processes import on_several_machines, start_ranks, started_as_rank
from hgpart.cli.stages import Stages, plan_and_model
from hgpart.errors import ArgumentError
from hgpart.schedule_wanted import Scheduling

if TYPE_CHECKING:
    from hgpart.report.prediction.record import PredictionReport
    from hgpart.run.measuring import Measurement


@dataclass(frozen=True, kw_only=True)
class PredictResults(Timeline):
    """Where the results go.

    Attributes
    ----------
    measure : STEPS
        Also run this many steps, forward and backward, in a process per part, and compare. Append
        ,timeout=S for the seconds to wait for a silent process (default 300).
    """

    measure: str | None = None


def predict(
    context: typer.Context,
    plan: Path,
    machine: str,
    times: Path,
    step: Step,
    results: PredictResults,
    model: PlannedModel = None,
    batch_size: int | None = None,
) -> None:
    """Simulate a training step of a plan on a machine: seconds, waiting, memory.

    Parameters
    ----------
    plan : PLAN
        Plan file, written by 'hgpart partition -o'.
    machine : NAME|FILE
        Devices and links: a named machine such as 10gbe, or a file of 'hgpart calibrate'.
    times : FILE
        Layer times, a file of 'hgpart profile'.
    batch_size : N
        Samples per step. Default: the plan's batch size.
    """
    results.check()
    if batch_size is not None and batch_size < 1:
        raise ArgumentError(f"--batch-size {batch_size}: accepted is 1 or more")
    steps, timeout = runs_and_timeout(results.measure) if results.measure else (None, 0.0)
    loaded, model = plan_and_model(plan, model)
    scheduling = step.scheduling(loaded.scheduling)
    placing = Placing(model, loaded, ("cpu",) * loaded.k, None, seed=0)
    samples = batch_size or loaded.modelling.batch_size
    scheduling.sizes(samples)
    placing.check_step(scheduling, samples, True)
    wanted = _Predicting(placing, machine, times, samples, scheduling, results, plan)
    if steps is None:
        wanted.show(wanted.report(None), unit_of(context))
    elif started_as_rank():
        measured = wanted.measured(steps, timeout)
        if measured is not None:
            wanted.show(wanted.report(measured), unit_of(context))
    else:
        wanted.report(None)  # its errors are said before any process is started
        start_ranks(context, loaded.k)


@dataclass(frozen=True)
class _Predicting:
    """A prediction that was asked for, checked."""

    placing: Placing
    machine: str
    times: Path
    batch_size: int
    scheduling: Scheduling
    results: PredictResults
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
                schedule = wanted_schedule(
                    placement,
                    self.scheduling,
                    True,
                    batches=self.scheduling.sample_batches,
                    batch_size=self.batch_size,
                )
            with stage("simulate"):
                prediction = predict(placement, schedule, machine, times, self.batch_size)
        return PredictionReport(
            self.placing.model, machine, times.source, prediction, self.scheduling, measured
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
                measurement = measure(
                    placement,
                    batch,
                    steps,
                    backward=True,
                    connection=connection,
                    scheduling=self.scheduling,
                    timeline=self.results.html is not None and not on_several_machines(),
                    on_step=lambda done: bar.update(task, completed=done),
                )
        return measurement if first else None

    def show(self, report: PredictionReport, unit: str) -> None:
        """Write the files, and print."""
        from hgpart.report.page.prediction import prediction_page
        from hgpart.report.prediction.fields import prediction_json
        from hgpart.report.prediction.printing import print_prediction
        from hgpart.report.timeline import write_timeline

        if self.results.timeline is not None:
            devices = [device.kind for device in report.machine.devices]
            devices = devices[: report.prediction.schedule.k]
            write_timeline(self.results.timeline, report.timeline, report.model, devices)
        self.results.draw(lambda: prediction_page(report))
        if self.results.want_tables(prediction_json(report)):
            print_prediction(report, plain_console(), unit)
            lead_on(f"hgpart run {of_plan(self.placing.model, self.plan)} --backward")
