"""docs/reference/*.md -> the pages, with what the code says: a hook of mkdocs, at each build.

Pages have a line `<!-- names -->`, `<!-- commands -->`, ... where these go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from hgpart.cli import app

ROOT = Path(__file__).parent.parent
NAME = re.compile(r"^from \.([\w.]+) import \w+ as (\w+)$", re.MULTILINE)
OUTSIDE = re.compile(r"\[([^]]+)\]\((?!https?:|#)([^)#]*)(#[^)]*)?\)")


def names() -> str:
    """Every public name, by the folder that it is from, for mkdocstrings to describe."""
    stages: dict[str, list[str]] = {}
    for module, name in NAME.findall((ROOT / "hgpart/__init__.pyi").read_text(encoding="utf-8")):
        stages.setdefault(module.split(".")[0], []).append(name)
    return "\n".join(
        f"## `hgpart.{stage}`\n\n" + "\n".join(f"::: hgpart.{name}\n" for name in listed)
        for stage, listed in stages.items()
    )


def commands() -> str:
    """Every command as its `--help` says it."""
    group: Any = typer.main.get_command(app)
    return "\n\n".join(_described(name, one) for name, one in sorted(group.commands.items()))


def _described(name: str, command: Any) -> str:
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    context = command.make_context(name, [], info_name=name, resilient_parsing=True)
    said = [command.help or "", command.epilog or ""]
    typed = " ".join(["hgpart", name, "[OPTIONS]", *(_shown(one, context) for one in arguments)])
    lines = [f"## `hgpart {name}`", *said[:1], f"```text\n{typed}\n```"]
    if any(one.help for one in arguments):
        lines.append("\n".join(f"- `{_shown(one, context)}`: {one.help}" for one in arguments))
    table = [_row(one, context) for one in options]
    lines.append("\n".join(["| option | |", "|---|---|", *table]))
    return "\n\n".join(one for one in [*lines, *said[1:]] if one)


def _shown(argument: Any, context: Any) -> str:
    return str(argument.make_metavar(context))


def _row(option: Any, context: Any) -> str:
    value = "" if option.is_flag else f" {option.make_metavar(context)}"
    spelled = ", ".join(f"`{one}`" for one in [*option.opts, *option.secondary_opts])
    notes = ["required"] if option.required else []
    if not option.is_flag and option.default not in (None, ""):
        notes.append(f"default: `{option.default}`")
    text = " ".join(filter(None, [option.help, f"({'; '.join(notes)})" if notes else ""]))
    cells = [f"{spelled}{f' `{value.strip()}`' if value else ''}", text]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


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
        inside = target is None or (ROOT / "docs" in target.parents and target.exists())
        return match[0] if inside else match[1]

    return OUTSIDE.sub(link, markdown)
