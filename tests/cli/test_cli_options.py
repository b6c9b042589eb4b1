"""Options of all commands: what no command can take is refused at the door."""

from __future__ import annotations

import re
from typing import get_args, get_type_hints

import pytest
import typer

from hgpart.cli import app, options_first, run, spellings
from hgpart.cli.command_lines import typed, written_out
from hgpart.cli.options import numbers
from hgpart.cli.processes import device_of_each

FUNCTIONS = {each.name or each.callback.__name__: each.callback for each in app.registered_commands}


def of_numbers(function):
    """Names of the options that are numbers, whole ones apart."""
    for name, hint in get_type_hints(function, include_extras=True).items():
        kind, *info = get_args(hint) or (None,)
        if kind in (float, float | None) or (info and info[0].parser is numbers):
            yield f"--{name.replace('_', '-')}", ""


# Numbers that are settings of another option.
SETTINGS = [
    ("partition", "--memory", "1GB,copies="),
    ("train", "--optimizer", "sgd,momentum="),
    ("train", "--optimizer", "sgd,weight-decay="),
    ("train", "--lr", ""),
    ("train", "--loss", "cross-entropy,smoothing="),
    ("bench", "--until", ""),
    ("predict", "--measure", "1,timeout="),
    ("recommend", "--measure", "1,timeout="),
]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Arguments that each command needs."""
    folder = tmp_path_factory.mktemp("options")
    plan, parts = str(folder / "plan.json"), str(folder / "parts.txt")
    made = ("--effort", "0", "-o", plan, "--write-partition", parts)
    assert run(["partition", "lenet5", "--k", "2", *made]) == 0
    of_model = {
        "partition": ["--k", "2"],
        "compare": ["--k", "2"],
        "export": ["--output", str(folder / "graph")],
        "verify": ["--k", "2"],
        "run": ["--plan", plan],
        "train": ["--plan", plan, "--steps", "1"],
        "bench": ["--data", "digits"],
        "recommend": ["--devices", "2"],
        "predict": ["--plan", plan, "--machine", "10gbe", "--times", str(folder / "times.json")],
    }
    return {"calibrate": []} | {name: ["lenet5", *more] for name, more in of_model.items()}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1"])
@pytest.mark.parametrize(
    ("command", "option", "before"),
    [(name, *option) for name, function in FUNCTIONS.items() for option in of_numbers(function)]
    + SETTINGS,
)
def test_a_number_is_finite_and_not_negative(command, option, before, value, given, capsys):
    """A timeout that was not a number started the processes, or was not looked at."""
    values = f"{value},1" if option == "--speeds" else value
    assert run([command, *given[command], f"{option}={before}{values}"]) in (2, 3)
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
        ["run", "--plan", "p", "--seed", "3", "--unit", "GB"],
    ],
)
def test_each_process_is_given_what_the_command_was(line):
    """The options were listed once more where the processes are started."""
    group = typer.main.get_command(app)

    def read(arguments):
        parent = group.make_context("hgpart", options_first(arguments))
        command = group.commands[line[0]]
        return command.make_context(line[0], parent._protected_args[1:] + parent.args, parent)

    context = read(line)
    again = read([line[0], *written_out(context)])
    assert again.params == context.params
    assert again.obj == context.obj


def test_what_was_typed_goes_on_to_the_next_command():
    """And no default, which the next command has, too."""
    line = [
        "m.py:f",
        "--input-shape",
        "3,8,8",
        "--input-shape",
        "y=:int64:9",
        "--format",
        "hmetis",
        "-o",
        "x y",
    ]
    line += ["--modelling", "training=no"]
    command = typer.main.get_command(app).commands["export"]
    context = command.make_context("export", line)
    names = ("modelling", "output", "input_shape", "slices")
    inputs = " --input-shape 3,8,8 --input-shape y=:int64:9"
    assert typed(context, *names) == f" --modelling training=no --output 'x y'{inputs}"


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


MOST_SLOTS = 222


def test_commands_have_few_options():
    """There were 243, 82 distinct ones: many said one thing in several ways."""
    commands = typer.main.get_command(app).commands.values()
    parameters = [one for command in commands for one in command.params]
    options = [one for one in parameters if any(name.startswith("--") for name in one.opts)]
    assert len(options) <= MOST_SLOTS


def parameters():
    for name, command in typer.main.get_command(app).commands.items():
        yield name, "", command.help
        for parameter in command.params:
            yield name, parameter.name, parameter.help


@pytest.mark.parametrize(("command", "option", "text"), list(parameters()))
def test_each_option_says_what_it_is_in_a_sentence(command, option, text):
    """A help text that begins with That, Of or By is the second half of a sentence."""
    assert text, (command, option)
    assert text.rstrip()[-1] in ".)"
    assert text.split()[0] not in ("That", "Of", "By", "As", "What", "With", "In", "When")
    assert "when left out" not in text
    assert "$ hgpart" not in text  # the example stands below the options


@pytest.mark.parametrize(
    ("line", "now"),
    [
        (["partition", "lenet5", "--k", "2", "--grain", "fine"], "--modelling grain=NAME"),
        (["export", "lenet5", "--inference"], "--modelling training=no"),
        (["partition", "lenet5", "--norms=batch"], "--modelling norms=NAME"),
        (["run", "--norms", "batch"], "--micro-batches M,norms=NAME"),
        (["partition", "lenet5", "--in-flight", "2"], "--memory M,in-flight=N"),
        (["train", "--epochs", "2"], "--steps Nep"),
        (["train", "--in-flight", "2"], "--schedule async,in-flight=N"),
        (["run", "--one-process"], "--backend threads"),
        (["trace", "lenet5", "--dot", "x"], "--graph FILE.dot"),
        (["transform", "lenet5", "--kind", "split"], "MODEL+KIND:PARTS"),
    ],
)
def test_an_earlier_spelling_is_answered_with_the_new_one(line, now, capsys):
    assert run(line) == 2
    option = next(word for word in line if word.startswith("--") and word != "--k")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"hgpart: error: {option.partition('=')[0]} is now spelled {now}\n"


def test_evaluate_is_answered_with_its_new_spelling(capsys):
    assert run(["evaluate", "lenet5", "--partition", "parts"]) == 2
    now = "hgpart partition MODEL --partition FILE"
    assert capsys.readouterr().err == f"hgpart: error: hgpart evaluate is now spelled {now}\n"


def test_no_earlier_spelling_is_an_option_now():
    """Else nobody would be told the new one."""
    for name, command in typer.main.get_command(app).commands.items():
        known = {opt for parameter in command.params for opt in parameter.opts}
        old = {option for option in spellings.OPTIONS if option in known}
        assert old <= {"--timeout", "--inference"}, name  # which are of other commands still


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--modelling", "fine"], "--modelling fine: accepted is KEY=VALUE, as in grain=fine"),
        (["--modelling", "colour=red"], "--modelling colour=red: accepted are grain=, linear=, "),
        (["--modelling", "training=maybe"], "--modelling training=maybe: accepted is yes or no"),
        (["--modelling", "bytes-per-element=x"], "accepted is a whole number"),
        (["--memory", "1GB,copies=all"], "--memory copies=all: accepted is a number"),
        (["--work", "flops,profile"], "--work flops,profile: accepted is one value, and KEY=VALUE"),
        (["--objective", "links"], "links without --machine: accepted is with --machine FILE"),
    ],
)
def test_a_setting_that_is_none_says_what_is_accepted(line, said, capsys):
    assert run(["partition", "lenet5", "--k", "2", *line]) == 3
    error = capsys.readouterr().err
    assert error.startswith("hgpart: error: ")
    assert error.count("\n") == 1
    assert said in error


def test_new_spellings_are_options():
    commands = typer.main.get_command(app).commands
    known = {opt for command in commands.values() for one in command.params for opt in one.opts}
    for text in (*spellings.OPTIONS.values(), *spellings.BY_COMMAND.values()):
        assert set(re.findall(r"--[a-z-]+", text)) <= known, text


@pytest.mark.parametrize("option", ["--memory", "--slices auto", "--best-effort", "--time-limit"])
def test_a_partition_of_a_file_is_not_searched_for(option, capsys):
    values = {"--memory": ["1GB"], "--time-limit": ["1"]}
    line = ["partition", "lenet5", "--partition", "parts", *option.split(), *values.get(option, [])]
    assert run(line) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{option} can't be combined with --partition FILE" in said.err
