"""hgpart run: Model, plan -> passes of the model in its parts, timed and counted."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import hgpart
from hgpart.cli.groups import Ranks, StepWithNorms
from hgpart.cli.options import PlannedModel, Positive, PositiveOrNone
from hgpart.cli.outputs import Timeline, lead_on, of_plan, plain_console, unit_of
from hgpart.cli.placing import Placing
from hgpart.cli.processes import check_one_clock
from hgpart.cli.stages import Stages, plan_and_model
from hgpart.errors import ArgumentError, RunError
from hgpart.schedule_wanted import Scheduling

if TYPE_CHECKING:
    from hgpart.run.processes.connection import Connection


@dataclass(frozen=True, kw_only=True)
class RunStep(StepWithNorms):
    """A step of a run.

    Attributes
    ----------
    backward
        Run a backward pass in each step, too. Default: forward only.
    weights : FILE
        Initial weights, a state_dict saved by torch or safetensors; each process reads its slices
        only. Default: random.
    seed : N
        Seed of random weights and of the batch.
    """

    backward: bool = False
    weights: Path | None = None
    seed: int = 0


def run(
    context: typer.Context,
    plan: Path,
    step: RunStep,
    ranks: Ranks,
    results: Timeline,
    model: PlannedModel = None,
    steps: Positive = 10,
    batch_size: PositiveOrNone = None,
) -> None:
    """Run a model on the devices of a plan: throughput, waiting and traffic.

    Parameters
    ----------
    plan : PLAN
        Plan file, written by 'hgpart partition -o'.
    steps : N
        Timed steps, after one warm-up step.
    batch_size : N
        Samples per step. Default: the plan's batch size.

    Examples
    --------
    $ hgpart run --plan plan.json --backward --micro-batches 4
    """
    results.check()
    check_one_clock(results.timeline, ranks.in_threads)
    ranks.check_transport()
    with Stages() as stage, stage("import"):
        from hgpart.hypergraph.modelling import LARGEST_FACTOR
        from hgpart.report.page.running import run_page
        from hgpart.report.running import RunReport, print_run, run_json, shares_of_work
        from hgpart.report.timeline import write_timeline
        from hgpart.run.placed_model import expected_traffic
    if batch_size is not None and batch_size > LARGEST_FACTOR:
        raise ArgumentError(f"--batch-size {batch_size}: accepted is 1 to {LARGEST_FACTOR}")
    ranks.check_timeout()
    loaded, named = plan_and_model(plan, model)
    samples = batch_size or loaded.modelling.batch_size
    wanted = step.wanted(loaded.schedule_for(samples))
    scheduling = wanted or Scheduling()
    devices = ranks.of_each(loaded.k)
    placing = Placing(named, loaded, devices, step.weights, step.seed, norms=step.norms)
    scheduling.sizes(samples)
    if scheduling.is_stream and not step.backward:
        raise ArgumentError(f"--schedule {scheduling.name} without --backward: accepted is with it")

    def timed(placement: hgpart.Placement, connection: Connection | None) -> RunReport | None:
        used = placing.scheduled(wanted, placement, connection, samples, training=step.backward)
        measured = placing.steps(
            placement,
            connection,
            steps,
            samples,
            used,
            backward=step.backward,
            timeline=results.draws_timeline,
        )
        if measured is None:
            return None
        planned = expected_traffic(placement, used, steps, samples, backward=step.backward)
        ran, shares = (ranks.backend, measured, planned), shares_of_work(placement)
        return RunReport(named, devices, *ran, used, step.norms, shares)

    report = placing.run(
        context, ranks, lambda: placing.check_step(scheduling, samples, step.backward), timed
    )
    if report is None:
        return
    if results.timeline is not None:
        write_timeline(results.timeline, report.measurement.timeline, named, devices)
    results.draw(run_page, report)
    if results.want_tables(run_json(report)):
        print_run(report, plain_console(), unit_of(context))
        given = of_plan(named, plan)
        if not step.backward:
            lead_on(f"hgpart run {given} --backward")
        elif placing.trains():
            lead_on(f"hgpart train {given}")
    sys.stdout.flush()
    difference = report.difference()
    if difference is not None:
        raise RunError(f"other bytes travelled than the plan says: {difference}")
