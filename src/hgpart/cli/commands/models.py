"""hgpart models: the list of built-in models."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

import typer

import hgpart
from hgpart.cli.outputs import lead_on, plain_console


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="List these models only. Default: all."),
    ] = None,
) -> None:
    """List the built-in models with their parameters and multiply-accumulates per sample.

    Examples
    --------
    $ hgpart models vgg16 resnet50
    """
    from hgpart.report.models import model_summary, print_models

    chosen = names or hgpart.builtin_models()
    summaries = map(model_summary, chosen)
    # A name may be wrong: that is then all that is said.
    print_models([*summaries] if names else summaries, chosen, plain_console())
    lead_on(f"hgpart partition {quote(chosen[0])} --k 4")
