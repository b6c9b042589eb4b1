"""hgpart predict: Model, plan, machine, times of layers -> seconds of a step, simulated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

import hgpart
from hgpart.cli.groups import StepOptions, runs_and_timeout
from hgpart.cli.options import PlannedModel, PositiveOrNone
from hgpart.cli.outputs import Timeline, lead_on, of_plan, plain_console, unit_of
from hgpart.cli.placing import Placing
from hgpart.cli.processes import on_several_machines, start_ranks, started_as_rank
from hgpart.cli.stages import Stages, plan_and_model
from hgpart.cli.timing import times_of


@dataclass(frozen=True, kw_only=True)
class PredictResults(Timeline):
    """Where the results go.

    Attributes
    ----------
    measure : STEPS
        Also run this many steps, forward and backward, in a process per part, and compare. Append
        ,timeout=S for the seconds to wait for a silent process (default 300).
    """

    not_written = ("measure",)
    measure: str | None = None


def predict(
    context: typer.Context,
    plan: Path,
    machine: str,
    times: str,
    step: StepOptions,
    results: PredictResults,
    model: PlannedModel = None,
    batch_size: PositiveOrNone = None,
) -> None:
    """Simulate a training step of a plan on a machine: seconds, waiting, memory.

    Parameters
    ----------
    plan : PLAN
        Plan file, written by 'hgpart partition -o'.
    machine : NAME|FILE
        Devices and links: a named machine such as 10gbe, or a file of 'hgpart calibrate'.
    times : FILE
        Layer times, a file of 'hgpart profile'; or KIND=FILE,KIND=FILE for each kind of device.
    batch_size : N
        Samples per step. Default: the plan's batch size.

    Examples
    --------
    $ hgpart predict --plan plan.json --machine 10gbe --times times.json
    """
    results.check()
    measure = None if results.measure is None else runs_and_timeout(results.measure)
    with Stages() as stage:
        with stage("import"):
            from hgpart.report.page.prediction import prediction_page
            from hgpart.report.prediction import PredictionReport, prediction_json, print_prediction
            from hgpart.report.timeline import write_timeline
            from hgpart.run.scheduling import wanted_schedule
        loaded, named = plan_and_model(plan, model)
        samples = batch_size or loaded.modelling.batch_size
        scheduling = step.scheduling(loaded.schedule_for(samples))
        placing = Placing(named, loaded, ("cpu",) * loaded.k, None, seed=0)
        scheduling.sizes(samples)
        placing.check_step(scheduling, samples, True)
        measured = None
        if measure is not None and started_as_rank():
            with placing.connected("gloo", measure[1]) as connection:
                measured = placing.steps(
                    placing.part_of(connection),
                    connection,
                    measure[0],
                    samples,
                    scheduling,
                    backward=True,
                    timeline=results.html is not None and not on_several_machines(),
                )
            if measured is None:
                return
        devices = hgpart.files.load_machine(machine, loaded.k)
        with stage("place"):
            placement = placing.without_memory(training=True)
            layer_times = times_of(times, placement.programs.blueprint.graph)
        with stage("schedule"), placing.naming_plan():
            batches = scheduling.simulated_batches
            schedule = wanted_schedule(
                placement, scheduling, True, batches=batches, batch_size=samples
            )
        with stage("simulate"):
            prediction = hgpart.predict(placement, schedule, devices, layer_times, samples)
    if measure is not None and measured is None:  # its errors are said before any process starts
        start_ranks(context, loaded.k)
        return
    report = PredictionReport(named, devices, layer_times, prediction, scheduling, measured)
    if results.timeline is not None:
        kinds = [device.kind for device in devices.devices[: schedule.k]]
        write_timeline(results.timeline, report.timeline, named, kinds)
    results.draw(prediction_page, report)
    if results.want_tables(prediction_json(report)):
        print_prediction(report, plain_console(), unit_of(context))
        lead_on(f"hgpart run {of_plan(named, plan)} --backward")
