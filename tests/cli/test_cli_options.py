"""Options of all commands: what no command can take is refused at the door."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import typer

from hgpart.cli import app, run
from hgpart.cli.command_lines import typed, written_out
from hgpart.cli.options import numbers
from hgpart.cli.processes import device_of_each

FUNCTIONS = {each.name or each.callback.__name__: each.callback for each in app.registered_commands}


def of_numbers(function):
    """Names of the options that are numbers, whole ones apart."""
    for name, hint in get_type_hints(function, include_extras=True).items():
        kind, *info = get_args(hint) or (None,)
        if kind in (float, float | None) or (info and info[0].parser is numbers):
            yield f"--{name.replace('_', '-')}"


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Arguments that each command needs."""
    folder = tmp_path_factory.mktemp("options")
    plan, parts = str(folder / "plan.json"), str(folder / "parts.txt")
    made = ("--effort", "0", "-o", plan, "--partition-file", parts)
    assert run(["partition", "lenet5", "--k", "2", *made]) == 0
    of_model = {
        "partition": ["--k", "2"],
        "evaluate": ["--partition", parts],
        "compare": ["--k", "2"],
        "export": ["--output", str(folder / "graph")],
        "verify": ["--k", "2"],
        "run": ["--plan", plan],
        "train": ["--plan", plan, "--steps", "1"],
        "bench": [],
        "recommend": ["--devices", "2"],
        "predict": ["--plan", plan, "--machine", "10gbe", "--times", str(folder / "times.json")],
    }
    return {"calibrate": []} | {name: ["lenet5", *more] for name, more in of_model.items()}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1"])
@pytest.mark.parametrize(
    ("command", "option"),
    [(name, option) for name, function in FUNCTIONS.items() for option in of_numbers(function)],
)
def test_a_number_is_finite_and_not_negative(command, option, value, given, capsys):
    """A timeout that was not a number started the processes, or was not looked at."""
    values = f"{value},1" if option == "--speeds" else value
    assert run([command, *given[command], f"{option}={values}"]) in (2, 3)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("hgpart: error: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        ["train", "m.py:f", "--plan", "p q", "--steps", "3", "--devices", "cpu,cuda:1", "--resume"],
        ["train", "m", "--plan", "p", "--steps", "3", "--lr", "1e-3", "--checkpoint", "folder"],
        ["run", "m", "--plan", "p", "--backward", "--json", "-", "--timeout", "0.1"],
        ["run", "--plan", "p", "--seed", "3"],
    ],
)
def test_each_process_is_given_what_the_command_was(line):
    """The options were listed once more where the processes are started."""
    command = typer.main.get_command(app).commands[line[0]]
    context = command.make_context(line[0], line[1:])
    assert command.make_context(line[0], written_out(context)).params == context.params


def test_what_was_typed_goes_on_to_the_next_command():
    """And no default, which the next command has, too."""
    line = ["m.py:f", "--input-shape", "3,8,8", "--format", "hmetis", "-o", "x y", "--inference"]
    command = typer.main.get_command(app).commands["export"]
    context = command.make_context("export", line)
    names = ("grain", "inference", "output", "input_shape", "no_input_vertex")
    assert typed(context, *names) == " --inference --output 'x y' --input-shape 3,8,8"


@pytest.mark.parametrize(
    ("gpus", "rank", "found"),
    [
        (0, None, ("cpu",) * 3),
        (3, None, ("cuda:0", "cuda:1", "cuda:2")),
        (2, None, ("cuda:0", "cuda:1", "cuda:0")),
        (4, 2, ("cuda:2",) * 3),
    ],
)
def test_auto_takes_the_gpus_that_there_are(gpus, rank, found, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
        if rank is not None:
            monkeypatch.setenv(name, str(rank))
    assert device_of_each(["auto"], 3) == found
