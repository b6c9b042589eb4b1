"""hgpart evaluate: Model + the partition of another tool -> its tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hgpart.cli.options import (
    BatchSize,
    BytesPerElement,
    CsvFile,
    Eps,
    Grain,
    Inference,
    InputShape,
    JsonFile,
    Linear,
    Model,
    NoInputVertex,
    NoOutputVertex,
    Norms,
    ProfileDevice,
    Slices,
    Speeds,
    Unit,
    WorkSource,
    checked_unit,
    modelling_of,
    work_of,
)
from hgpart.cli.outputs import check_outputs, run_of_plan, show_report
from hgpart.cli.stages import Stages, traced_model
from hgpart.errors import FormatError

if TYPE_CHECKING:
    from hgpart.arrays import Int32
    from hgpart.hypergraph.modelling import Modelling

MOST_OF_A_HEAD = 200  # characters, in which a plan says that it is one


def evaluate(
    model: Model,
    partition_file: Annotated[
        Path,
        typer.Option(
            "--partition",
            metavar="FILE",
            help="The part of each vertex, in the order of 'hgpart export' with these options.",
        ),
    ],
    k: Annotated[
        int | None,
        typer.Option("--k", "-k", help="Number of devices; as many as the file has, if left out."),
    ] = None,
    eps: Eps = 0.1,
    grain: Grain = "coarse",
    linear: Linear = "neuron",
    batch_size: BatchSize = 32,
    slices: Slices = "1",
    norms: Norms = "slice",
    inference: Inference = False,
    bytes_per_element: BytesPerElement = None,
    input_shape: InputShape = None,
    no_input_vertex: NoInputVertex = False,
    no_output_vertex: NoOutputVertex = False,
    work: WorkSource = "flops",
    profile_device: ProfileDevice = None,
    speeds: Speeds = None,
    unit: Unit = "MB",
    json: JsonFile = None,
    csv: CsvFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A plan of it, as JSON.")
    ] = None,
) -> None:
    """Show what a partition costs that another tool made."""
    check_outputs({"--json": json, "--csv": csv, "--output": output})
    with Stages() as stage:
        with stage("import"):
            from hgpart.hypergraph.blocks import full_vertices
            from hgpart.hypergraph.partition_files import blocks_of_parts
            from hgpart.partition.partition import ANOTHER_TOOL, evaluated
            from hgpart.partition.problem.checks import check_request
            from hgpart.partition.problem.problem import Problem
            from hgpart.partitioned_model import evaluate_layerwise
            from hgpart.plan import Plan, save_plan
            from hgpart.report import Report
        unit = checked_unit(unit)
        check_request(len(speeds or [1]) if k is None else k, eps, speeds)
        modelling = modelling_of(
            grain,
            linear,
            batch_size,
            bytes_per_element,
            no_input_vertex,
            no_output_vertex,
            slices,
            inference,
            norms,
        )
        measure = work_of(work, profile_device, batch_size)
        module, shape, traced, graph = traced_model(stage, model, input_shape)
        with stage("read"):
            vertices = full_vertices(modelling.views(graph))
            every = _read(partition_file, vertices, modelling, k)
            k = k or int(every.max(initial=0)) + 1
            check_request(k, eps, speeds)
        with stage("work", spinner=False):  # profiling shows its own progress
            done = measure(module, traced, graph)
        with stage("evaluate"):
            blocks, parts = blocks_of_parts(graph, done, modelling, every)
            problem = Problem(graph, done, modelling, k, eps, speeds)
            found = evaluated(
                problem, blocks, parts, seed=0, backend=ANOTHER_TOOL, start=ANOTHER_TOOL
            )
        with stage("layer-wise"):
            layerwise = evaluate_layerwise(graph, done, modelling, k, speeds, eps)
        if output is not None:
            with stage("write"):
                save_plan(Plan(found, model, shape), output)
    report = Report(found, model, shape, layerwise, stage.all_seconds())
    show_report(report, unit, json, csv, run_of_plan(model, output, graph, modelling))


def _read(path: Path, vertices: int, modelling: Modelling, k: int | None) -> Int32:
    """Read the part of each vertex of each slice; of another file say what it is, if that shows."""
    from hgpart.hypergraph.formats import read_partition
    from hgpart.plan import FORMAT, LARGEST_K

    every = modelling.slices * vertices
    most = k or min(every, LARGEST_K)
    try:
        return read_partition(path, every, most)
    except FormatError:
        if not path.is_file() or not os.access(path, os.R_OK):
            raise
        with path.open(errors="replace") as file:
            if FORMAT in file.read(MOST_OF_A_HEAD):
                raise FormatError(
                    f"{path} is a plan, expected a partition file: hgpart show prints plans"
                ) from None
        count = len(read_partition(path, k=most))
        slices, others = divmod(count, vertices)
        if others or not 1 <= slices <= modelling.batch_size:
            raise
        raise FormatError(
            f"{path} has {count} parts, expected {every}: accepted with --slices {slices}"
        ) from None
