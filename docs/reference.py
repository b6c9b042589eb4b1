"""docs/reference/*.md -> the pages, with what the code says: a hook of mkdocs, at each build.

Pages have a line `<!-- names -->`, `<!-- commands -->`, ... where these go.
"""

from __future__ import annotations

import importlib
import io
import os
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from hgpart.cli import app, run

os.environ["COLUMNS"] = "100"  # of the commands' help
ROOT = Path(__file__).parent.parent
NAME = re.compile(r"^from \.([\w.]+) import \w+ as (\w+)$", re.MULTILINE)
MODULE = re.compile(r"^from \. import (\w+) as \w+$", re.MULTILINE)
RECORDS = (
    "summary.Summary",
    "layers.channel_graph.Layer",
    "layers.channel_graph.Read",
    "work.layer_times.LayerTimes",
    "work.layer_times.Pass",
    "partition.problem.objectives.Objective",
    "partition.problem.memory.MemoryLimits",
    "partition.problem.memory.part_memory",
    "partition.backends.Backend",
    "plan.PlanFile",
    "run.processes.connection.Connection",
    "recommendation.ranking.Ranked",
)
OUTSIDE = re.compile(r"\[([^]]+)\]\((?!https?:|#)([^)#]*)(#[^)]*)?\)")


def names() -> str:
    """Every public name, by where it is from, for mkdocstrings to describe."""
    stub = (ROOT / "src/hgpart/__init__.pyi").read_text(encoding="utf-8")
    sections: dict[str, list[str]] = {}
    for module, name in NAME.findall(stub):
        sections.setdefault(f"Names of `hgpart`: {module.split('.')[0]}", []).append(name)
    for name in MODULE.findall(stub):
        public = importlib.import_module(f"hgpart.{name}").__all__
        sections[f"`hgpart.{name}`"] = [f"{name}.{each}" for each in public]
    sections["Records that these return or take"] = list(RECORDS)
    return "\n".join(
        f"## {title}\n\n" + "\n".join(f"::: hgpart.{name}\n" for name in listed)
        for title, listed in sections.items()
    )


def commands() -> str:
    """Every command, as its `--help` says it."""
    named = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return "\n\n".join(f"## `hgpart {name}`\n\n```text\n{_help(name)}\n```" for name in named)


def _help(name: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        run([name, "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().split("\n"))


WRITTEN: Mapping[str, Callable[[], str]] = {
    "<!-- names -->": names,
    "<!-- commands -->": commands,
    "<!-- benchmarks -->": (ROOT / "benchmarks/README.md").read_text,
    "<!-- changelog -->": (ROOT / "CHANGELOG.md").read_text,
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put in what is written here; of links to files that are not of the site keep the words."""
    for mark, write in WRITTEN.items():
        if mark in markdown:
            markdown = markdown.replace(mark, write())
    folder = Path(page.file.abs_src_path).parent

    def link(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve() if match[2] else None
        if target == ROOT / "benchmarks/README.md":
            up = "../" * (len(Path(page.file.src_uri).parts) - 1)
            return f"[{match[1]}]({up}benchmarks.md{match[3] or ''})"
        inside = target is None or (ROOT / "docs" in target.parents and target.is_file())
        return match[0] if inside else match[1]

    return OUTSIDE.sub(link, markdown)
