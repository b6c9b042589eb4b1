"""Text that others wrote (names, files, models) -> a terminal, which shows it and obeys none of it.

Whatever the commands print passes here: `PlainConsole` prints tables, `progress_bar` shows what is
under way, and `Lines` says it where no bar can be shown, `say` and `warn` write a line to standard
error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from textwrap import wrap
from threading import Event, Thread
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TimeElapsedColumn,
)
from rich.text import Text

FIRST_LINE, LONGEST_PAUSE = 5.0, 60.0  # seconds until progress is said, and between two lines


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


def say(message: str, file: TextIO | None = None) -> None:
    """Write one line to standard error, or to another file."""
    print(printable(" ".join(message.split())), file=file or sys.stderr, flush=True)


def warn(message: str) -> None:
    """Write a warning to standard error; the command goes on."""
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
                text,
                self.width,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        for line in lines:
            super().print(line, soft_wrap=True, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a text of a string that is printed, or of a cell of a table."""
        return super().render_str(printable(text), **options)


class Lines:
    """Lines on standard error, now and then, that say what is under way: in a pipe, in a log.

    Parameters
    ----------
    under_way : callable
        Returns the text of the next line; an empty one is not written.
    """

    def __init__(self, under_way: Callable[[], str]) -> None:
        self.under_way = under_way
        self._ended = Event()
        # Standard error as it is now: while a model is traced, it is another.
        self._thread = Thread(target=self._tell, args=(sys.stderr,), daemon=True)

    def start(self) -> None:
        """Begin; the first line comes after some seconds."""
        self._thread.start()

    def stop(self) -> None:
        """Stop writing."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _tell(self, file: TextIO) -> None:
        start, pause = time.monotonic(), FIRST_LINE
        while not self._ended.wait(pause):
            if what := self.under_way():
                with suppress(OSError, ValueError):  # nobody reads it, or it is closed
                    say(f"hgpart: {what} ({time.monotonic() - start:.0f} s)", file)
            pause = min(2 * pause, LONGEST_PAUSE)


class _ProgressInLines(Progress):
    """Progress of one task, where no bar can be shown."""

    def __init__(self) -> None:
        super().__init__(disable=True)
        self._lines = Lines(self._under_way)

    def start(self) -> None:
        self._lines.start()

    def stop(self) -> None:
        self._lines.stop()

    def _under_way(self) -> str:
        if not self.tasks:
            return ""
        task = self.tasks[-1]
        of_whole = task.total is None or task.total <= 1
        done = f"{task.percentage:.0f}%" if of_whole else f"{task.completed:g} of {task.total:g}"
        left = task.time_remaining
        soon = "" if left is None or task.finished else f", {timedelta(seconds=int(left))} left"
        return f"{task.description}: {done}{soon}" if task.description else f"{done}{soon}"


class _Description(ProgressColumn):
    """The description of a bar."""

    def render(self, task: Task) -> Text:
        return Text(printable(task.description))


def progress_bar(*columns: ProgressColumn, shown: bool = True) -> Progress:
    """A description, a bar and columns of figures on a terminal, or else lines."""
    if shown and not sys.stderr.isatty():
        return _ProgressInLines()
    return Progress(
        _Description(),
        BarColumn(),
        *columns,
        console=PlainConsole(stderr=True),
        disable=not shown,
        transient=True,
    )


@contextmanager
def share_done(what: str = "", shown: bool = True) -> Iterator[Callable[[str, float], None]]:
    """A bar that is told what is under way, and which share of all is done; at first `what` is."""
    with progress_bar(TaskProgressColumn(), TimeElapsedColumn(), shown=shown) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)
