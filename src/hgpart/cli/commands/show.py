"""hgpart show: a plan file -> its tables, its page, and what its parts are to do when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import hgpart
from hgpart.cli.groups import StepOptions
from hgpart.cli.named_model import PlanModel
from hgpart.cli.outputs import (
    GraphFile,
    Table,
    lead_on,
    of_plan,
    plain_console,
    show_report,
    unit_of,
)
from hgpart.cli.stages import Stages
from hgpart.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

    from hgpart.plan import PlanFile
    from hgpart.report.partition.record import Report
    from hgpart.schedule_wanted import Scheduling


@dataclass(frozen=True, kw_only=True)
class ShowResults(Table, GraphFile):
    """Where the results go.

    Attributes
    ----------
    output : FILE
        Write the schedule, for --schedule FILE of run, train and verify.
    """

    output: Path | None = None


def show(
    context: typer.Context,
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="Plan file, written by 'hgpart partition -o'.")
    ],
    of_model: PlanModel,
    step: StepOptions,
    results: ShowResults,
) -> None:
    """Show a plan again: check it against its model, print its tables and its schedule.

    With --schedule, or a plan that has one, it draws when each part computes in a training step.

    Examples
    --------
    $ hgpart show plan.json --schedule greedy --micro-batches 4
    """
    results.check()
    output, graph = results.output, results.graph
    if step.schedule is not None:
        step.scheduling()
    with Stages() as stage:
        with stage("import"):
            from hgpart.files.graphs import write_graph
            from hgpart.hypergraph.dependencies import dependencies
            from hgpart.recommendation.of_partition import assumed_step
            from hgpart.report.page.plan import plan_page
            from hgpart.report.running import dropped_lines
            from hgpart.report.tables import in_unit
        with stage("read"):
            loaded = hgpart.files.load_plan(plan)
        scheduling = None
        if step.schedule is not None or loaded.scheduling is not None:
            scheduling = step.scheduling(loaded.scheduling)
            scheduling.sizes(loaded.modelling.batch_size)
        else:
            for option, value in (("micro-batches", step.micro_batches), ("output", output)):
                if value is not None:
                    raise ArgumentError(
                        f"--{option} {value} without a schedule to draw: accepted with --schedule "
                        "RULE"
                    )
        named, known = of_model.known(stage, loaded, plan)
        with stage("evaluate"):
            report = replace(plan_report(loaded, known.graph), model=named)
        module, traced = known.module, known.traced
        with stage("simulate"):
            simulated = assumed_step(module, traced, report.partition)
            report = replace(report, simulated=simulated)
        drawn: list[tuple[hgpart.Schedule, hgpart.Costs]] = []
        if scheduling is not None:
            with stage("schedule"):
                schedule, costs, peaks = _planned(module, loaded, scheduling)
            drawn = [(schedule, costs)]
    report = replace(report, seconds=stage.all_seconds())
    unit = unit_of(context)
    results.draw(plan_page, report, unit, *drawn)
    if graph is not None:
        write_graph(dependencies(report.partition.model, loaded.parts), graph)
    show_report(report, unit, results)
    if scheduling is not None:
        if output is not None:
            hgpart.files.save_schedule(output, schedule)
        if results.json != "-":
            print(f"\n{hgpart.draw_schedule(schedule, costs)}", end="")
            sizes = (f"{part}: {size}" for part, size in enumerate(in_unit(peaks, unit)))
            plain_console().print(f"holds at most {', '.join(sizes)} {unit}")
            for line in dropped_lines(scheduling.recompute):
                plain_console().print(line, soft_wrap=True)
    if results.json != "-" and loaded.modelling.can_run:
        lead_on(f"hgpart run {of_plan(named, plan)} --backward")


def _planned(
    module: nn.Module, plan: PlanFile, scheduling: Scheduling
) -> tuple[hgpart.Schedule, hgpart.Costs, tuple[int | None, ...]]:
    """The order of a step or of a stream, its costs, and the most bytes that each part holds."""
    from hgpart.placement.accounting import known_peak_bytes
    from hgpart.placement.ordering.ordered import costs_of
    from hgpart.run.scheduling import wanted_schedule

    # Without weights: only the parts' programs are wanted.
    placement = hgpart.place(module.train(), plan, ["meta"] * plan.k)
    batches = scheduling.sample_batches
    schedule = wanted_schedule(placement, scheduling, backward=True, batches=batches)
    costs = costs_of(placement, scheduling.micro_batches)
    return schedule, costs, known_peak_bytes(placement, schedule)


def plan_report(plan: PlanFile, graph: hgpart.ChannelGraph) -> Report:
    """All that is said about a plan but seconds; it is checked against the graph of its model.

    Raises
    ------
    PlanError
        If the plan is not one of this model, or was changed.
    """
    from hgpart.report.partition.record import Report

    restored = hgpart.restore(plan, graph)
    modelling = restored.modelling
    cut = hgpart.evaluate_layerwise(graph, plan.work, modelling, plan.k, plan.speeds, plan.eps)
    return Report(restored, plan.model, plan.input_shape, cut, {})
