"""Options that several groups and commands have, and how their texts are read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import hgpart
from hgpart.cli.forms import input_text, integers, names, numbers, whole, whole_or_auto
from hgpart.files.columns import UNITS

Integers = Annotated[Any, typer.Option(parser=integers)]
Numbers = Annotated[Any, typer.Option(parser=numbers)]
Names = Annotated[Any, typer.Option(parser=names)]
Texts = Annotated[list[str] | None, typer.Option()]
Whole = Annotated[Any, typer.Option(parser=whole)]
Positive = Annotated[int, typer.Option(min=1)]
PositiveOrNone = Annotated[int | None, typer.Option(min=1)]
NotNegative = Annotated[float, typer.Option(min=0)]
WholeOrAuto = Annotated[Any, typer.Option(parser=whole_or_auto)]


def _models(incomplete: str) -> list[str]:
    """Built-in models for the shell; it imports torch, which only a shell that asks waits for."""
    return [name for name in hgpart.builtin_models() if name.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=_models,
        help="A built-in model (listed by 'hgpart models'), timm:NAME, torchvision:NAME, "
        "pytorchcv:NAME, hf:CONFIG, path/file.pt2, path/file.py:factory or package.module:factory. "
        "Append +parallel:P, +grouped:P or +split:P to change it as 'hgpart transform' does.",
    ),
]
PlannedModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        autocompletion=_models,
        help="The model. Default: the one that the plan names; required if that is your own code.",
        show_default=False,
    ),
]
InputTexts = Annotated[
    list[Any] | None,
    typer.Option(
        parser=input_text,
        metavar="[NAME=]SIZES[:TYPE[:N]]",
        help="An input of the model, for one sample: its sizes, as in 3,224,224. Once for each "
        "input, in the order of forward's parameters or by their names: pixel_values=3,224,224. "
        "TYPE: float (the default, the type of the weights), int64, int32, uint8 or bool; random "
        "inputs are of N values from 0, so that labels=:int64:1000 is a label of 0 to 999 a "
        "sample. Default: the model's own, if they are known.",
    ),
]
Eps = Annotated[
    float,
    typer.Option(
        metavar="E", help="Allowed imbalance: a device's work is at most (1 + eps) times its share."
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Seed of the search; equal seeds, equal results.")
]
Timeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="Time to wait for a process that is alive but does not answer."
    ),
]
Unit = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(UNITS),
        help="Unit of printed bytes, an option of every command. Default: MB; compare takes GB "
        "where there are many.",
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Trace the model anew, an option of every command. By default the trace of a model of "
        "hgpart or of an installed package that has not changed is read from ~/.cache/hgpart.",
    ),
]
