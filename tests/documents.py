"""A page of Markdown -> its blocks of code, run: what they print is what the page shows.

Blocks of a page are one session, in a folder of its own. A `python` block with prompts is a
doctest; one with `title="FILE"` is written to that file; any other runs as it stands. A line of a
`console` block that begins with `$` is a command, and what follows is its output, where `...`
stands for anything; without output it only has to succeed. Comments in front of a block say more::

    <!-- full -->      it takes long: with `pytest -m full` alone
    <!-- measured -->  its figures are of one run: the words are compared, figures are not
"""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hgpart.cli import run

BLOCK = re.compile(
    r"(?P<comments>(?:^<!-- [\w ]+ -->\n)*)^```(?P<language>\w+)(?P<info>[^\n]*)\n"
    r"(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)
FIGURE = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A block of code of a page, and the line of the page that it begins in."""

    language: str
    title: str | None
    text: str
    line: int
    is_full: bool
    is_measured: bool


def blocks(page: str) -> list[Block]:
    """Those of the text of a page."""
    found = []
    for match in BLOCK.finditer(page):
        title = re.search(r'title="([^"]+)"', match["info"])
        line = page.count("\n", 0, match.start("text")) + 1
        said = re.findall(r"<!-- ([\w ]+) -->", match["comments"])
        found.append(
            Block(
                match["language"],
                title and title[1],
                match["text"],
                line,
                "full" in said,
                "measured" in said,
            )
        )
    return found


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Of a `console` block: what is typed, and the output shown."""
    for match in COMMAND.finditer(block.text):
        yield match["command"].replace("\\\n", " "), match["shown"]


def program(page: str) -> str:
    """All that is Python and no file of its own, without its output, each line where it stands."""
    lines = [""] * (page.count("\n") + 1)
    for block in blocks(page):
        if block.language == "python" and not block.title:
            examples = doctest.DocTestParser().get_examples(block.text)
            found = [(one.lineno, one.source) for one in examples] or [(0, block.text)]
            for first, source in found:
                for at, line in enumerate(source.splitlines(), block.line - 1 + first):
                    lines[at] = line
    return "\n".join(lines)


class Session:
    """Runs the blocks of a page, in the current folder."""

    def __init__(self, name: str, capture: pytest.CaptureFixture[str]) -> None:
        self.name = name
        self.capture = capture
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, block: Block) -> None:
        """Run a block, and fail where it does something else than the page shows."""
        if block.language == "console":
            for command, shown in commands(block):
                self._command(command, shown, block)
        elif block.language == "python" and block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and ">>> " in block.text:
            self._examples(block)
        elif block.language == "python":
            source = "\n" * (block.line - 1) + block.text  # so that errors name the page's lines
            exec(compile(source, self.name, "exec"), self.names)

    def _examples(self, block: Block) -> None:
        name = f"{self.name}:{block.line}"
        parsed = doctest.DocTestParser().get_doctest(
            block.text, self.names, name, self.name, block.line - 1
        )
        report: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(parsed, out=report.append, clear_globs=False)
        self.names = parsed.globs
        assert not runner.failures, "".join(report)

    def _command(self, command: str, shown: str, block: Block) -> None:
        self.capture.readouterr()
        if command.startswith("hgpart ") and not re.search(r"[|&;><]", command):
            status = run(shlex.split(command)[1:])
            printed, errors = self.capture.readouterr()
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command], capture_output=True, text=True
            )
            status, printed, errors = done.returncode, done.stdout, done.stderr
        assert status == 0, f"{self.name}:{block.line}: $ {command}\n{printed}{errors}"
        if shown.strip():
            wanted, found = (_lines(text, block) for text in (shown, printed))
            same = doctest.OutputChecker().check_output(wanted, found, doctest.ELLIPSIS)
            assert same, (
                f"{self.name}:{block.line}: $ {command}\nshown:\n{wanted}\nprinted:\n{found}"
            )


def _lines(text: str, block: Block) -> str:
    """Without blank lines and spaces at the ends of lines; a line `...` is any lines, or none."""
    if block.is_measured:
        text = re.sub("#{2,}", "#", FIGURE.sub("#", text))  # bars are figures, too
        text = re.sub("-{3,}", "---", re.sub(" +", " ", text))
    text = "".join(f"{line.rstrip()}\n" for line in text.split("\n") if line.strip())
    return re.sub(r"^\.\.\.\n", "...", text, flags=re.MULTILINE)
