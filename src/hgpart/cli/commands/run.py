"""hgpart run: Model, plan -> passes of the model in its parts, timed and counted."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hgpart.cli.groups import Ranks, StepWithNorms
from hgpart.cli.options import PlannedModel
from hgpart.cli.outputs import Timeline, in_micro_batches, lead_on, of_plan, plain_console, unit_of
from hgpart.cli.placing import Placing, progress
from hgpart.cli.processes import check_one_clock, on_several_machines
from hgpart.cli.stages import Stages, plan_and_model
from hgpart.errors import ArgumentError, RunError
from hgpart.schedule_wanted import Scheduling

if TYPE_CHECKING:
    from hgpart.layers.channel_graph import ChannelGraph
    from hgpart.placement import Placement
    from hgpart.report.running import RunReport
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
    steps: int = 10,
    batch_size: int | None = None,
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
    """
    results.check()
    check_one_clock(results.timeline, ranks.in_threads)
    if steps < 1:
        raise ArgumentError(f"--steps {steps}: accepted is 1 or more")
    ranks.check_transport()
    with Stages() as stage, stage("import"):
        from hgpart.hypergraph.modelling import LARGEST_FACTOR
    if batch_size is not None and not 1 <= batch_size <= LARGEST_FACTOR:
        raise ArgumentError(f"--batch-size {batch_size}: accepted is 1 to {LARGEST_FACTOR}")
    ranks.check_timeout()
    loaded, model = plan_and_model(plan, model)
    scheduling = step.scheduling(loaded.scheduling)
    placing = Placing(
        model, loaded, ranks.of_each(loaded.k), step.weights, step.seed, norms=step.norms
    )
    samples = batch_size or loaded.modelling.batch_size
    scheduling.sizes(samples)
    if scheduling.is_stream and not step.backward:
        raise ArgumentError(f"--schedule {scheduling.name} without --backward: accepted is with it")
    wanted = _Run(placing, steps, samples, step.backward, scheduling, results, plan, ranks)
    ran = placing.run(
        context,
        ranks,
        lambda: placing.check_step(scheduling, samples, step.backward),
        wanted.steps_of,
    )
    if ran is not None:
        wanted.show(*ran, unit_of(context))


@dataclass(frozen=True)
class _Run:
    """A run that was asked for, checked."""

    placing: Placing
    steps: int
    batch_size: int
    backward: bool
    scheduling: Scheduling
    results: Timeline
    plan: Path
    ranks: Ranks

    def steps_of(
        self, placement: Placement, connection: Connection | None
    ) -> tuple[RunReport, ChannelGraph] | None:
        """Run the steps; returns what they took in the first process."""
        import torch

        from hgpart.report.running import RunReport, shares_of_work
        from hgpart.run.measuring import measure

        torch.manual_seed(self.placing.seed)
        batch = torch.randn(self.batch_size, *self.placing.plan.input_shape)
        first = connection is None or connection.rank == 0
        # Clocks of several machines have nothing in common.
        drawn = self.results.html is not None and not on_several_machines()
        with progress("steps", self.steps, first) as (bar, task):
            measured = measure(
                placement,
                batch,
                self.steps,
                backward=self.backward,
                connection=connection,
                scheduling=self.scheduling,
                timeline=self.results.timeline is not None or drawn,
                on_step=lambda done: bar.update(task, completed=done),
            )
        if not first:
            return None
        sizes = self.scheduling.sizes(self.batch_size)
        planned = placement.programs.expected_traffic(sizes, self.backward)
        report = RunReport(
            self.placing.model,
            self.placing.devices,
            self.ranks.backend,
            measured,
            planned.forward_bytes,
            planned.backward_bytes,
            self.scheduling,
            self.placing.norms,
            shares_of_work(placement),
        )
        return report, placement.programs.blueprint.graph

    def show(self, report: RunReport, graph: ChannelGraph, unit: str) -> None:
        """Write the files, print, and say whether the traffic was as planned."""
        from hgpart.report.page.running import run_page
        from hgpart.report.running import print_run, run_json
        from hgpart.report.timeline import write_timeline

        if self.results.timeline is not None:
            actions = report.measurement.timeline
            write_timeline(self.results.timeline, actions, report.model, report.devices)
        self.results.draw(lambda: run_page(report))
        if self.results.want_tables(run_json(report)):
            print_run(report, plain_console(), unit)
            lead_on(self._then(graph))
        sys.stdout.flush()
        difference = report.difference()
        if difference is not None:
            raise RunError(f"other bytes travelled than the plan says: {difference}")

    def _then(self, graph: ChannelGraph) -> str:
        """With a backward pass, in micro-batches, and then a training."""
        of = of_plan(self.placing.model, self.plan)
        if not self.backward:
            return f"hgpart run {of} --backward"
        divided = in_micro_batches(graph, self.placing.plan.modelling.slices, self.batch_size)
        if divided and self.scheduling == Scheduling() and len(self.placing.devices) > 1:
            return f"hgpart run {of} --backward{divided}"
        return f"hgpart train {of}" if self.placing.trains() else ""
