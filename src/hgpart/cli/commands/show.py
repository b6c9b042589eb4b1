"""hgpart show: a plan file -> its tables, its page, and what its parts are to do when."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hgpart.cli.options import (
    CsvFile,
    DotFile,
    GraphmlFile,
    HtmlFile,
    InFlight,
    JsonFile,
    MicroBatches,
    Recompute,
    Unit,
    checked_unit,
)
from hgpart.cli.outputs import (
    check_outputs,
    lead_on,
    of_plan,
    plain_console,
    show_report,
)
from hgpart.cli.planned import trusted_model
from hgpart.cli.stages import Stages, traced_model
from hgpart.errors import ArgumentError, TraceError
from hgpart.schedule_wanted import Scheduling, scheduling_of

if TYPE_CHECKING:
    from torch import nn

    from hgpart.layers.channel_graph import ChannelGraph
    from hgpart.plan import PlanFile
    from hgpart.report import Report
    from hgpart.schedules.costs import Costs
    from hgpart.schedules.schedule import Schedule

CODE_ACCEPTED = "--model MODEL, which names the code to call, or --trust, if the plan is yours"


def show(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A file of 'hgpart partition -o'.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Its model, where the plan names code that is to be called."
        ),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Call whatever code the plan names as its model.")
    ] = False,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="RULE|FILE",
            help="Draw what each part does when in a step of training: sequential, gpipe, 1f1b, "
            "zero-bubble, greedy, or a file of -o; or with some batches, async. The plan's, if it "
            "has one, when left out.",
        ),
    ] = None,
    micro_batches: MicroBatches = None,
    in_flight: InFlight = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The schedule, for --schedule of run, train and verify.",
        ),
    ] = None,
    recompute: Recompute = False,
    unit: Unit = "MB",
    json: JsonFile = None,
    csv: CsvFile = None,
    html: HtmlFile = None,
    graphml: GraphmlFile = None,
    dot: DotFile = None,
) -> None:
    """Show a plan again: build its model, check that it has not changed, print its tables.

    As a graph it is the parts' shares of the layers, and what each takes of the others.
    """
    files = {"--csv": csv, "--html": html, "--graphml": graphml, "--dot": dot}
    check_outputs({"--json": json, "--output": output, **files})
    if schedule is not None:
        scheduling_of(schedule, micro_batches, in_flight, recompute=recompute)
    with Stages() as stage:
        with stage("import"):
            from hgpart.plan import another_model, load_plan
        unit = checked_unit(unit)
        with stage("read"):
            loaded = load_plan(plan)
        scheduling = None
        if schedule is not None or loaded.scheduling is not None:
            scheduling = scheduling_of(
                *(schedule, micro_batches, in_flight),
                recompute=recompute,
                planned=loaded.scheduling,
            )
        else:
            _check_undrawn(micro_batches, in_flight, output, recompute)
        if scheduling is not None:
            scheduling.sizes(loaded.modelling.batch_size)
        if model is None and not trust:
            model = trusted_model(loaded, plan, CODE_ACCEPTED)
        named = model or loaded.model
        try:
            module, _, _, graph = traced_model(stage, named, loaded.input_shape)
        except (ArgumentError, TraceError) as error:
            raise another_model(loaded.model, [loaded.input_shape], error) from error
        with stage("evaluate"):
            report = replace(plan_report(loaded, graph), model=named)
        planned, peaks = None, tuple[int | None, ...]()
        if scheduling is not None:
            with stage("schedule"), redirect_stdout(sys.stderr):
                planned, peaks = _planned(module, loaded, scheduling)
    report = replace(report, seconds=stage.all_seconds())
    if html is not None:
        from hgpart.report.page.document import write_page
        from hgpart.report.page.plan import plan_page

        write_page(plan_page(report, unit, planned), html)
    if graphml is not None or dot is not None:
        from hgpart.hypergraph.dependencies import dependencies
        from hgpart.report.graphs import write_graph

        write_graph(dependencies(report.partition.model, loaded.parts), graphml, dot)
    show_report(report, unit, json, csv)
    if planned is not None:
        from hgpart.schedules.drawing import draw_schedule
        from hgpart.schedules.schedule_files import save_schedule

        if output is not None:
            save_schedule(output, planned[0])
        if json != "-":
            print(f"\n{draw_schedule(*planned)}", end="")
            plain_console().print(f"holds at most {_each(peaks, unit)} {unit}")
    if json != "-":
        lead_on(f"hgpart run {of_plan(named, plan)} --backward")


def _check_undrawn(
    micro_batches: int | None, in_flight: int | None, output: Path | None, recompute: bool
) -> None:
    """Refuse what is said of a schedule, where there is none."""
    needing = {"--micro-batches": micro_batches, "--in-flight": in_flight, "--output": output}
    for option, value in needing.items():
        if value is not None:
            raise ArgumentError(
                f"{option} {value} without a schedule to draw: accepted with --schedule RULE"
            )
    if recompute:
        raise ArgumentError("--recompute without a schedule: accepted with --schedule RULE")


def _planned(
    module: nn.Module, plan: PlanFile, scheduling: Scheduling
) -> tuple[tuple[Schedule, Costs], tuple[int | None, ...]]:
    """The order of a step or of a stream, its costs, and the most that each part holds in it."""
    from hgpart.placement import place
    from hgpart.placement.accounting import known_peak_bytes
    from hgpart.run.scheduling import costs_of, wanted_schedule

    # Without weights: only the parts' programs are wanted.
    placement = place(module.train(), plan, ["meta"] * plan.k)
    batches = scheduling.sample_batches
    made = wanted_schedule(placement, scheduling, backward=True, batches=batches)
    costs = costs_of(placement, scheduling.micro_batches)
    return (made, costs), known_peak_bytes(placement, made)


def _each(peaks: Sequence[int | None], unit: str) -> str:
    """Of each part."""
    from hgpart.report.tables import in_unit

    return ", ".join(f"{part}: {size}" for part, size in enumerate(in_unit(peaks, unit)))


def plan_report(plan: PlanFile, graph: ChannelGraph) -> Report:
    """All that is said about a plan but seconds; it is checked against the graph of its model.

    Raises
    ------
    PlanError
        If the plan is not one of this model, or was changed.
    """
    from hgpart.partitioned_model import evaluate_layerwise
    from hgpart.plan import restore
    from hgpart.report import Report

    found = restore(plan, graph)
    modelling = found.modelling
    cut = evaluate_layerwise(graph, plan.work, modelling, plan.k, plan.speeds, plan.eps)
    return Report(found, plan.model, plan.input_shape, cut, {})
