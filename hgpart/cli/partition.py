"""hgpart partition: Model, k, eps -> a partition, its tables and files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hgpart.cli.options import (
    BatchSize,
    BytesPerElement,
    CsvFile,
    Eps,
    Grain,
    InputShape,
    JsonFile,
    Linear,
    Model,
    NoInputVertex,
    NoOutputVertex,
    ProfileDevice,
    SaveWork,
    Seed,
    Speeds,
    Unit,
    WorkSource,
    checked_unit,
    modelling_of,
    work_of,
)
from hgpart.cli.outputs import check_outputs, show_report
from hgpart.cli.stages import Stages, traced_model


def partition(
    model: Model,
    k: Annotated[int, typer.Option("--k", "-k", help="Number of devices.")],
    eps: Eps = 0.1,
    grain: Grain = "coarse",
    linear: Linear = "neuron",
    batch_size: BatchSize = 32,
    bytes_per_element: BytesPerElement = None,
    input_shape: InputShape = None,
    no_input_vertex: NoInputVertex = False,
    no_output_vertex: NoOutputVertex = False,
    work: WorkSource = "flops",
    profile_device: ProfileDevice = None,
    save_work: SaveWork = None,
    backend: Annotated[str, typer.Option(help="native, kahypar or mtkahypar.")] = "kahypar",
    seed: Seed = 0,
    speeds: Speeds = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds to search; the best found by then counts.")
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
            "--json": json if json != "-" else None,
            "--csv": csv,
            "--save-work": save_work,
            "--partition-file": partition_file,
            "--output": output,
        }
    )
    with Stages() as stage:
        with stage("import"):
            from hgpart.formats import write_partition
            from hgpart.partition import check_arguments, partition_graph
            from hgpart.partition.backends import backend as backend_named
            from hgpart.partition_files import full_parts
            from hgpart.pipeline import evaluate_layerwise
            from hgpart.plan import make_plan
            from hgpart.plan import save_plan as write_plan
            from hgpart.report import Report
            from hgpart.shares import part_shares
            from hgpart.work import save_work as write_work
        unit = checked_unit(unit)
        backend_named(backend)
        check_arguments(k, eps, seed, speeds)
        modelling = modelling_of(
            grain, linear, batch_size, bytes_per_element, no_input_vertex, no_output_vertex
        )
        measure = work_of(work, profile_device, batch_size)
        module, shape, traced, graph = traced_model(stage, model, input_shape)
        with stage("work", spinner=False):  # profiling shows its own progress
            done = measure(module, traced, graph)
        if save_work is not None:
            write_work(done, graph, save_work)  # kept even where eps can't be met
        with stage("partition"):
            found = partition_graph(
                graph,
                done,
                k,
                eps,
                modelling=modelling,
                backend=backend,
                seed=seed,
                speeds=speeds,
                time_limit=time_limit,
                best_effort=best_effort,
                effort=effort,
                on_progress=stage.search,
            )
        with stage("layer-wise"):
            layerwise = evaluate_layerwise(graph, done, modelling, k, speeds, eps)
        with stage("write"):
            shares = part_shares(graph, found.model, modelling, found.parts, k)
            if partition_file is not None:
                parts = full_parts(graph, found.model, modelling, found.parts)
                write_partition(parts, partition_file)
            if output is not None:
                write_plan(make_plan(found, graph, done, model, shape), output)
    report = Report(
        model=model,
        input_shape=shape,
        graph=graph,
        work=done,
        modelling=modelling,
        k=k,
        eps=eps,
        speeds=found.speeds,
        backend=backend,
        start=found.start,
        seed=seed,
        hypergraph=found.model.hypergraph,
        feasible=found.feasible,
        evaluation=found.evaluation,
        shares=shares,
        layerwise=layerwise,
        seconds=stage.all_seconds(),
    )
    show_report(report, unit, json, csv)
