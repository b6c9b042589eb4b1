"""docs/, benchmarks/*.md, CHANGELOG.md -> the site: a hook of mkdocs, at each build.

In docs/reference a line `<!-- names -->` or `<!-- commands -->` is replaced by what the code says.
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
OUTSIDE_DOCS = (ROOT / "CHANGELOG.md", *sorted((ROOT / "benchmarks").glob("*.md")))
LINK = re.compile(r"\[([^]]+)\]\((?!https?:|#)([^)#]*)(#[^)]*)?\)")
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
    "placement.exporting.part_stages.PartStages",
    "placement.exporting.part_stages.InferenceStage",
    "placement.exporting.part_stages.StageMessage",
    "placement.exporting.part_stages.ModelPiece",
    "recommendation.ranking.Ranked",
    "explanation.explaining.Explanation",
    "explanation.explaining.LayerExplanation",
    "explanation.explaining.HeldShare",
    "explanation.explaining.Hold",
    "explanation.explaining.Bottleneck",
    "explanation.moves.Move",
    "explanation.share_nets.Paid",
    "explanation.share_nets.Grown",
    "explanation.steps.SimulatedStep",
    "explanation.differing.PlanDifference",
    "explanation.differing.LayerDifference",
)


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
}


def site_uri(path: Path) -> str | None:
    """The address of a Markdown file on the site, None if it is not there.

    Files outside docs/ lie on the site where they lie in the repository.
    """
    if ROOT / "docs" in path.parents:
        return str(path.relative_to(ROOT / "docs"))
    if path == ROOT / "CHANGELOG.md" or (
        path.parent == ROOT / "benchmarks" and path.suffix == ".md"
    ):
        return str(path.relative_to(ROOT))
    return None


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/."""
    from mkdocs.structure.files import File  # a test reads this file where there is no mkdocs

    for path in OUTSIDE_DOCS:
        files.append(File.generated(config, str(site_uri(path)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what the code says; a link to a file that is not on the site becomes its words."""
    for mark, write in WRITTEN.items():
        if mark in markdown:
            markdown = markdown.replace(mark, write())
    source = Path(page.file.abs_src_path)
    folder = Path(page.file.src_uri).parent

    def link(match: re.Match[str]) -> str:
        target = (source.parent / match[2]).resolve() if match[2] else source
        uri = site_uri(target) if target.is_file() else None
        if uri is None:
            return match[1]
        return f"[{match[1]}]({os.path.relpath(uri, folder)}{match[3] or ''})"

    return LINK.sub(link, markdown)
