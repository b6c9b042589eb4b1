"""What names and files hold reaches the terminal as text: it ends no line and changes nothing."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart.report.tables import print_table, ruled_table
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
    table = ruled_table(["layer", name])
    table.add_row(name, "1")
    print_table(console, f"Load ({name})", table)
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
