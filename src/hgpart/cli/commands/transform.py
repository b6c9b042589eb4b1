"""hgpart transform: Model -> the same with cells side by side, in groups or in parts."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

import hgpart
from hgpart.cli.options import InputTexts, Integers
from hgpart.cli.outputs import check_outputs, lead_on, plain_console, run_of_plan
from hgpart.cli.stages import Stages
from hgpart.errors import ArgumentError
from hgpart.files.writing import write_text


def transform(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL+KIND:PARTS",
            help="The model and its change: +parallel:P (P equal cells side by side), +grouped:P "
            "(convolutions inside cells in P groups) or +split:P (whole stages in P parts along "
            "the channels), as in resnet50+split:2.",
        ),
    ],
    output: Path | None = None,
    stages: Integers = None,
    unequal: bool = False,
    input_shape: InputTexts = None,
) -> None:
    """Make a model easier to divide, and say what changes, what does not and why.

    Every command accepts MODEL+KIND:PARTS as a MODEL, changed in all stages and equal parts.

    Parameters
    ----------
    output : FILE.py|FILE.json
        Write a factory of the model (FILE.py:model is a MODEL of every command), or its plan with
        each part on a device (FILE.json). Default: only show what would change.
    stages : N,N,...
        Change these stages only, counted from 1. Default: all.
    unequal
        Allow groups, or parts, of different sizes where channels don't divide evenly.

    Examples
    --------
    $ hgpart transform resnet50+split:2 -o model.py
    """
    check_outputs({"--output": output})
    if output is not None and output.suffix not in (".py", ".json"):
        raise ArgumentError(f"--output {output}: accepted is a model.py or a plan.json")
    is_plan = output is not None and output.suffix == ".json"
    if is_plan and (stages is not None or unequal):
        raise ArgumentError(
            f"--output {output} with {'--unequal' if stages is None else '--stages'}: a plan is of "
            f"{model}, without; accepted is a model.py, which 'hgpart partition' takes"
        )
    with Stages() as stage:
        with stage("import"):
            from hgpart.cli.named_model import NamedModel
            from hgpart.report.transformation import print_parts, print_transformation
            from hgpart.transformation.factories import factory_of
            from hgpart.transformation.transforming import check_kind, transformation
            from hgpart.zoo import last_change
        original, kind, parts = last_change(model)
        check_kind(kind, parts)
        named = NamedModel(stage, original, input_shape)
        shape, before, module = named.shape, named.graph, named.module
        with stage("transform"):
            example = hgpart.example_inputs(module, shape)
            change = transformation(module, kind, parts, example, stages=stages, unequal=unequal)
        with stage("trace the result"):
            made = hgpart.load_model(model, device="meta")[0] if is_plan else change.model
            after = hgpart.channel_graph(hgpart.trace(made, example))
        partition, then = None, f"hgpart partition {quote(model)} --k {parts}"
        if output is not None and is_plan:
            with stage("plan"):
                work = hgpart.flops(after)
                partition = hgpart.partition_by("transformed-parts", after, work, parts)
                hgpart.files.save_plan(hgpart.Plan(partition, model, shape), output)
            then = run_of_plan(model, output)
        elif output is not None:
            write_text(output, factory_of(original, change, shape, stages, unequal))
            then = f"hgpart partition {quote(f'{output}:model')} --k {parts}"
    print_transformation(original, change, before, after, plain_console())
    if partition is not None:
        print_parts(partition, plain_console())
    lead_on(then)
