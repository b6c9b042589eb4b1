"""hgpart run: Model, plan -> passes of the model in its parts, timed and counted."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hgpart.cli.options import (
    Devices,
    HtmlFile,
    InFlight,
    JsonFile,
    MicroBatches,
    NoStash,
    OneProcess,
    PlanFile,
    PlannedModel,
    Recompute,
    ScheduleRule,
    StepNorms,
    Timeout,
    Transport,
    Unit,
    Weights,
    checked_unit,
)
from hgpart.cli.outputs import (
    check_outputs,
    in_micro_batches,
    lead_on,
    of_plan,
    plain_console,
    tables_wanted,
)
from hgpart.cli.placing import Placing, progress
from hgpart.cli.planned import plan_and_model
from hgpart.cli.processes import (
    check_one_clock,
    device_of_each,
    on_several_machines,
    start_ranks,
    started_as_rank,
)
from hgpart.cli.stages import Stages
from hgpart.errors import ArgumentError, RunError
from hgpart.run.processes.transports import check_transport
from hgpart.schedule_wanted import Scheduling, scheduling_of

if TYPE_CHECKING:
    from hgpart.layers.channel_graph import ChannelGraph
    from hgpart.placement import Placement
    from hgpart.report.running import RunReport
    from hgpart.run.processes.connection import Connection


def run(
    context: typer.Context,
    plan: PlanFile,
    model: PlannedModel = None,
    steps: Annotated[int, typer.Option(help="Passes that are timed, after one that is not.")] = 10,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of a step; those of the plan when left out.")
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="A backward pass in each step, too.")
    ] = False,
    micro_batches: MicroBatches = None,
    schedule: ScheduleRule = None,
    norms: StepNorms = "micro-batch",
    in_flight: InFlight = None,
    no_stash: NoStash = False,
    recompute: Recompute = False,
    devices: Devices = "cpu",
    transport: Transport = "gloo",
    one_process: OneProcess = False,
    weights: Weights = None,
    seed: Annotated[
        int, typer.Option(rich_help_panel="A step", help="Of the weights and of the batch.")
    ] = 0,
    timeout: Timeout = 300.0,
    unit: Unit = "MB",
    json: JsonFile = None,
    html: HtmlFile = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What each part did when, for Perfetto and chrome://tracing."
        ),
    ] = None,
) -> None:
    """Run a model on the devices of a plan: throughput, waiting and what travels."""
    check_outputs({"--json": json, "--html": html, "--timeline": timeline})
    check_one_clock(timeline, one_process)
    check_transport(transport)
    if steps < 1:
        raise ArgumentError(f"--steps {steps}: accepted is 1 or more")
    with Stages() as stage, stage("import"):
        from hgpart.hypergraph.modelling import LARGEST_FACTOR
        from hgpart.run.processes.connection import check_timeout
    if batch_size is not None and not 1 <= batch_size <= LARGEST_FACTOR:
        raise ArgumentError(f"--batch-size {batch_size}: accepted is 1 to {LARGEST_FACTOR}")
    checked_unit(unit)
    check_timeout(timeout)
    loaded, model = plan_and_model(plan, model)
    scheduling = scheduling_of(
        *(schedule, micro_batches, in_flight),
        stash=not no_stash,
        recompute=recompute,
        planned=loaded.scheduling,
    )
    placing = Placing(model, loaded, device_of_each(devices, loaded.k), weights, seed, norms=norms)
    samples = batch_size or loaded.modelling.batch_size
    scheduling.sizes(samples)
    if scheduling.is_stream and not backward:
        raise ArgumentError(f"--schedule {scheduling.name} without --backward: accepted is with it")
    wanted = _Run(placing, steps, samples, backward, scheduling, unit, json, html, timeline, plan)
    if one_process:
        placement = placing.here()
        report = wanted.steps_of(placement, None, "threads")
    elif started_as_rank():
        with placing.connected(transport, timeout) as connection:
            placement = placing.part_of(connection)
            report = wanted.steps_of(placement, connection, transport)
    else:
        placing.check_here(transport)
        placing.check_step(scheduling, samples, backward, transport)
        start_ranks(context, loaded.k)
        return
    if report is not None:  # not before the others are done, who would fail with what fails here
        wanted.show(report, placement.programs.blueprint.graph)


@dataclass(frozen=True)
class _Run:
    """What was asked for, checked."""

    placing: Placing
    steps: int
    batch_size: int
    backward: bool
    scheduling: Scheduling
    unit: str
    json: str | None
    html: Path | None
    timeline: Path | None
    plan: Path

    def steps_of(
        self, placement: Placement, connection: Connection | None, carrier: str
    ) -> RunReport | None:
        """Run the steps; returns what they took in the first process."""
        import torch

        from hgpart.report.running import RunReport, shares_of_work
        from hgpart.run.measuring import measure

        torch.manual_seed(self.placing.seed)
        batch = torch.randn(self.batch_size, *self.placing.plan.input_shape)
        first = connection is None or connection.rank == 0
        with progress("steps", self.steps, first) as (bar, task):
            measured = measure(
                placement,
                batch,
                self.steps,
                backward=self.backward,
                connection=connection,
                scheduling=self.scheduling,
                timeline=self.timeline is not None or self._draws_when(),
                on_step=lambda done: bar.update(task, completed=done),
            )
        if not first:
            return None
        sizes = self.scheduling.sizes(self.batch_size)
        planned = placement.programs.expected_traffic(sizes, self.backward)
        return RunReport(
            self.placing.model,
            self.placing.devices,
            carrier,
            measured,
            planned.forward_bytes,
            planned.backward_bytes,
            self.scheduling,
            self.placing.norms,
            shares_of_work(placement),
        )

    def _draws_when(self) -> bool:
        """Whether the page has a timeline: clocks of several machines have nothing in common."""
        return self.html is not None and not on_several_machines()

    def show(self, report: RunReport, graph: ChannelGraph) -> None:
        """Write the file, print, and say whether it was as planned."""
        from hgpart.report.running import print_run, run_json
        from hgpart.report.timeline import write_timeline

        if self.timeline is not None:
            found = report.measurement.timeline
            write_timeline(self.timeline, found, report.model, report.devices)
        if self.html is not None:
            from hgpart.report.page.document import write_page
            from hgpart.report.page.running import run_page

            write_page(run_page(report), self.html)
        if tables_wanted(self.json, run_json(report)):
            print_run(report, plain_console(), self.unit)
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
