"""Where results go: files that are checked before the long work, and standard output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from hgpart.errors import ArgumentError, OutputError
from hgpart.terminal import PlainConsole

if TYPE_CHECKING:
    from hgpart.hypergraph.modelling import Modelling
    from hgpart.layers.channel_graph import ChannelGraph
    from hgpart.report import Report

FEW = 4  # micro-batches, to begin with


def check_outputs(paths: Mapping[str, Path | str | None]) -> None:
    """Refuse what can't be written before the long work, not after it; - is standard output."""
    taken: dict[str, str] = {}
    for option, path in paths.items():
        if path is None or path == "-":
            continue
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise OutputError(f"{option} {path} is a folder: accepted is a file")
        if target.exists() and not target.is_file():
            continue  # a pipe or a device: written to as it is
        if not target.parent.is_dir():
            raise OutputError(f"{option} {path}: there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK):
            raise OutputError(f"{option} {path}: the folder {target.parent} is not writable")
        if str(target) in taken:
            raise ArgumentError(f"{taken[str(target)]} and {option} name one file, {path}")
        taken[str(target)] = option


def show_report(
    report: Report, unit: str, json: str | None, csv: Path | None, then: str = ""
) -> None:
    """Write the files, then print, and at the end the command that leads on."""
    from hgpart.files.writing import replacing
    from hgpart.report import as_csv, as_json, print_report

    if csv is not None:
        with replacing(csv) as file:
            file.write(as_csv(report))
    if tables_wanted(json, as_json(report)):
        print_report(report, plain_console(), unit)
        lead_on(then)


def tables_wanted(json: str | None, figures: str) -> bool:
    """Write figures to the file of --json; where it is -, print them, and want no tables."""
    from hgpart.files.writing import replacing

    if json == "-":
        print(figures, end="")
    elif json is not None:
        with replacing(json) as file:
            file.write(figures)
    return json != "-"


def lead_on(then: str) -> None:
    """Print what to type next."""
    if then:
        plain_console().print(f"Next: {then}", soft_wrap=True)


def of_plan(model: str, plan: Path | str) -> str:
    """Arguments of a command that takes a plan, and its model where nobody else may name it.

    >>> of_plan("vgg16", "my plan.json"), of_plan("net.py:make", "plan.json")
    ("--plan 'my plan.json'", 'net.py:make --plan plan.json')
    """
    from hgpart.zoo import is_user_code

    named = f"{quote(model)} " if is_user_code(model) else ""
    return f"{named}--plan {quote(str(plan))}"


def run_of_plan(model: str, plan: Path | None, graph: ChannelGraph, modelling: Modelling) -> str:
    """Command that runs what was divided; where it was not written, what writes it comes first."""
    if plan is None:
        kept = "the same with -o plan.json, then "
        return f"{kept}hgpart run {of_plan(model, 'plan.json')} --backward"
    divided = in_micro_batches(graph, modelling.slices, modelling.batch_size)
    return f"hgpart run {of_plan(model, plan)} --backward{divided}"


def in_micro_batches(graph: ChannelGraph, slices: int, batch_size: int) -> str:
    """Option of a run in a few micro-batches, a blank first; empty where these would be refused.

    Each slice has to have samples of each, and the model must not mix samples.
    """
    may_be = slices * FEW <= batch_size and not graph.mixing.of_norms("slice")
    return f" --micro-batches {FEW}" if may_be else ""


def plain_console() -> PlainConsole:
    """Standard output, as wide as the terminal, or else COLUMNS, or 80.

    Lines with what is copied, commands and paths, are printed with `soft_wrap`: never broken.
    """
    return PlainConsole(width=get_terminal_size().columns)
