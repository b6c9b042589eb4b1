"""A page of Markdown -> its blocks of code, run: what they print is what the page shows.

Blocks of a page are one session, in a folder of its own. A block with `title="FILE"` is written to
that file. A `python` block with prompts is a doctest; any other runs as it stands. A line of a
`console` block that begins with `$` is a command, and what follows is its output, where `...`
stands for anything; without output it only has to succeed. All lines of a `sh` block are commands,
and a `text` block straight behind it is what the last of them prints; they take long, so that they
run with `pytest -m full` alone. Comments in front of a block say more::

    <!-- full -->           it takes long, too
    <!-- measured -->       its figures are of one run: the words are compared, figures are not
    <!-- ranked -->         measured, and the rows of its tables are not compared either
    <!-- vgg16 as lenet5 --> these words of commands and output are replaced (`...` are any): what
                            is typed is run, but on something smaller

What is typed on several hosts (`torchrun --nnodes 2`) is run as many times at once, with a port of
this one as `HOST:29400`. `NOT_EXECUTED` are the commands that are left.
"""

from __future__ import annotations

import doctest
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hgpart.cli import run

NOT_EXECUTED = {
    "git clone": "where from is the reader's to know; tests run in what was cloned",
    "python3 -m venv": ".ci/run makes its environments so, and tests run in one",
    "hgpart calibrate": "it takes both cores for half a minute; a page starts it by torchrun",
    "pip install": "it takes the network and a minute; .ci/run installs so, extras and all",
}
TIMEOUT = 600  # seconds of a line that is typed
BLOCK = re.compile(
    r"(?P<comments>(?:^<!-- [^\n]+ -->\n)*)^```(?P<language>\w+)(?P<info>[^\n]*)\n"
    r"(?P<text>.*?)^```$(?:\n+^```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"^<!-- (.+) -->$", re.MULTILINE)
COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)
TYPED = re.compile(r"^(?!#)(?:.*\\\n)*.+$", re.MULTILINE)
FIGURE = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?")
CAUTION = re.compile(r"^.*can't be trusted: .*\n(?:  .*\n)*", re.MULTILINE)
ROWS = re.compile(r"^(---[- ]*\n)(?:.*\S {2,}\S.*\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code of a page, the line of the page that it begins in, and its comments.

    `printed` is the `text` block behind it; `stand_ins` are pairs of words, old and new.
    """

    language: str
    title: str | None
    text: str
    printed: str
    line: int
    is_full: bool
    is_measured: bool
    is_ranked: bool
    stand_ins: tuple[tuple[str, str], ...]


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in their order."""
    listed = []
    for match in BLOCK.finditer(page):
        title = re.search(r'title="([^"]+)"', match["info"])
        said = COMMENT.findall(match["comments"])
        replaced = [tuple(comment.split(" as ")) for comment in said if " as " in comment]
        marks = {comment for comment in said if " as " not in comment}
        assert marks <= {"full", "measured", "ranked"}, marks
        assert match["printed"] is None or match["language"] == "sh", match["text"]
        listed.append(
            Block(
                match["language"],
                title and title[1],
                match["text"],
                match["printed"] or "",
                page.count("\n", 0, match.start("text")) + 1,
                "full" in marks or match["language"] == "sh",
                bool({"measured", "ranked"} & marks),
                "ranked" in marks,
                tuple((old, new) for old, new in replaced),
            )
        )
    return listed


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a `console` or `sh` block, each with the output that it shows."""
    if block.language == "console":
        for match in COMMAND.finditer(block.text):
            yield match["command"].replace("\\\n", " "), match["shown"]
    elif block.language == "sh":
        *others, last = (line.replace("\\\n", " ") for line in TYPED.findall(block.text))
        yield from ((command, "") for command in others)
        yield last, block.printed


def program(page: str) -> str:
    """The Python of a page, but for files of its own and outputs; each line where it stands."""
    lines = [""] * (page.count("\n") + 1)
    for block in blocks(page):
        if block.language == "python" and not block.title:
            examples = doctest.DocTestParser().get_examples(block.text)
            sources = [(example.lineno, example.source) for example in examples]
            for first, source in sources or [(0, block.text)]:
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
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language in ("console", "sh"):
            for command, shown in commands(block):
                if not command.startswith(tuple(NOT_EXECUTED)):
                    self._command(_replaced(command, block), _replaced(shown, block), block)
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
            status = run(shlex.split(command, comments=True)[1:])
            printed, errors = self.capture.readouterr()
        else:
            status, printed, errors = _typed(command)
        assert status == 0, f"{self.name}:{block.line}: $ {command}\n{printed}{errors}"
        if shown.strip():
            wanted, received = (_lines(text, block) for text in (shown, printed))
            flags = doctest.ELLIPSIS | (doctest.NORMALIZE_WHITESPACE if block.is_measured else 0)
            same = doctest.OutputChecker().check_output(wanted, received, flags)
            assert same, (
                f"{self.name}:{block.line}: $ {command}\nshown:\n{wanted}\nprinted:\n{received}"
            )


def _typed(command: str) -> tuple[int, str, str]:
    """Run a line in a shell, once for each host that it is for; return its status and output."""
    nodes = re.search(r"--nnodes (\d+)", command)
    if nodes:
        with socket.create_server(("localhost", 0)) as free:
            command = command.replace("HOST:29400", f"localhost:{free.getsockname()[1]}")
    shell = partial(subprocess.run, capture_output=True, text=True, timeout=TIMEOUT)
    line = ["bash", "-euo", "pipefail", "-c", command]
    with ThreadPoolExecutor() as hosts:  # each waits for the others
        done = [*hosts.map(shell, [line] * (int(nodes[1]) if nodes else 1))]
    printed = "".join(host.stdout for host in done)
    errors = "".join(host.stderr for host in done)
    return max(abs(host.returncode) for host in done), printed, errors


def _replaced(text: str, block: Block) -> str:
    for old, new in block.stand_ins:
        pattern = re.escape(old).replace(re.escape("..."), ".*?")
        text = re.sub(pattern, lambda _, new=new: new, text, flags=re.DOTALL)
    return text


def _lines(text: str, block: Block) -> str:
    """Drop blank lines and spaces at the ends of lines; let a line `...` stand for any lines.

    Lines that say what disturbed a measurement are dropped, too: tests run beside each other.
    """
    text = CAUTION.sub("", text)
    if block.is_ranked:
        text = ROWS.sub(r"\1...\n", text)
    if block.is_measured:
        text = re.sub("#{2,}", "#", FIGURE.sub("#", text))  # bars are figures, too
        text = re.sub("-{3,}", "---", re.sub(" +", " ", text))
    text = "".join(f"{line.rstrip()}\n" for line in text.split("\n") if line.strip())
    return re.sub(r"^\.\.\.\n", "...", text, flags=re.MULTILINE)
