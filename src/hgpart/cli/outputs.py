"""Where results go: files that are checked before the long work, and standard output."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from hgpart.cli.grouping import Options
from hgpart.cli.processes import on_several_machines
from hgpart.errors import ArgumentError, OutputError
from hgpart.files.writing import write_text
from hgpart.specs.models import is_user_code
from hgpart.terminal import PlainConsole

if TYPE_CHECKING:
    from hgpart.report.partition.record import Report

GRAPHS = (".dot", ".graphml")


@dataclass(frozen=True, kw_only=True)
class Figures(Options):
    """Where the figures go.

    Attributes
    ----------
    json : FILE
        Write all figures; - prints them instead of tables.
    """

    panel: ClassVar[str] = "Results"
    not_written: ClassVar[tuple[str, ...]] = ()  # options that name no file to write
    json: str | None = None

    def check(self, **files: Path | None) -> None:
        """Refuse files that can't be written, these and those of other options."""
        own = {name: value for name, value in vars(self).items() if name not in self.not_written}
        check_outputs(
            {
                f"--{name.replace('_', '-')}": path
                for name, path in {**own, **files}.items()
                if not isinstance(path, bool)
            }
        )

    def want_tables(self, figures: str) -> bool:
        """Write the figures to the file of --json, or print them instead of tables if it is -."""
        if self.json == "-":
            print(figures, end="")
        elif self.json is not None:
            write_text(self.json, figures)
        return self.json != "-"


@dataclass(frozen=True, kw_only=True)
class Page(Figures):
    """The same, and a page.

    Attributes
    ----------
    html : FILE
        Write a page to look at: one file, no network.
    """

    html: Path | None = None

    def draw(self, page: Callable[..., str], *of: Any) -> None:
        """Write a page, if one is wanted."""
        if self.html is not None:
            write_text(self.html, page(*of))


@dataclass(frozen=True, kw_only=True)
class Table(Page):
    """The same, and a table.

    Attributes
    ----------
    csv : FILE
        Write the figures, one line per row.
    """

    csv: Path | None = None

    def write_csv(self, figures: Callable[[], str]) -> None:
        """Write the table, if one is wanted."""
        if self.csv is not None:
            write_text(self.csv, figures())


@dataclass(frozen=True, kw_only=True)
class GrowingTable(Table):
    """The same of rows that take long: a later call goes on from those that are there.

    Attributes
    ----------
    resume
        Keep the rows that the file of --json has, and compute the missing ones.
    wide
        Print all columns, however wide the table gets. Default: those that fit.
    """

    resume: bool = False
    wide: bool = False

    def check(self, **files: Path | None) -> None:
        """Refuse files that can't be written, and --resume without a file to go on from."""
        super().check(**files)
        if self.resume and self.json in (None, "-"):
            raise ArgumentError("--resume needs --json FILE, the file to go on from")

    @property
    def resumed(self) -> str | None:
        """The file to go on from."""
        return self.json if self.resume else None


@dataclass(frozen=True, kw_only=True)
class Timeline(Page):
    """The same, and when each part does what.

    Attributes
    ----------
    timeline : FILE
        Write when each part does what, for Perfetto and chrome://tracing.
    """

    timeline: Path | None = None

    @property
    def draws_timeline(self) -> bool:
        """Whether times are wanted; a page has them of one machine alone, which has one clock."""
        return self.timeline is not None or (self.html is not None and not on_several_machines())


@dataclass(frozen=True, kw_only=True)
class GraphFile(Options):
    """Where a graph goes.

    Attributes
    ----------
    graph : FILE
        Write the layers, or the parts' shares of them, as a graph: FILE.dot for Graphviz,
        FILE.graphml for other programs.
    """

    panel: ClassVar[str] = "Results"
    graph: Path | None = None


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
        if option == "--graph" and target.suffix not in GRAPHS:
            raise ArgumentError(f"--graph {path}: accepted are FILE{' and FILE'.join(GRAPHS)}")
        if str(target) in taken:
            raise ArgumentError(f"{taken[str(target)]} and {option} name one file, {path}")
        taken[str(target)] = option


def unit_of(context: typer.Context) -> str:
    """The unit of printed bytes."""
    return context.obj or "MB"


def show_report(report: Report, unit: str, results: Table, then: str = "") -> None:
    """Write the files, then print, and at the end the command that leads on."""
    from hgpart.report.partition.columns import as_csv, as_json
    from hgpart.report.partition.printing import print_report

    results.write_csv(lambda: as_csv(report))
    if results.want_tables(as_json(report)):
        print_report(report, plain_console(), unit)
        lead_on(then)


def lead_on(then: str) -> None:
    """Print what to type next."""
    if then:
        plain_console().print(f"Next: {then}", soft_wrap=True)


def kept(path: Path | None, name: str) -> tuple[str, str]:
    """A file that the next command reads, and what to type before it where it was not written."""
    return ("", quote(str(path))) if path is not None else (f"the same with -o {name}, then ", name)


def of_plan(model: str, plan: Path | str) -> str:
    """Arguments of a command that takes a plan, and its model where nobody else may name it.

    >>> of_plan("vgg16", "my plan.json"), of_plan("net.py:make", "plan.json")
    ("--plan 'my plan.json'", 'net.py:make --plan plan.json')
    """
    named = f"{quote(model)} " if is_user_code(model) else ""
    return f"{named}--plan {quote(str(plan))}"


def run_of_plan(model: str, plan: Path | None) -> str:
    """Command that runs what was divided; where it was not written, what writes it comes first."""
    first, file = kept(plan, "plan.json")
    return f"{first}hgpart run {of_plan(model, plan or file)} --backward"


def plain_console() -> PlainConsole:
    """Standard output, as wide as the terminal, or else COLUMNS, or 80.

    Lines with what is copied, commands and paths, are printed with `soft_wrap`: never broken.
    """
    return PlainConsole(width=get_terminal_size().columns)
