"""hgpart transform: Model -> the same with cells side by side, in groups or in parts."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hgpart.cli.options import InputShape, Model, integers
from hgpart.cli.outputs import check_outputs, lead_on, plain_console, run_of_plan
from hgpart.cli.stages import Stages, traced_model
from hgpart.errors import ArgumentError

if TYPE_CHECKING:
    from hgpart.layers.channel_graph import ChannelGraph
    from hgpart.partition import Partition
    from hgpart.transformation.transforming import Transformation


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
            metavar="FILE.py|FILE.json",
            help="Where a factory of the model goes: FILE.py:model is a MODEL of every command. Or "
            "its plan, with each part on a device.",
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
        given = "neither -o nor --dry-run" if output is None else "both -o and --dry-run"
        raise ArgumentError(f"{given}: accepted is one of -o model.py, -o plan.json, --dry-run")
    if output is not None and output.suffix not in (".py", ".json"):
        raise ArgumentError(f"--output {output}: accepted is a model.py or a plan.json")
    is_plan = output is not None and output.suffix == ".json"
    named = f"{model}+{kind}:{parts}"
    if is_plan and (stages is not None or unequal):
        raise ArgumentError(
            f"--output {output} with {'--unequal' if stages is None else '--stages'}: a plan is of "
            f"{named}, without; accepted is a model.py, which 'hgpart partition' takes"
        )
    with Stages() as stage:
        with stage("import"):
            from hgpart.layers.layering import channel_graph
            from hgpart.report.transformation.printing import print_parts, print_transformation
            from hgpart.tracing.traced_model import example_inputs, trace
            from hgpart.transformation.transforming import check_kind, transformation
            from hgpart.zoo import load_model
        check_kind(kind, parts)
        module, shape, _, before = traced_model(stage, model, input_shape)
        with stage("transform"):
            example = example_inputs(module, shape)
            found = transformation(module, kind, parts, example, stages=stages, unequal=unequal)
        with stage("trace the result"):
            made = load_model(named, device="meta")[0] if is_plan else found.model
            after = channel_graph(trace(made, example))
        partition, then = None, f"hgpart partition {quote(named)} --k {parts}"
        if output is not None and is_plan:
            with stage("plan"):
                partition = _written_plan(output, after, named, parts, shape)
            then = run_of_plan(named, output, after, partition.modelling)
        elif output is not None:
            _write_model(output, model, found, shape, stages, unequal)
            then = f"hgpart partition {quote(f'{output}:model')} --k {parts}"
    print_transformation(model, found, before, after, plain_console())
    if partition is not None:
        print_parts(partition, plain_console())
    lead_on(then)


def _write_model(
    output: Path,
    model: str,
    found: Transformation,
    shape: tuple[int, ...],
    stages: Any,
    unequal: bool,
) -> None:
    """Code that makes the model anew, with weights of any seed."""
    from hgpart.files.writing import replacing
    from hgpart.transformation.transforming import KINDS

    text = FACTORY.format(
        name=model,
        what=f"{KINDS[found.kind]}, {found.parts} of them",
        shape=tuple(shape),
        kind=found.kind,
        parts=found.parts,
        stages=stages,
        unequal=unequal,
    )
    with replacing(output) as file:
        file.write(text)


def _written_plan(
    output: Path, graph: ChannelGraph, model: str, k: int, shape: tuple[int, ...]
) -> Partition:
    """What `hgpart partition MODEL --strategy transformed-parts -o` writes of it."""
    from hgpart.compare.comparison import DEFAULT_EPS
    from hgpart.partition.ways import partition_by
    from hgpart.plan import Plan, save_plan
    from hgpart.work.figures import flops

    work = flops(graph)
    divided = partition_by("transformed-parts", graph, work, k, DEFAULT_EPS)
    save_plan(Plan(divided, model, shape), output)
    return divided
