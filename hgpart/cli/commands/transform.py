"""hgpart transform: Model -> the same with cells side by side, in groups or in parts."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from hgpart.cli.options import InputShape, Model, integers
from hgpart.cli.outputs import check_outputs, lead_on, plain_console
from hgpart.cli.stages import Stages, traced_model
from hgpart.errors import ArgumentError

FACTORY = '''"""{name}: {what}; written by hgpart transform."""

import torch

from hgpart import example_inputs, load_model, transform


def model():
    original, _ = load_model({name!r}, seed=torch.initial_seed())
    shape = {shape!r}
    example = example_inputs(original, shape)
    made = transform(
        original, {kind!r}, {parts!r}, example, stages={stages!r}, unequal={unequal!r}, fresh=True
    )
    return made, shape
'''


def transform(
    model: Model,
    kind: Annotated[
        str,
        typer.Option(
            metavar="parallel|grouped|split",
            help="Equal cells side by side; convolutions inside cells in groups; whole stages in "
            "parts along the channels.",
        ),
    ],
    parts: Annotated[int, typer.Option(help="Cells side by side, groups, or parts of a stage.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.py",
            help="Where a factory of the model goes: FILE.py:model is a MODEL of every command.",
        ),
    ] = None,
    stages: Annotated[
        Any,
        typer.Option(parser=integers, metavar="N,N,...", help="Change these stages only, from 1."),
    ] = None,
    unequal: Annotated[
        bool,
        typer.Option(
            "--unequal", help="Groups, or parts, of different sizes where channels don't divide."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")
    ] = False,
    input_shape: InputShape = None,
) -> None:
    """Make a model easier to split, and say what changes, what does not and why.

    MODEL+split:2 names the same wherever a model is named, with all stages and equal parts.
    """
    check_outputs({"--output": output})
    if (output is None) != dry_run:
        raise ArgumentError("accepted is either -o FILE.py, to write a model, or --dry-run")
    if output is not None and output.suffix != ".py":
        raise ArgumentError(f"--output {output}: accepted is a file of Python, as in model.py")
    with Stages() as stage:
        with stage("import"):
            from hgpart.files.writing import replacing
            from hgpart.layers.layering import channel_graph
            from hgpart.report.transformation.printing import print_transformation
            from hgpart.tracing.traced_model import example_inputs, trace
            from hgpart.transformation.transforming import KINDS, check_kind, transformation
        check_kind(kind, parts)
        module, shape, _, before = traced_model(stage, model, input_shape)
        with stage("transform"):
            example = example_inputs(module, shape)
            found = transformation(module, kind, parts, example, stages=stages, unequal=unequal)
        with stage("trace the result"):
            after = channel_graph(trace(found.model, example))
    if output is not None:
        text = FACTORY.format(
            name=model,
            what=f"{KINDS[kind]}, {parts} of them",
            shape=tuple(shape),
            kind=kind,
            parts=parts,
            stages=stages,
            unequal=unequal,
        )
        with replacing(output) as file:
            file.write(text)
    print_transformation(model, found, before, after, plain_console())
    made = f"{output}:model" if output is not None else f"{model}+{kind}:{parts}"
    lead_on(f"hgpart partition {quote(made)} --k {parts}")
