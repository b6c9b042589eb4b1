"""hgpart profile: Model, batch size -> seconds of each pass of shares of its layers."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from hgpart.cli.command_lines import typed
from hgpart.cli.options import InputShape, Model, whole
from hgpart.cli.outputs import check_outputs, lead_on, plain_console
from hgpart.cli.stages import Stages, traced_model


def profile(
    context: typer.Context,
    model: Model,
    batch_size: Annotated[
        int, typer.Option(help="The most samples that are measured; down to one are, too.")
    ] = 32,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="What computes: cpu, cuda, cuda:0.")
    ] = "cpu",
    threads: Annotated[
        Any,
        typer.Option(
            parser=whole,
            metavar="N",
            help="That compute on the CPU, as many as a process of yours will have; "
            "OMP_NUM_THREADS, or all cores, when left out.",
        ),
    ] = None,
    input_shape: InputShape = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The seconds, as JSON, for --work."),
    ] = None,
) -> None:
    """Measure what shares of each layer take: forward, backward and update."""
    check_outputs({"--output": output})
    with Stages() as stage:
        module, shape, traced, graph = traced_model(stage, model, input_shape)
        with stage("profile", spinner=False):  # it shows its own progress
            import torch

            from hgpart.report import print_layer_times
            from hgpart.timing.layer_timing import time_layers
            from hgpart.work.layer_times import save_layer_times

            if threads is not None:
                torch.set_num_threads(threads)
            times = time_layers(module, traced, graph, batch_size=batch_size, device=device)
    if output is not None:
        save_layer_times(times, graph, output)
    print_layer_times(model, shape, graph, times, batch_size, plain_console())
    times_file = "times.json" if output is None else quote(str(output))
    kept = "the same with -o times.json, then " if output is None else ""
    same = typed(context, "input_shape", "batch_size")
    lead_on(f"{kept}hgpart recommend {quote(model)}{same} --devices 2 --times {times_file}")
