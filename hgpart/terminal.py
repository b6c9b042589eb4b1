"""Text that others wrote (names, files, models) -> a terminal, which shows it and obeys none of it.

Whatever the commands print passes here: `PlainConsole` prints tables, `progress_bar` shows what is
under way, `say` and `warn` write a line to standard error.
"""

from __future__ import annotations

import sys
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.text import Text


def printable(text: str) -> str:
    r"""Write what would move a cursor, end a line or change a colour as Python's strings do.

    >>> print(printable("conv\n1 \x1b[31mé"))
    conv\n1 \x1b[31mé
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def say(message: str) -> None:
    """Write one line to standard error."""
    print(printable(" ".join(message.split())), file=sys.stderr)


def warn(message: str) -> None:
    """Say what the user should know, though the command goes on."""
    say(f"hgpart: warning: {message}")


class PlainConsole(Console):
    """A console to which [bold], :smile: and control characters are text like any other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print; a sentence that is too wide goes on below, indented, unless it wraps softly."""
        if len(objects) != 1 or not isinstance(objects[0], str) or soft_wrap:
            super().print(*objects, soft_wrap=soft_wrap, **options)
            return
        text = printable(objects[0])
        lines = [text]
        if len(text) > self.width:
            lines = wrap(  # at blanks alone, so that paths and options are whole
                *(text, self.width),
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        for line in lines:
            super().print(line, soft_wrap=True, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a text of a string, be it printed or the cell of a table."""
        return super().render_str(printable(text), **options)


class _Description(ProgressColumn):
    """What a bar is of."""

    def render(self, task: Task) -> Text:
        return Text(printable(task.description))


def progress_bar(*columns: ProgressColumn, shown: bool = True) -> Progress:
    """A description, a bar and columns of figures, if standard error is a terminal."""
    return Progress(
        _Description(),
        BarColumn(),
        *columns,
        console=PlainConsole(stderr=True),
        disable=not (shown and sys.stderr.isatty()),
        transient=True,
    )
