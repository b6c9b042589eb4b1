"""hgpart export: Model -> its hypergraph in a file, for other partitioners."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from hgpart.cli.command_lines import typed
from hgpart.cli.options import (
    BatchSize,
    BytesPerElement,
    Grain,
    Inference,
    InputShape,
    Linear,
    Model,
    NoInputVertex,
    NoOutputVertex,
    Norms,
    ProfileDevice,
    Slices,
    WorkSource,
    modelling_of,
    one_of,
    work_of,
)
from hgpart.cli.outputs import check_outputs, lead_on, plain_console
from hgpart.cli.stages import Stages, traced_model
from hgpart.errors import not_one_of

EVALUATED = (  # what says which hypergraph it is
    *("grain", "linear", "batch_size", "slices", "norms", "inference", "bytes_per_element"),
    *("input_shape", "no_input_vertex", "no_output_vertex", "work", "profile_device"),
)


def export(
    context: typer.Context,
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the hypergraph goes.")
    ],
    file_format: Annotated[
        str, one_of("--format", words=("patoh", "hmetis"), help="Of the file.")
    ] = "patoh",
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
) -> None:
    """Write the full hypergraph of a model, for other partitioners.

    Weights and costs whose sums exceed 32 bits, which these add up in, are divided, and by what is
    said.
    """
    check_outputs({"--output": output})
    with Stages() as stage:
        with stage("import"):
            from hgpart.hypergraph.blocks import single_blocks
            from hgpart.hypergraph.building import cnn_hypergraph
            from hgpart.hypergraph.formats import write_hmetis, write_patoh
            from hgpart.partition.problem.balance import MOST_FITTED, fitted
        writers = {"patoh": write_patoh, "hmetis": write_hmetis}
        if file_format not in writers:
            raise not_one_of("format", file_format, writers)
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
        module, _, traced, graph = traced_model(stage, model, input_shape)
        with stage("work", spinner=False):  # profiling shows its own progress
            done = measure(module, traced, graph)
        with stage("hypergraph"):
            blocks = single_blocks(graph, modelling)
            hypergraph = cnn_hypergraph(graph, done, blocks, modelling).hypergraph
        with stage("write"):
            fit = fitted(hypergraph)
            writers[file_format](fit.hypergraph, output)
    plain_console().print(
        f"{output}: {hypergraph.vertices:,} vertices, {hypergraph.nets:,} nets, "
        f"{len(hypergraph.pins):,} pins",
        soft_wrap=True,
    )
    divided = [f"weights by {fit.weights_by:,}"] * (fit.weights_by > 1)
    divided += [f"costs by {fit.costs_by:,}"] * (fit.costs_by > 1)
    if divided:
        off = f"{100 * fit.rounding:.1g} %"
        plain_console().print(
            f"Divided, so that sums of up to {MOST_FITTED} parts fit in 32 bits: "
            f"{' and '.join(divided)}; by rounding, a part's work is off by {off} of all at most"
        )
    same = typed(context, *EVALUATED)
    lead_on(f"a partitioner, then hgpart evaluate {quote(model)}{same} --partition FILE")
