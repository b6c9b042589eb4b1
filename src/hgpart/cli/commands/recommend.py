"""hgpart recommend: Model, devices -> the best way to train it on them, and its plan."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import TaskProgressColumn, TimeElapsedColumn

from hgpart.cli.options import (
    HtmlFile,
    InputShape,
    JsonFile,
    Model,
    Seed,
    Timeout,
    Unit,
    Wide,
    checked_unit,
    one_of,
)
from hgpart.cli.outputs import check_outputs, lead_on, of_plan, plain_console, tables_wanted
from hgpart.cli.stages import Stages, classes_of, then_of_plan, traced_model
from hgpart.cores import threads_of_each
from hgpart.errors import ArgumentError
from hgpart.terminal import progress_bar

if TYPE_CHECKING:
    from hgpart.recommendation.ranking import Recommendation


def recommend(
    model: Model,
    devices: Annotated[
        int | None, typer.Option(help="That there are; those of --machine FILE when left out.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Devices and links: a file of 'hgpart calibrate', or a named machine; measured "
            "here and now when left out.",
        ),
    ] = None,
    times: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What layers take: a file of 'hgpart profile'; measured here and now when left "
            "out.",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help="Of each device, as in 512MB or 2GiB; what the machine says when left out.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples of a step, of all devices.")] = 32,
    goal: Annotated[
        str,
        one_of(
            words=("time", "memory", "throughput"),
            help="Few seconds a step, few bytes a device, or many samples a second, for which "
            "older weights are accepted, too.",
        ),
    ] = "time",
    measure: Annotated[
        int,
        typer.Option(
            metavar="N", help="Run the N best here for a few steps, and rank them by that."
        ),
    ] = 0,
    time_limit: Annotated[
        float, typer.Option(help="Seconds to simulate ways in, the likeliest first.")
    ] = 120.0,
    seed: Seed = 0,
    input_shape: InputShape = None,
    timeout: Timeout = 300.0,
    unit: Unit = "MB",
    wide: Wide = False,
    json: JsonFile = None,
    html: HtmlFile = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The best plan, with its schedule, as JSON."
        ),
    ] = Path("best.json"),
) -> None:
    """Find the best way to train a model on some devices: divided how, in which order."""
    check_outputs({"--json": json, "--html": html, "--output": output})
    if devices is None and machine is None:
        raise ArgumentError("neither --devices nor --machine: accepted is --devices 4, say")
    if devices is not None and devices < 1:
        raise ArgumentError(f"--devices {devices}: accepted is 1 or more")
    if batch_size < 1:
        raise ArgumentError(f"--batch-size {batch_size}: accepted is 1 or more")
    if not 0 <= time_limit < inf:
        raise ArgumentError(f"--time-limit {time_limit}: accepted is 0 s or more")
    if measure < 0:
        raise ArgumentError(f"--measure {measure}: accepted is 0 or more")
    checked_unit(unit)  # last: it imports torch
    with Stages() as stage:
        with stage("import"):
            from hgpart.machines.machine_files import load_machine
            from hgpart.machines.named import named_machine
            from hgpart.partition.problem.checks import check_search
            from hgpart.partition.problem.memory import number_of_bytes
            from hgpart.plan import save_plan
            from hgpart.recommendation.measured_here import machine_here, times_here
            from hgpart.recommendation.ranking import check_goal
            from hgpart.recommendation.ways import rank_ways
            from hgpart.report.recommendation.fields import recommendation_json
            from hgpart.report.recommendation.printing import print_recommendation
            from hgpart.run.processes.connection import check_timeout
        check_goal(goal)
        check_search(seed)
        check_timeout(timeout)
        limit = None if memory is None else number_of_bytes(memory)
        given = None if machine is None else load_machine(machine, devices)
        if measure and machine is not None and named_machine(machine, devices) is not None:
            raise ArgumentError(
                f"--measure {measure} with --machine {machine}: accepted is this machine, or a file"
            )
        k = devices or (given.k if given is not None else 1)
        threads = given.devices[0].threads if given is not None else threads_of_each(k)
        module, shape, traced, graph = traced_model(stage, model, input_shape)
        classes = classes_of(module, shape) if measure else 0
        notes = []
        if times is not None:
            from hgpart.work.layer_times import load_layer_times

            seconds = load_layer_times(times, graph)
    if given is None:
        given, said = machine_here(k, threads, "--machine FILE or NAME for others")
        notes.append(said)
    if times is None:
        seconds = times_here(module, traced, graph, batch_size, threads)
        notes.append(
            f"Layers were measured now, with {threads} thread{'s' * (threads > 1)}; to keep that: "
            f"hgpart profile {model} --batch-size {batch_size} --threads {threads} -o times.json"
        )
    with progress_bar(TaskProgressColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=1.0)
        found = rank_ways(
            *(module, traced, graph, seconds, given),
            devices=k,
            batch_size=batch_size,
            goal=goal,
            memory=limit,
            time_limit=time_limit,
            seed=seed,
            name=model,
            on_progress=lambda what, done: bar.update(task, description=what, completed=done),
        )
    found = replace(found, notes=(*notes, *found.notes))
    if measure and not found.interrupted:
        found = _measured(found, shape, classes, threads, measure, seed, timeout)
    save_plan(found.best.plan, output)
    if html is not None:
        from hgpart.recommendation.memory import limits_of
        from hgpart.report.page.document import write_page
        from hgpart.report.page.recommended import recommendation_page

        write_page(recommendation_page(found, limits_of(found.machine, limit), unit), html)
    if tables_wanted(json, recommendation_json(found)):
        print_recommendation(found, plain_console(), unit, wide=wide)
        plain_console().print()
        plain_console().print(f"{output} has the plan and its schedule", soft_wrap=True)
        lead_on(then_of_plan(module, shape, of_plan(model, output)))
    if found.interrupted:
        raise KeyboardInterrupt(f"in the simulations: {output} is the best by then")


def _measured(
    found: Recommendation,
    shape: tuple[int, ...],
    classes: int,
    threads: int,
    count: int,
    seed: int,
    timeout: float,
) -> Recommendation:
    from hgpart.bench.ways.job import Job
    from hgpart.recommendation.measuring import with_measured

    job = Job(
        *(found.model, shape, classes, found.batch_size, found.devices, threads, seed),
        timeout=timeout,
    )
    with progress_bar(TaskProgressColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=1.0)
        return with_measured(
            found,
            job,
            count,
            lambda what, done: bar.update(task, description=f"run {what}", completed=done),
        )
