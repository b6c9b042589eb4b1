"""What names and files hold reaches the terminal as text: it ends no line and changes nothing."""

from __future__ import annotations

import io
import sys
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart import terminal
from hgpart.cli.stages import Stages
from hgpart.report.tables import print_table
from hgpart.terminal import PlainConsole, printable, progress_bar, say

NAMES = {
    "line end": ("conv\n1", "conv\\n1"),
    "return": ("a\rb", "a\\rb"),
    "colour": ("\x1b[31mred", "\\x1b[31mred"),
    "8-bit control": ("\x9b31m", "\\x9b31m"),
    "title": ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
    "right to left": ("a\u202eb", "a\\u202eb"),
    "half a character": ("\ud800", "\\ud800"),
    "closing tag": ("[/bold]", "[/bold]"),
    "tag": ("[red]x[/red]", "[red]x[/red]"),
    "link": ("[link=http://x]y", "[link=http://x]y"),
    "emoji": (":smile:", ":smile:"),
    "backslash": ("\\[bold]", "\\[bold]"),
    "letters": ("größe 畳み込み 😀", "größe 畳み込み 😀"),
}
every_name = pytest.mark.parametrize(("name", "shown"), NAMES.values(), ids=NAMES)


@given(st.text())
def test_what_is_printable_is_kept_and_nothing_else(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()


@every_name
@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_and_a_line_show_a_name_as_it_is(name: str, shown: str, terminal: bool) -> None:
    """Rich took "[/bold]" for markup, and raised."""
    text = io.StringIO()
    console = PlainConsole(file=text, width=200, force_terminal=terminal, no_color=True)
    print_table(console, f"Load ({name})", ["layer", name], [(name, "1")])
    console.print(f"{name} on 2 devices", style="bold")
    title, headings, rule, row, line = text.getvalue().replace("\x1b[1m", "").splitlines()
    assert title.removesuffix("\x1b[0m") == f"Load ({shown})"
    assert shown in headings
    assert set(rule) == {"-"}
    assert row.startswith(shown)
    assert line.removesuffix("\x1b[0m") == f"{shown} on 2 devices"


def test_a_sentence_goes_on_below_and_a_command_is_one_line() -> None:
    text = io.StringIO()
    console = PlainConsole(file=text, width=20)
    console.print("A plan of vgg16 in folder/of/plans-of-today/plan.json, new", style="bold")
    console.print("Next: hgpart run --plan plan.json", soft_wrap=True)
    assert text.getvalue().splitlines() == [
        "A plan of vgg16 in",
        "  folder/of/plans-of-today/plan.json,",
        "  new",
        "Next: hgpart run --plan plan.json",
    ]


@every_name
def test_an_error_is_one_line(name: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(f"hgpart: error: found {name}; accepted: others")
    shown = shown.replace("\\n", " ").replace("\\r", " ")
    assert capsys.readouterr().err == f"hgpart: error: found {shown}; accepted: others\n"


class Told(io.StringIO):
    """What is no terminal, and says when it has been told some lines."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self.lines, self.enough = lines, Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") >= self.lines:
            self.enough.set()
        return written


@pytest.mark.parametrize(("total", "shown"), [(1.0, "50%"), (2, "1 of 2")])
def test_a_pipe_is_told_what_is_under_way(
    total: float, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw nothing for minutes."""
    told = Told(lines=2)
    monkeypatch.setattr(sys, "stderr", told)
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.001)
    with progress_bar() as bar:
        task = bar.add_task("profile", total=total)
        bar.update(task, completed=total / 2)
        monkeypatch.setattr(sys, "stderr", io.StringIO())  # as while a model is traced
        assert told.enough.wait(60)
    before = told.getvalue()
    assert {one.rpartition(" (")[0] for one in before.splitlines()} == {f"hgpart: profile: {shown}"}
    assert before == told.getvalue()


def test_a_pipe_is_told_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(lines=1)
    monkeypatch.setattr(sys, "stderr", told)
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.001)
    with Stages() as stage:
        with stage("trace"):
            assert told.enough.wait(60)
        told.lines, told.enough = 10**6, Event()
        with stage("bars of its own", spinner=False):
            assert not told.enough.wait(0.01)
    assert {one.rpartition(" (")[0] for one in told.getvalue().splitlines()} == {"hgpart: trace"}


@pytest.mark.parametrize("shown", [True, False])
def test_one_of_several_processes_is_enough(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(lines=1)
    monkeypatch.setattr(sys, "stderr", told)
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.001)
    monkeypatch.setenv("RANK", "0" if shown else "1")
    with Stages() as stage, stage("place"), progress_bar(shown=shown) as bar:
        bar.add_task("steps", total=3)
        assert told.enough.wait(60 if shown else 0.02) == shown


@every_name
def test_progress_is_of_what_it_is(name: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a layer that is profiled was taken for markup."""
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    monkeypatch.setattr(text, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as bar:
        bar.add_task(f"profile {name}", total=1)
    assert f"profile {shown}" in text.getvalue()
