"""The `hgpart` command: parses arguments, calls the stages, prints their records.

Each command has a file. Modules that import torch are imported inside the commands, so that
--version, --help and wrong options answer at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from importlib.metadata import version
from itertools import islice
from typing import Annotated, Any, TextIO, cast

import typer

from hgpart.cli.grouping import help_of, with_groups, without_values
from hgpart.cli.options import NoCache, Unit
from hgpart.cli.processes import started_as_rank, tell_torchrun
from hgpart.cli.spellings import EARLIER_COMMANDS, now_spelled
from hgpart.errors import (
    ArgumentError,
    HgpartError,
    ModelError,
    OutputError,
    first_line,
    is_out_of_memory,
    not_one_of,
)
from hgpart.files.columns import UNITS
from hgpart.freed_memory import keep_freed_memory
from hgpart.terminal import say
from hgpart.tracing.cache.folder import keeping

INTERRUPTED = 130  # 128 + the signal, as shells say it
STATUSES = "; ".join(
    [
        "0 done",
        "2 a command line that can't be read",
        *(f"{kind.exit_status} {kind.__name__}" for kind in HgpartError.__subclasses__()),
        f"{INTERRUPTED} Ctrl-C",
    ]
)
OUT_OF_RANGE = "greater_than_equal"
ACCEPTED = {  # by what pydantic calls a mistake
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    OUT_OF_RANGE: "{ge:g} or more",
}
COMPLETION = {"--install-completion", "--show-completion"}

FIRST = "recommend vgg16 --devices 2 --batch-size 16"

app = typer.Typer(
    help="Divide a CNN among devices, filter by filter, by hypergraph partitioning.",
    epilog=f"Begin with: hgpart {FIRST}\n\nExit status: {STATUSES}",
)
COMMANDS = {  # each is the function of its name, in its file
    "Divide a model": ("recommend", "partition", "compare", "show", "explain", "diff"),
    "Run it in parts": ("verify", "run", "train", "bench"),
    "Measure and simulate": ("calibrate", "profile", "predict"),
    "Look at models; other programs": ("models", "trace", "transform", "export", "export_part"),
}
for panel, names in COMMANDS.items():
    for name in names:
        command = getattr(import_module(f"hgpart.cli.commands.{name}"), name)
        text, example = help_of(command)
        app.command(help=text, epilog=example, rich_help_panel=panel)(with_groups(command))


def _print_version(asked: bool) -> None:
    if asked:
        print(f"hgpart {version('hgpart')}")
        raise typer.Exit


@app.callback()
def _hgpart(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
    unit: Unit = None,
    no_cache: NoCache = False,
) -> None:
    context.with_resource(keeping(not no_cache))
    if unit is not None and unit not in UNITS:
        raise not_one_of("unit", unit, UNITS)
    context.obj = unit


class _UnwritableError(Exception):
    """Standard output is a full disk, or a pipe whose reader has enough, as in hgpart | head."""


class _StandardOutput:
    """Standard output, whose errors are told from those of any other file."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, text: str) -> int:
        try:
            return self.file.write(text)
        except UnicodeEncodeError as error:  # it has no such letter
            escaped = text.encode(error.encoding, "backslashreplace")
            return self.file.write(escaped.decode(error.encoding))
        except OSError as error:
            raise _UnwritableError(error.strerror) from error

    def flush(self) -> None:
        try:
            self.file.flush()
        except OSError as error:
            raise _UnwritableError(error.strerror) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status; every error is one line on standard error."""
    output = cast(TextIO, _StandardOutput(sys.stdout))
    try:
        command = without_values(typer.main.get_command(app))
        with redirect_stdout(output):
            with command.make_context("hgpart", options_first(arguments)) as context:
                command.invoke(context)
            output.flush()
    except typer.Exit as stop:
        return stop.exit_code
    except typer.TyperException as error:
        return _failed(*_unreadable(error))
    except HgpartError as error:
        return _failed(str(error), error.exit_status)
    except SystemExit as stop:  # no command exits: code of the model's does, wherever it runs
        return _failed(
            f"the model's code ends the process: sys.exit({stop})", ModelError.exit_status
        )
    except KeyboardInterrupt as stop:
        say(" ".join(["hgpart: interrupted", *map(str, stop.args)]))
        return INTERRUPTED
    except _UnwritableError as error:
        # Python would complain once more when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error.__cause__, BrokenPipeError):
            return OutputError.exit_status
        return _failed(f"can't write the output: {error}", OutputError.exit_status)
    except OSError as error:
        return _failed(str(error), HgpartError.exit_status)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _failed(f"out of memory {first_line(error)}".rstrip(), HgpartError.exit_status)
    return 0


def options_first(arguments: Sequence[str]) -> list[str]:
    """The same with options of all commands, --unit and --no-cache, in front, as typer needs them.

    >>> options_first(["trace", "lenet5", "--unit", "GB", "--no-cache"])
    ['--unit', 'GB', '--no-cache', 'trace', 'lenet5']
    >>> options_first([])
    ['--help']
    """
    first: list[str] = []
    others: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--unit":
            first += [word, *islice(words, 1)]
        else:
            is_first = word == "--no-cache" or word.startswith("--unit=")
            (first if is_first else others).append(word)
    return [*first, *others] or ["--help"]


def _unreadable(error: typer.TyperException) -> tuple[str, int]:
    """The message about a command line that can't be read, and the exit status."""
    context, option = getattr(error, "ctx", None), getattr(error, "option_name", None)
    now = None if context is None or option is None else now_spelled(context.command.name, option)
    known = () if context is None else [name for own in context.command.params for name in own.opts]
    if now is not None and (not now.startswith("--") or now.partition(" ")[0] in known):
        return f"{option} is now spelled {now}", error.exit_code
    problems: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if isinstance(error, typer.BadParameter) and problems:
        # The message of pydantic, which typer reads values with, leaves out the value.
        problem, param = problems[0], error.param
        if param is not None and problem["type"] in ACCEPTED:
            accepted = ACCEPTED[problem["type"]].format(**problem.get("ctx", {}))
            is_number = problem["type"] == OUT_OF_RANGE
            status = ArgumentError.exit_status if is_number else error.exit_code
            return f"{param.opts[0]} {problem['input']}: accepted is {accepted}", status
        error.message = f"{problem['input']!r}: {error.message}"
    message = error.format_message()
    for command, now in EARLIER_COMMANDS.items():
        if message.startswith(f"No such command {command!r}"):
            return f"hgpart {command} is now spelled {now}", error.exit_code
    if context is not None and not message.endswith("?"):
        message = f"{message.rstrip('.')}; '{context.command_path} --help' says what is accepted"
    return message, error.exit_code


def _failed(message: str, status: int) -> int:
    line = f"hgpart: error: {message}"
    say(line)
    tell_torchrun(line)
    return status


def main() -> None:
    """Run the `hgpart` command with the process's arguments."""
    if "_HGPART_COMPLETE" in os.environ or COMPLETION.intersection(sys.argv):
        app(prog_name="hgpart")  # typer answers the shell, and ends the process
    keep_freed_memory()
    status = run(sys.argv[1:])
    if status == INTERRUPTED or started_as_rank():
        # Threads may still be at work: an exit would wait for those of a comparison, and gloo's,
        # where a run has failed, may abort a process that is at its end.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status)
    gc.freeze()  # else Python looks for garbage in all that torch has loaded, for a second
    sys.exit(status)
