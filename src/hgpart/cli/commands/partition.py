"""hgpart partition: Model, k, eps -> a partition, its tables and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hgpart.cli.options import (
    AnySlices,
    BatchSize,
    BytesPerElement,
    CsvFile,
    Grain,
    HtmlFile,
    Inference,
    InputShape,
    JsonFile,
    Linear,
    Model,
    NoInputVertex,
    NoOutputVertex,
    Norms,
    Partitioner,
    ProfileDevice,
    SaveWork,
    Seed,
    Speeds,
    Unit,
    WorkSource,
    checked_unit,
    modelling_of,
    names,
    one_of,
    work_of,
)
from hgpart.cli.outputs import check_outputs, run_of_plan, show_report
from hgpart.cli.stages import Stages, traced_model
from hgpart.cli.timing import TIME, checked_timing
from hgpart.errors import ArgumentError


def partition(
    model: Model,
    k: Annotated[int, typer.Option("--k", "-k", help="Number of devices.")],
    eps: Annotated[
        float | None,
        typer.Option(
            help="Imbalance allowed: work up to (1 + eps) times a device's share. 0.1 when left "
            "out; 1 with --objective time, which balances as far as that is faster."
        ),
    ] = None,
    grain: Grain = "coarse",
    linear: Linear = "neuron",
    batch_size: BatchSize = 32,
    slices: AnySlices = "1",
    norms: Norms = "slice",
    inference: Inference = False,
    bytes_per_element: BytesPerElement = None,
    input_shape: InputShape = None,
    no_input_vertex: NoInputVertex = False,
    no_output_vertex: NoOutputVertex = False,
    work: WorkSource = "flops",
    profile_device: ProfileDevice = None,
    save_work: SaveWork = None,
    backend: Partitioner = "native",
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Not by a partitioner, but as 'hgpart compare' does by this name: layerwise, "
            "filterwise-horizontal, data-parallel, ...",
        ),
    ] = None,
    seed: Seed = 0,
    speeds: Speeds = None,
    objective: Annotated[
        str,
        one_of(
            words=("volume", "largest", "time"),
            help="Few bytes in all, or of the part that sends and receives most; or a step that is "
            "fast, by simulation, which needs --machine and a file of 'hgpart profile' as --work "
            "(native).",
        ),
    ] = "volume",
    topology: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What a byte costs from device to device, or a machine as of 'hgpart calibrate': "
            "little of that, instead (native).",
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="With --objective time: a named machine, or a file of 'hgpart calibrate'.",
        ),
    ] = None,
    micro_batches: Annotated[
        int | None,
        typer.Option(help="With --objective time; 1, 2, 4 and 8 are tried when left out."),
    ] = None,
    memory: Annotated[
        Any,
        typer.Option(
            parser=names,
            metavar="M,M,...",
            help="What each device has, or one for all: 2GiB, 512MB (native).",
        ),
    ] = None,
    memory_copies: Annotated[
        float | None,
        typer.Option(
            help="Of each parameter in it: 1 to infer, 2 to train by gradient descent, 3 with "
            "momentum, 4 with Adam, as when left out."
        ),
    ] = None,
    in_flight: Annotated[
        int | None,
        typer.Option(
            help="Batches whose maps, weights and gradients it has room for, as asynchronous "
            "training needs; 1 when left out, which is all of a step in however many micro-batches."
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds to search; the best found by then counts. 60 for exact by default."
        ),
    ] = None,
    effort: Annotated[
        float, typer.Option(min=0, help="How long the native solver searches, 1 by default.")
    ] = 1.0,
    best_effort: Annotated[
        bool, typer.Option("--best-effort", help="Show the best found where eps can't be met.")
    ] = False,
    unit: Unit = "MB",
    json: JsonFile = None,
    csv: CsvFile = None,
    html: HtmlFile = None,
    partition_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The part of each vertex, in the order of 'hgpart export'."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The plan, as JSON.")
    ] = None,
) -> None:
    """Divide a model among k devices, and show what it costs."""
    check_outputs(
        {
            "--json": json,
            "--csv": csv,
            "--html": html,
            "--save-work": save_work,
            "--partition-file": partition_file,
            "--output": output,
        }
    )
    with Stages() as stage:
        with stage("import"):
            from hgpart.compare.strategies import partition_by, strategy_named
            from hgpart.hypergraph.formats import write_partition
            from hgpart.hypergraph.partition_files import full_parts
            from hgpart.partition import partition_graph
            from hgpart.partition.backends import check_backend
            from hgpart.partition.number_of_slices import known_in_slices
            from hgpart.partition.problem.checks import check_request, check_search
            from hgpart.partition.problem.memory import COPIES, memory_limits
            from hgpart.partition.problem.objectives import VOLUME, WIDE, objective_named
            from hgpart.partition.problem.problem import Problem
            from hgpart.partition.problem.search import Search
            from hgpart.partition.problem.topology import load_topology
            from hgpart.partitioned_model import evaluate_layerwise
            from hgpart.plan import Plan
            from hgpart.plan import save_plan as write_plan
            from hgpart.report import Report
            from hgpart.work.figures import save_work as write_work
        unit = checked_unit(unit)
        if eps is None:
            eps = WIDE if objective == TIME else 0.1
        check_request(k, eps, speeds)
        check_search(seed, effort, time_limit)
        timing = checked_timing(objective, machine, micro_batches, work, k)
        if timing is not None:
            timing.check(slices, backend, inference, batch_size, topology, speeds)
        if strategy is not None:
            strategy_named(strategy)  # raises before the model is traced
            refused = {
                f"--backend {backend}": backend != "native",
                f"--grain {grain}": grain != "coarse",
                f"--slices {slices}": slices not in (1, "auto"),
                f"--objective {objective}": objective != "volume",
                "--speeds": speeds is not None,
                "--topology": topology is not None,
                "--memory": memory is not None,
                "--inference": inference,
                "--norms batch": norms != "slice",
            }
            for option in (option for option, given in refused.items() if given):
                raise ArgumentError(f"{option} with --strategy {strategy}: accepted is without")
        wanted = VOLUME if timing is not None else objective_named(objective)
        if topology is not None:
            if objective != "volume":
                raise ArgumentError(f"--objective {objective} and --topology: accepted is one")
            wanted = load_topology(topology, k)
        if memory is None and memory_copies is not None:
            raise ArgumentError(f"--memory-copies {memory_copies:g}: only --memory needs them")
        copies = COPIES if memory_copies is None else memory_copies
        if memory is None and in_flight is not None:
            raise ArgumentError(f"--in-flight {in_flight}: only --memory counts them")
        batches = 1 if in_flight is None else in_flight
        limits = None if memory is None else memory_limits(memory, k, copies, batches)
        check_backend(backend, wanted, limits, slices)
        modelling = modelling_of(
            grain,
            linear,
            batch_size,
            bytes_per_element,
            no_input_vertex,
            no_output_vertex,
            1 if slices == "auto" else slices,
            inference,
            norms,
        )
        measure = work_of(work, profile_device, batch_size)
        module, shape, traced, graph = traced_model(stage, model, input_shape)
        with stage("work", spinner=False):  # profiling shows its own progress
            done = measure(module, traced, graph)
        if save_work is not None:
            write_work(done, graph, save_work)  # kept even where eps can't be met
        chosen = None
        with stage("partition"):
            if timing is not None:
                problem = Problem(graph, done, modelling, k, eps, memory=limits)
                search = Search(seed, effort, time_limit, stage.search)
                chosen = timing.choose(module, shape, problem, search)
                found = chosen.partition
            elif strategy is not None:
                found = partition_by(strategy, graph, done, k, eps, modelling=modelling, seed=seed)
            else:
                found = partition_graph(
                    graph,
                    done,
                    k,
                    eps,
                    modelling=modelling,
                    slices=slices,
                    backend=backend,
                    seed=seed,
                    speeds=speeds,
                    objective=wanted,
                    memory=limits,
                    time_limit=time_limit,
                    best_effort=best_effort,
                    effort=effort,
                    on_progress=stage.search,
                )
        with stage("layer-wise"):
            layerwise = evaluate_layerwise(graph, done, found.modelling, k, speeds, eps)
        trains_many = modelling.training and batch_size > 1
        searched = timing is None and strategy is None
        untried = searched and slices == 1 and backend == "native" and k > 1 and trains_many
        untried &= not graph.mixing.of_norms(modelling.norms)
        known = None
        if untried and limits is None and wanted.is_volume:
            with stage("slices"):
                known = known_in_slices(Problem(graph, done, modelling, k, eps, speeds))
        with stage("write"):
            if partition_file is not None:
                parts = full_parts(found.model, found.parts)
                write_partition(parts, partition_file)
            if output is not None:
                write_plan(Plan(found, model, shape), output)
    report = replace(
        Report(found, model, shape, layerwise, stage.all_seconds()),
        any_slices=slices == "auto",
        untried_slices=untried,
        in_slices=None if known is None else known.volume,
    )
    if html is not None:
        from hgpart.report.page.document import write_page
        from hgpart.report.page.plan import plan_page

        write_page(plan_page(report, unit), html)
    show_report(report, unit, json, csv, run_of_plan(model, output, graph, found.modelling))
    if timing is not None and chosen is not None:
        timing.tell(chosen)
    if found.interrupted:
        raise KeyboardInterrupt("in the search: the partition is the best by then")
