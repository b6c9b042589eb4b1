"""hgpart export-part: a plan, one of its parts -> files that a program without hgpart runs."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

import hgpart
from hgpart.cli.outputs import check_outputs, lead_on, plain_console, unit_of
from hgpart.cli.placing import Placing
from hgpart.cli.stages import Stages, trusted_model
from hgpart.errors import ArgumentError, check_whole
from hgpart.terminal import progress_bar


def export_part(
    context: typer.Context,
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="Plan file, written by 'hgpart partition -o'.")
    ],
    part: int,
    output: Path,
    model: str | None = None,
    weights: Path | None = None,
) -> None:
    """Write one part of a model, for inference by a program without hgpart.

    A JSON beside the file says what the part receives, computes and sends, in order.

    Parameters
    ----------
    part : N
        The part, counted from 0.
    output : FILE
        Write the part: FILE.pt2 for torch.export, or FILE.onnx, one file for each stage.
    model : MODEL
        The plan's model. Default: the one that the plan names; required if that is your own code.
    weights : FILE
        Weights, a state_dict saved by torch or safetensors. Default: those that the model is built
        with, random in built-in models.

    Examples
    --------
    $ hgpart export-part plan.json --part 2 -o part2.pt2
    """
    with Stages() as stage, stage("import"):
        from hgpart.placement.exporting.part_files import check_format, json_beside
        from hgpart.report.tables import in_unit
    check_format(output)
    beside = json_beside(output)
    check_outputs({"--output": output, f"the JSON of --output {output}:": beside})
    if beside.resolve() == plan.resolve():
        raise ArgumentError(f"--output {output}: its JSON would replace the plan {plan}")
    loaded = hgpart.files.load_plan(plan)
    check_whole("--part", part, 0, loaded.k - 1)
    named = model or trusted_model(loaded, plan, "--model MODEL, which names the code to call")
    placing = Placing(named, loaded, ("cpu",) * loaded.k, weights, seed=0)
    placing.check_weights()
    placement = placing.placed().eval()
    with progress_bar(MofNCompleteColumn(), shown=True) as bar:
        task = bar.add_task("stages", total=None)
        stages = hgpart.export_part(
            placement,
            part,
            output,
            model=named,
            on_stage=lambda done, total: bar.update(task, completed=done, total=total),
        )
    unit = unit_of(context)
    received, sent = in_unit([stages.received_bytes, stages.sent_bytes], unit)
    plain_console().print(
        f"{output}: part {part} of {loaded.k}, {len(stages.stages)} stages; a pass with "
        f"batch size {stages.batch_size} receives {received} {unit} and sends {sent} {unit}, as "
        f"{beside} says in order",
        soft_wrap=True,
    )
    others = [str(other) for other in range(loaded.k) if other != part]
    of_plan = f"hgpart export-part {quote(str(plan))} --part"
    lead_on(f"{of_plan} {others[0]} -o part{others[0]}{output.suffix}" if others else "")
