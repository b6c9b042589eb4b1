"""hgpart profile: Model, batch size -> seconds of each pass of shares of its layers."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import typer

import hgpart
from hgpart.cli.command_lines import typed
from hgpart.cli.options import InputTexts, Model, Whole
from hgpart.cli.outputs import check_outputs, kept, lead_on, plain_console
from hgpart.cli.stages import Stages


def profile(
    context: typer.Context,
    model: Model,
    batch_size: int = 32,
    device: str = "cpu",
    threads: Whole = None,
    input_shape: InputTexts = None,
    output: Path | None = None,
) -> None:
    """Measure seconds of each layer, whole and in parts: forward, backward and update.

    Parameters
    ----------
    batch_size : N
        Largest batch to measure; smaller ones, down to 1, are measured, too.
    device : DEVICE
        Device to measure on: cpu, cuda, cuda:1.
    threads : N
        Threads on the CPU, as many as a process of the training will have. Default:
        OMP_NUM_THREADS, or else all cores.
    output : FILE
        Write the times, for --work FILE and --times FILE of other commands.

    Examples
    --------
    $ hgpart profile vgg16 --batch-size 16 --threads 1 -o times.json
    """
    from hgpart.cli.named_model import NamedModel

    check_outputs({"--output": output})
    with Stages() as stage:
        named = NamedModel(stage, model, input_shape)
        shape, graph, module, traced = named.shape, named.graph, named.module, named.traced
        with stage("profile", spinner=False):  # it shows its own progress
            import torch

            from hgpart.report.layers import print_layer_times

            if threads is not None:
                torch.set_num_threads(threads)
            times = hgpart.time_layers(module, traced, graph, batch_size=batch_size, device=device)
    if output is not None:
        hgpart.files.save_layer_times(times, graph, output)
    print_layer_times(model, shape, graph, times, batch_size, plain_console())
    first, file = kept(output, "times.json")
    same = typed(context, "input_shape", "batch_size")
    lead_on(f"{first}hgpart recommend {quote(model)}{same} --devices 2 --times {file}")
