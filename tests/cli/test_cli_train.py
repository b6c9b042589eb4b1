"""hgpart train: in one process and in several, through checkpoints, deaths and mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
import user_training
from PIL import Image
from progress_lines import without_progress
from torch.utils._pytree import tree_leaves_with_path
from traces import assert_is_trace

from hgpart.cli import run
from hgpart.hypergraph.blocks import divide
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.partition.partition import evaluated
from hgpart.partition.problem.problem import Problem
from hgpart.placement.state.weight_files import opened_weights
from hgpart.plan import Plan, save_plan
from hgpart.run.learner import Learner
from hgpart.run.training.checkpoints import LOCK, check, checkpoints
from hgpart.run.training.data import load_data
from hgpart.run.training.loop import train
from hgpart.run.training.options import TrainingOptions
from hgpart.run.training.scores import accuracy, user_loss
from hgpart.schedules.rules import DEFAULT
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import flops
from hgpart.zoo import load_model

OPTIONS = {
    "sgd": TrainingOptions(20, 16, "sgd", lr=0.05, momentum=0.8, weight_decay=1e-3, seed=5),
    "adam": TrainingOptions(20, 16, "adam", lr=0.002, weight_decay=1e-3, seed=5),
}
ON_DIGITS = ("--data", "digits", "--batch-size", 16, "--seed", 5)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    asked = {
        "coarse": ("--k", 2, "--batch-size", 16),
        "fine": ("--k", 3, "--modelling", "grain=fine", "--batch-size", 16, "--eps", 0.3),
    }
    found = {name: folder / f"{name}.json" for name in asked}
    for name, options in asked.items():
        hgpart("partition", "lenet5", "--effort", 0, *options, "-o", found[name])
    return found


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", (1, 32, 32), 10, seed=5)


def hgpart(*arguments):
    """Run a command that is to succeed."""
    assert run([str(argument) for argument in arguments]) == 0


def started(*arguments, **options):
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "hgpart", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


def on_one_device(options, data, double=False):
    model, _ = load_model("lenet5", seed=options.seed)
    return train(Learner(model.double() if double else model), data, options)


def written(options):
    names = ("steps", "batch_size", "optimizer", "lr", "seed", "momentum", "weight_decay")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    settings = {name: given.pop(name) for name in names[-2:] if name in given}
    texts = [f",{name.replace('_', '-')}={value}" for name, value in settings.items()]
    given["optimizer"] += "".join(texts)
    return [text for name in given for text in (f"--{name.replace('_', '-')}", given[name])]


# ------------------------------------------------------------------ the same as one device


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "kind", "dtype", "tolerance"),
    [
        ("fine in micro-batches", "sgd", "float64", 1e-9),
        pytest.param("coarse", "adam", "float32", 1e-4, marks=pytest.mark.full),
        pytest.param("coarse", "sgd", "float64", 1e-9, marks=pytest.mark.full),
        pytest.param("fine", "sgd", "float32", 1e-4, marks=pytest.mark.full),
        pytest.param("fine", "adam", "float64", 1e-9, marks=pytest.mark.full),
    ],
)
def test_losses_are_those_of_one_device(plan, kind, dtype, tolerance, plans, digits, tmp_path):
    options, file = OPTIONS[kind], tmp_path / "figures.json"
    plan, _, divided = plan.partition(" in ")
    hgpart(
        *("train", "lenet5", "--plan", plans[plan], "--backend", "threads", "--data", "digits"),
        *(*written(options), "--dtype", dtype, "--json", file),
        *(("--micro-batches", 3) if divided else ()),
    )
    shown = json.loads(file.read_text())
    expected = on_one_device(options, digits, dtype == "float64")
    assert shown["losses"] == pytest.approx(expected.losses, rel=tolerance)
    assert shown["accuracy"] == expected.accuracy
    assert shown["micro_batches"] == (3 if divided else 1)
    assert shown["k"] == len(shown["parts"]) == {"coarse": 2, "fine": 3}[plan]
    assert all(part["forward_busy"] > 0 for part in shown["parts"])
    assert shown["volume_bytes"] * 20 == shown["forward_bytes"]
    if dtype == "float32":
        assert shown["volume_bytes"] == json.loads(plans[plan].read_text())["volume_bytes"]


@pytest.mark.long
@pytest.mark.parametrize("carrier", ["threads", pytest.param("gloo", marks=pytest.mark.full)])
def test_mixed_precision_sends_half_of_the_bytes(carrier, plans, tmp_path):
    """In processes maps of another type than were placed were refused."""
    file = tmp_path / "figures.json"
    options = "--backend", carrier, "--data", "digits", "--steps", 12, "--lr", 0.05, "--json", file
    shown = {}
    for amp in ((), ("--amp", "bfloat16")):
        hgpart("train", "lenet5", "--plan", plans["coarse"], *options, *amp)
        shown[amp] = json.loads(file.read_text())
    plain, mixed = shown.values()
    assert (plain["autocast"], mixed["autocast"]) == (None, "bfloat16")
    assert mixed["losses"] == pytest.approx(plain["losses"], rel=0.05)
    assert mixed["forward_bytes"] < 0.75 * plain["forward_bytes"]
    assert mixed["volume_bytes"] == plain["volume_bytes"]


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("carrier", ["threads", "gloo"])
def test_a_training_ends_where_its_accuracy_does_not_improve(carrier, plans, tmp_path, capsys):
    """With a learning rate of 0, nine epochs of two steps; bytes are of steps, not of tests."""
    given = (
        "train",
        "lenet5",
        "--plan",
        plans["coarse"],
        "--data",
        "digits",
        "--optimizer",
        "sgd,decay=yes",
    )
    given += ("--lr", 0, "--batch-size", 700, "--steps", 40, "--json", tmp_path / "figures.json")
    if carrier == "threads":
        hgpart(*given, "--backend", "threads")
        output = capsys.readouterr().out
    else:
        output, errors = started(*given).communicate(timeout=100)
        assert without_progress(errors) == ""
    shown = json.loads((tmp_path / "figures.json").read_text())
    assert shown["accuracies"] == [shown["accuracy"]] * 9
    assert shown["learning_rates"] == [0.0] * 9
    assert shown["steps"] == len(shown["losses"]) == 18
    assert shown["forward_bytes"] == 18 * shown["volume_bytes"]
    best = f"{100 * shown['accuracy']:.2f} %"
    assert f"9 epochs, the best one 1: validation accuracy {best}\n" in output


@pytest.mark.long
@pytest.mark.parametrize("carrier", ["threads", pytest.param("gloo", marks=pytest.mark.full)])
def test_a_timeline_of_the_last_steps(carrier, plans, tmp_path, monkeypatch):
    options = ("--steps", 3, "--batch-size", 4, "--micro-batches", 2)
    given = ("train", "lenet5", "--plan", plans["coarse"], *options)
    given += (
        "--timeline",
        tmp_path / "times.json",
        *(("--backend", "threads") * (carrier == "threads")),
    )
    if carrier == "threads":
        monkeypatch.setattr("hgpart.run.training.loop.TIMELINE_STEPS", 2)
        hgpart(*given)
    else:
        assert without_progress(started(*given).communicate(timeout=100)[1]) == ""
    events = assert_is_trace(tmp_path / "times.json", parts=2)
    steps = {event["args"]["step"] for event in events}
    assert steps == ({0, 1} if carrier == "threads" else {0, 1, 2})


@pytest.mark.parametrize(
    "file", ["trained.pt", pytest.param("trained.safetensors", marks=pytest.mark.full)]
)
def test_what_was_trained_is_the_models_state(file, plans, digits, tmp_path, capsys):
    """There was no way to have the weights but in the parts' checkpoints."""
    options = replace(OPTIONS["sgd"], steps=3)
    training = ("train", "lenet5", "--plan", plans["fine"], "--data", "digits")
    training += ("--backend", "threads", "--dtype", "float64", *written(options))
    hgpart(*training, "-o", tmp_path / file)
    assert f"{tmp_path / file} has the trained model's state_dict" in capsys.readouterr().out
    model, _ = load_model("lenet5", seed=options.seed)
    train(Learner(model.double()), digits, options)
    with opened_weights(tmp_path / file) as state:
        assert sorted(state) == sorted(model.state_dict())
        for name, tensor in model.state_dict().items():
            assert torch.allclose(state[name], tensor, rtol=1e-9, atol=1e-12), name
    hgpart(*training, "--steps", 0, "--weights", tmp_path / file, "-o", tmp_path / "again.pt")
    with opened_weights(tmp_path / file) as state, opened_weights(tmp_path / "again.pt") as again:
        assert all(torch.equal(again[name], state[name]) for name in state)


def test_the_file_has_the_best_weights_and_says_so(plans, digits, tmp_path, capsys):
    training = ("train", "lenet5", "--plan", plans["coarse"], *ON_DIGITS, "--steps", "4ep")
    training += ("--lr", 0.3, "--optimizer", "sgd,momentum=0", "--batch-size", 400)
    figures, file = tmp_path / "figures.json", tmp_path / "trained.pt"
    hgpart(*training, "--backend", "threads", "--json", figures, "-o", file)
    shown, said = json.loads(figures.read_text()), capsys.readouterr().out
    assert (shown["steps"], len(shown["accuracies"])) == (12, 4)
    best = max(shown["accuracies"])
    assert shown["best_epoch"] == shown["accuracies"].index(best) + 1
    assert f"{file} has the trained model's state_dict, after epoch {shown['best_epoch']}, " in said
    model, _ = load_model("lenet5")
    model.load_state_dict(torch.load(file))
    assert accuracy(Learner(model), digits, 400) == best


@pytest.mark.full
@pytest.mark.long
def test_two_processes_learn_the_digits_as_one_device_does(plans, digits, tmp_path):
    options = TrainingOptions(300, 16, "sgd", lr=0.02, seed=5)
    file = tmp_path / "figures.json"
    process = started(
        *("train", "lenet5", "--plan", plans["coarse"], "--data", "digits", "--json", file),
        *written(options),
    )
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, without_progress(errors)) == (0, "")
    shown = json.loads(file.read_text())
    expected = on_one_device(options, digits)
    assert shown["losses"][:20] == pytest.approx(expected.losses[:20], rel=1e-4)
    assert shown["losses"] == pytest.approx(expected.losses, rel=1e-2, abs=1e-3)
    assert expected.accuracy >= 0.97
    assert shown["accuracy"] >= 0.97
    assert shown["processes"] == 2
    assert shown["forward_bytes"] == 300 * shown["volume_bytes"]
    first = output.splitlines()[0]
    assert first.startswith(f"loss {shown['losses'][-1]:.4g}, validation accuracy ")
    assert f"{100 * shown['accuracy']:.2f} %" in first
    for heading in ("Loss", "Time in the parts' forward and backward passes", "Traffic"):
        assert heading in output.splitlines()


@pytest.mark.full
@pytest.mark.long
def test_batches_in_flight_in_threads_and_processes_have_the_same_bits(plans, tmp_path):
    """Of threads there is a training, of processes its end, from a checkpoint of threads."""
    threads, processes = tmp_path / "threads.json", tmp_path / "processes.json"
    training = ("train", "lenet5", "--plan", plans["coarse"], *ON_DIGITS)
    training += ("--schedule", "async,in-flight=3")
    first, second = (("--checkpoint", f"{tmp_path / name},every=5") for name in "ab")
    hgpart(*training, *first, "--backend", "threads", "--steps", 20, "--json", threads)
    hgpart(*training, *second, "--backend", "threads", "--steps", 5)
    process = started(*training, *second, "--resume", "--steps", 20, "--json", processes)
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, without_progress(errors)) == (0, "")
    assert "20 steps of 16 samples, 3 in flight (async), 5 of them before it was" in output
    ours, theirs = (json.loads(file.read_text()) for file in (threads, processes))
    assert ours["losses"] == theirs["losses"]
    assert ours["accuracy"] == theirs["accuracy"]
    assert (ours["schedule"], ours["in_flight"], ours["stash"]) == ("async", 3, True)
    stale = [part["most_staleness"] for part in ours["parts"]]
    assert stale == [part["most_staleness"] for part in theirs["parts"]]
    assert max(stale) > 0


@pytest.mark.full
@pytest.mark.long
def test_images_are_cropped_alike_in_one_process_and_in_two(sliced, tmp_path):
    """Each process reads only its slices' images."""
    pixels = np.random.default_rng(0)
    for at in range(40):
        path = tmp_path / "photos" / ("train" if at < 32 else "val") / "ab"[at % 2] / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.integers(256, size=(40, 36, 3), dtype="uint8")).save(path)
    data = f"imagefolder:{tmp_path / 'photos'},augment=yes"
    training = ("train", "lenet5", "--plan", sliced[4, 2], "--data", data, "--batch-size", 16)
    training += ("--steps", "3ep", "--seed", 5, "--lr", 0.05)
    threads, processes = tmp_path / "threads.json", tmp_path / "processes.json"
    hgpart(*training, "--backend", "threads", "--json", threads)
    _, errors = started(*training, "--json", processes).communicate(timeout=300)
    assert without_progress(errors) == ""
    ours, theirs = (json.loads(file.read_text()) for file in (threads, processes))
    assert ours["losses"] == theirs["losses"]
    assert ours["accuracies"] == theirs["accuracies"]
    options = TrainingOptions(6, 16, lr=0.05, seed=5)
    expected = on_one_device(options, load_data(data, (1, 32, 32), 10, seed=5))
    assert ours["losses"] == pytest.approx(expected.losses, rel=1e-4)


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    """A model of the score of each pixel, its plan, and options with its data and loss."""
    named = [f"{user_training.__file__}:{name}" for name in ("network", "masks", "known_pixels")]
    plan = tmp_path_factory.mktemp("masks") / "plan.json"
    size = ("--input-shape", "1,12,12", "--batch-size", 16, "--eps", 0.5)
    hgpart("partition", named[0], "--k", 2, "--effort", 0, *size, "-o", plan)
    training = ("train", named[0], "--plan", plan, "--data", named[1], "--loss", named[2])
    return (*training, "--batch-size", 16, "--lr", 0.1)


@pytest.mark.long
@pytest.mark.parametrize("carrier", ["threads", pytest.param("gloo", marks=pytest.mark.full)])
def test_a_users_loss_of_a_users_data(carrier, masks, tmp_path, capsys):
    file, log = tmp_path / "figures.json", tmp_path / "log.csv"
    training = (*masks, "--steps", "3ep", "--json", file, "--log", log, "-o", tmp_path / "best.pt")
    if carrier == "threads":
        hgpart(*training, "--backend", "threads")
        said = capsys.readouterr().out
    else:
        said, errors = started(*training).communicate(timeout=100)
        assert without_progress(errors) == ""
    shown = json.loads(file.read_text())
    data = load_data(masks[5], (1, 12, 12), None, seed=0)
    model, _ = load_model(masks[1], seed=0)
    loss, options = user_loss(masks[7]), TrainingOptions(6, 16, lr=0.1)
    expected = train(Learner(model), data, options, loss=loss)
    assert shown["losses"] == pytest.approx(expected.losses, rel=1e-4)
    assert shown["validation_loss"] == pytest.approx(expected.validation_loss, rel=1e-4)
    assert said.splitlines()[0].startswith(f"loss {shown['losses'][-1]:.4g}, validation loss ")
    assert log.read_text().splitlines()[0].endswith(",val_loss")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--loss", "none.py:loss"], 3, "there is no file 'none.py'; write path/file.py:loss"),
        (["--loss", f"{user_training.__file__}:known"], 3, "unknown loss 'known'; "),
        (["--loss", f"{user_training.__file__}:no_tensor"], 3, "a loss of 0.5: accepted is a ten"),
        (["--loss", f"{user_training.__file__}:failing_loss"], 3, ": AttributeError: 'Tensor' o"),
        (["--data", f"{user_training.__file__}:alone"], 3, "sample 0 is Tensor: accepted is (inp"),
        (["--data", f"{user_training.__file__}:failing"], 3, ": KeyError: 'photos'"),
        (["--until", "accuracy=0.9"], 3, "an accuracy to end at with the loss "),
    ],
)
def test_mistakes_in_a_users_data_and_loss_are_one_line(options, status, message, masks, capsys):
    given = [*masks, "--backend", "threads", "--steps", 1, *options]
    assert run([str(argument) for argument in given]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


# ------------------------------------------------------------------ death and resurrection


@pytest.mark.full
@pytest.mark.long
def test_two_processes_go_on_to_the_bit(plans, tmp_path):
    """The last checkpoint is gone, and the one before is within an epoch of three steps."""
    training = ("train", "lenet5", "--plan", plans["coarse"], "--data", "digits", "--steps", 9)
    training += ("--batch-size", 480, "--optimizer", "adam", "--until", "accuracy=1")
    training += ("--lr", "0.01,warmup=2,schedule=cosine", "--loss", "cross-entropy,smoothing=0.1")
    ends = []
    for resumed in ((), ("--resume",)):
        figures, state, log = (tmp_path / f"{len(ends)}{end}" for end in (".json", ".pt", ".csv"))
        if resumed:
            shutil.rmtree(tmp_path / "checkpoints" / "step-000009")
            shutil.copy(tmp_path / "0.csv", log)
        output = ("--json", figures, "-o", state, "--log", log)
        process = started(
            *training, *output, "--checkpoint", f"{tmp_path / 'checkpoints'},every=4", *resumed
        )
        assert without_progress(process.communicate(timeout=300)[1]) == ""
        shown = json.loads(figures.read_text())
        names = "losses", "accuracies", "learning_rates", "best_epoch", "accuracy"
        columns = [line.split(",") for line in log.read_text().splitlines()]
        assert len(columns) == 10
        rows = [(step, loss, rate, score) for step, loss, rate, _, score in columns]
        ends.append(({name: shown[name] for name in names}, rows, torch.load(state)))
        assert shown["steps_now"] == (1 if resumed else 9)
    (first, first_rows, whole), (second, second_rows, again) = ends
    assert first == second
    assert first_rows == second_rows
    assert all(torch.equal(again[name], whole[name]) for name in whole)


def ranks_of(launcher):
    """Process ids by rank, of the processes that a launcher has started."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"PPid:\t{launcher}\n" in (folder / "status").read_text():
                environment = (folder / "environ").read_bytes().split(b"\0")
                found |= {
                    int(entry[5:]): int(folder.name)
                    for entry in environment
                    if entry.startswith(b"RANK=")
                }
        except OSError:
            continue  # it has ended since
    return found


def in_micro_batches(rule):
    """Options; none without a rule."""
    if rule == "async":
        return ("--schedule", f"{rule},in-flight=3")
    return () if rule is None else ("--micro-batches", 3, "--schedule", rule)


def wait_for_checkpoint(process, folder):
    while not checkpoints(folder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def errors_of_stopped_rank(process, folder, number=signal.SIGKILL):
    """What a training says whose rank 1 gets a signal behind the first checkpoint."""
    try:
        wait_for_checkpoint(process, folder)
        os.kill(ranks_of(process.pid)[1], number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 14
    return errors


@pytest.mark.full
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_that_is_killed_with_batches_in_flight(plans, tmp_path):
    """What is left goes on to what an undisturbed training has, to the bit."""
    folder, file, other = tmp_path / "cut", tmp_path / "cut.json", tmp_path / "whole.json"
    training = ("train", "lenet5", "--plan", plans["coarse"], *ON_DIGITS)
    training += ("--schedule", "async,in-flight=4")
    process = started(*training, "--steps", 10**6, "--checkpoint", f"{folder},every=50")
    errors = errors_of_stopped_rank(process, folder)
    assert "hgpart: error: rank 1 was ended by SIGKILL" in errors
    done = check(checkpoints(folder)[0]).step
    going_on = (*training, "--backend", "threads", "--steps", done + 7)
    hgpart(*going_on, "--resume", "--checkpoint", f"{folder},every=50", "--json", file)
    hgpart(*going_on, "--checkpoint", f"{tmp_path / 'whole'},every=50", "--json", other)
    shown, expected = (json.loads(one.read_text())["losses"] for one in (file, other))
    assert shown == expected


@pytest.mark.full
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("rule", [None, DEFAULT])
def test_a_killed_rank_loses_nothing_but_the_steps_since(rule, plans, digits, tmp_path):
    folder, divided = tmp_path / "checkpoints", in_micro_batches(rule)
    endless = ("--steps", 10**6, "--checkpoint", f"{folder},every=7", *divided)
    process = started("train", "lenet5", "--plan", plans["coarse"], *ON_DIGITS, *endless)
    try:
        wait_for_checkpoint(process, folder)
        killed = time.monotonic()
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert time.monotonic() - killed < 10
    assert process.returncode == 14
    assert "hgpart: error: rank 1 was ended by SIGKILL" in errors
    assert not ranks_of(process.pid)
    done = check(checkpoints(folder)[0]).step
    file = tmp_path / "figures.json"
    hgpart(  # on another plan, in one process
        *(
            "train",
            "lenet5",
            "--plan",
            plans["fine"],
            *ON_DIGITS,
            "--backend",
            "threads",
            "--resume",
        ),
        *("--steps", done + 3, "--checkpoint", folder, "--json", file, *divided),
    )
    shown = json.loads(file.read_text())
    assert (shown["steps"], shown["steps_now"]) == (done + 3, 3)
    expected = on_one_device(TrainingOptions(min(done + 3, 20), 16, seed=5), digits)
    assert shown["losses"][:20] == pytest.approx(expected.losses, rel=1e-4)


def assert_whole(folder, left=()):
    """It has nothing but checkpoints that are whole, besides what is left."""
    assert {*folder.iterdir()} - {*left} == {folder / LOCK, *checkpoints(folder)}
    for path in checkpoints(folder):
        check(path)


def test_ctrl_c_leaves_whole_checkpoints_only(plans, tmp_path, capsys):
    folder, file = tmp_path / "checkpoints", tmp_path / "figures.json"

    def interrupt():
        while not checkpoints(folder):
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    given = (
        "train",
        "lenet5",
        "--plan",
        plans["coarse"],
        "--batch-size",
        4,
        "--backend",
        "threads",
    )
    given += ("--steps", 10**6, "--checkpoint", f"{folder},every=1", "--json", file)
    capsys.readouterr()
    threading.Thread(target=interrupt, daemon=True).start()
    assert run([str(argument) for argument in given]) == 130
    assert capsys.readouterr() == ("", "hgpart: interrupted\n")
    assert not file.exists()
    assert_whole(folder)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("rule", "carrier"),
    [(None, "threads"), (DEFAULT, "gloo"), ("async", "threads"), ("async", "gloo")],
)
def test_ctrl_c_ends_processes_and_leaves_whole_checkpoints_only(rule, carrier, plans, tmp_path):
    folder, file = tmp_path / "checkpoints", tmp_path / "figures.json"
    process = started(
        *("train", "lenet5", "--plan", plans["coarse"], *ON_DIGITS, *in_micro_batches(rule)),
        *("--backend", "threads") * (carrier == "threads"),
        *("--steps", 10**6, "--checkpoint", f"{folder},every=1", "--json", file),
    )
    try:
        wait_for_checkpoint(process, folder)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    errors = without_progress(errors)
    assert (process.returncode, output, errors) == (130, "", "hgpart: interrupted\n")
    assert not file.exists()
    # One that several processes were writing is left to the next checkpoint to remove.
    assert_whole(folder, folder.glob(".step-*.unfinished") if carrier == "gloo" else ())


@pytest.mark.full
@pytest.mark.long
def test_resuming_in_processes_warns_of_a_damaged_checkpoint(plans, digits, tmp_path):
    folder, file = tmp_path / "checkpoints", tmp_path / "figures.json"
    training = ("train", "lenet5", *ON_DIGITS, "--checkpoint", f"{folder},every=4")
    hgpart(*training, "--plan", plans["fine"], "--backend", "threads", "--steps", 8)
    damaged = folder / "step-000008" / "part-2.pt"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    process = started(
        *(*training, "--plan", plans["coarse"], "--steps", 10, "--resume", "--json", file)
    )
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    errors = without_progress(errors)
    assert errors.startswith(f"hgpart: warning: {damaged} has ")
    assert errors.endswith(f"going on from {folder / 'step-000004'}, the last that is whole\n")
    assert "4 of them before it was resumed" in output
    expected = on_one_device(TrainingOptions(10, 16, seed=5), digits)
    assert json.loads(file.read_text())["losses"] == pytest.approx(expected.losses, rel=1e-4)


NORMS = """
from torch import nn

def network(norm=nn.BatchNorm2d):
    norms = norm(4, track_running_stats=True), norm(6, track_running_stats=True)
    convolutions = nn.Conv2d(1, 4, 3), norms[0], nn.ReLU(), nn.Conv2d(4, 6, 3), norms[1]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(6 * 16, 10))

def instances():
    return network(nn.InstanceNorm2d)
"""


@pytest.fixture(scope="module")
def norms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("norms")
    (folder / "models.py").write_text(NORMS)
    found = {}
    for name in ("network", "instances"):
        found[name] = f"{folder / 'models.py'}:{name}", folder / f"{name}.json"
        options = ("--k", 2, "--effort", 0, "--eps", 0.5, "--input-shape", "1,8,8")
        hgpart("partition", found[name][0], *options, "-o", found[name][1])
    return found


@pytest.mark.full
@pytest.mark.long
def test_statistics_of_batches_are_the_same_in_processes(norms, tmp_path):
    """And other ones than those of the micro-batches in turn."""
    model, plan = norms["network"]
    common = ("train", model, "--plan", plan, "--steps", 3, "--batch-size", 7)
    whole = ("--micro-batches", "3,norms=batch", "--checkpoint")
    hgpart(*common, *whole, tmp_path / "threads", "--backend", "threads")
    in_turn = ("--micro-batches", 3, "--checkpoint", tmp_path / "in turn")
    hgpart(*common, *in_turn, "--backend", "threads")
    process = started(*common, *whole, tmp_path / "processes")
    assert without_progress(process.communicate(timeout=100)[1]) == ""
    state = {
        name: [
            (kind, leaf)
            for part in range(2)
            for kind, leaf in tree_leaves_with_path(
                torch.load(tmp_path / name / "step-000003" / f"part-{part}.pt")
            )
            if isinstance(leaf, torch.Tensor)
        ]
        for name in ("threads", "in turn", "processes")
    }
    names = [kind for kind, _ in state["threads"]]
    assert names == [kind for kind, _ in state["processes"]]

    def same(one, other):
        return [bool(torch.equal(*pair)) for pair in zip(one, other, strict=True)]

    tensors = {name: [tensor for _, tensor in found] for name, found in state.items()}
    assert all(same(tensors["threads"], tensors["processes"]))
    assert not all(same(tensors["threads"], tensors["in turn"]))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "asked", "status", "said"),
    [
        ("network", "slice", 3, "norms 'slice': accepted are micro-batch and batch"),
        ("instances", "batch", 13, "1 updates running statistics by aten.instance_norm.default: "),
    ],
)
def test_norms_are_refused_before_any_process_starts(name, asked, status, said, norms, capsys):
    model, plan = norms[name]
    capsys.readouterr()
    given = ("train", model, "--plan", plan, "--steps", 1, "--micro-batches", f"norms={asked}")
    with patch("hgpart.cli.placing.start_ranks", side_effect=AssertionError):
        assert run([str(argument) for argument in given]) == status
    assert said in capsys.readouterr().err


TWO_MODELS = """
from torch import nn

def network(activation):
    layers = nn.Conv2d(1, 4, 3), activation, nn.Flatten(), nn.Linear(4 * 36, 10)
    return nn.Sequential(*layers)

def relu():
    return network(nn.ReLU())

def tanh():
    return network(nn.Tanh())
"""


@pytest.mark.full
@pytest.mark.long
def test_what_is_other_than_in_the_checkpoint_is_refused_or_said(tmp_path, capsys):
    """A model of the same names and shapes, and other rates, passed in silence."""
    (tmp_path / "models.py").write_text(TWO_MODELS)

    def trained(name, *options):
        model, plan = f"{tmp_path / 'models.py'}:{name}", tmp_path / f"{name}.json"
        if not plan.exists():
            quickly = ("--k", 2, "--effort", 0)
            hgpart("partition", model, *quickly, "--input-shape", "1,8,8", "-o", plan)
        capsys.readouterr()
        given = (
            "--plan",
            plan,
            "--backend",
            "threads",
            "--batch-size",
            4,
            "--checkpoint",
            tmp_path,
        )
        status = run([str(each) for each in ("train", model, *given, *options)])
        return status, capsys.readouterr()

    assert trained("relu", "--steps", 1, "--lr", 0.02)[0] == 0
    status, said = trained("tanh", "--steps", 2, "--resume")
    assert status == 15
    assert said.err.startswith(f"hgpart: error: {tmp_path / 'step-000001'} is of another model: ")
    status, said = trained(
        "relu", "--steps", 2, "--resume", "--optimizer", "sgd,momentum=0.5", "--json", "-"
    )
    assert said.err == (
        "hgpart: warning: momentum 0.5 from step 2 on; "
        f"{tmp_path / 'step-000001'} was written with 0.9\n"
    )
    assert (json.loads(said.out)["lr"], json.loads(said.out)["momentum"]) == (0.02, 0.5)


# ------------------------------------------------------------------ the batch in slices


def write_plan(spec, shape, modelling, k, way, path):
    """A partition that no search has found."""
    model, _ = load_model(spec)
    graph = channel_graph(trace(model, torch.zeros(2, *shape)))
    problem = Problem(graph, flops(graph), modelling, k, 0.5)
    found = evaluated(problem, *way(problem), seed=0, backend="test", start="test")
    save_plan(Plan(found, spec, shape), path)


@pytest.fixture(scope="module")
def sliced(tmp_path_factory):
    """Plans in which no slices lie alike, by slices and k."""

    def at_random(problem):
        model = problem.hypergraph(divide(problem.graph, problem.work, problem.modelling, 8))
        return model, np.random.default_rng(7).integers(0, problem.k, model.vertices).astype(
            "int32"
        )

    folder = tmp_path_factory.mktemp("sliced")
    found = {(slices, k): folder / f"{slices} {k}.json" for slices, k in ((4, 2), (2, 3))}
    for (slices, k), path in found.items():
        write_plan(
            "lenet5", (1, 32, 32), Modelling(batch_size=16, slices=slices), k, at_random, path
        )
    return found


def losses_of(file):
    return json.loads(file.read_text())["losses"]


@pytest.mark.full
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_rank_of_a_plan_in_slices(sliced, plans, digits, tmp_path):
    """The same plan goes on to the same bits, others to one device's losses."""
    folder, file, whole = tmp_path / "cut", tmp_path / "cut.json", tmp_path / "whole.json"
    training = ("train", "lenet5", *ON_DIGITS, "--micro-batches", 2)
    here = (*training, "--plan", sliced[4, 2])
    process = started(*here, "--steps", 10**6, "--checkpoint", f"{folder},every=5")
    errors = errors_of_stopped_rank(process, folder)
    assert "hgpart: error: rank 1 was ended by SIGKILL" in errors
    assert not ranks_of(process.pid)
    done = check(checkpoints(folder)[0]).step
    for name in ("2 on 3", "none on 2"):
        shutil.copytree(folder, tmp_path / name)
    end = ("--steps", done + 4, "--resume", "--json", file, "--checkpoint")
    process = started(*here, *end, folder)
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, without_progress(errors)) == (0, "")
    kept = ("--checkpoint", tmp_path / "whole", "--backend", "threads")
    hgpart(*here, *kept, "--steps", done + 4, "--json", whole)
    assert losses_of(file) == losses_of(whole)
    expected = on_one_device(TrainingOptions(min(done + 4, 20), 16, seed=5), digits)
    for name, plan in (("2 on 3", sliced[2, 3]), ("none on 2", plans["coarse"])):
        hgpart(*training, "--plan", plan, *end, tmp_path / name, "--backend", "threads")
        assert losses_of(file)[:done] == losses_of(whole)[:done]
        assert losses_of(file) == pytest.approx(losses_of(whole), rel=1e-4)
        assert losses_of(file)[:20] == pytest.approx(expected.losses, rel=1e-4)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stopped_rank_of_a_plan_in_slices_is_not_waited_for(sliced, tmp_path):
    folder = tmp_path / "checkpoints"
    process = started(
        *("train", "lenet5", "--plan", sliced[4, 2], *ON_DIGITS, "--timeout", 15),
        *("--steps", 10**6, "--checkpoint", f"{folder},every=1"),
    )
    errors = errors_of_stopped_rank(process, folder, signal.SIGSTOP)
    assert re.search(r"^hgpart: error: rank 1 is (silent|gone, or stopped)", errors, re.MULTILINE)
    assert not ranks_of(process.pid)


@pytest.mark.full
@pytest.mark.long
def test_torchrun_trains_a_plan_in_slices(sliced, tmp_path):
    file, threads = tmp_path / "processes.json", tmp_path / "threads.json"
    training = ("train", "lenet5", "--plan", sliced[2, 3], *ON_DIGITS, "--steps", 4)
    states = [path.with_suffix(".pt") for path in (file, threads)]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 3)
    command = (sys.executable, *torchrun, "-m", "hgpart", *training, "--json", file)
    command += ("-o", states[0])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    hgpart(*training, "--backend", "threads", "--json", threads, "-o", states[1])
    assert losses_of(file) == losses_of(threads)
    with opened_weights(states[0]) as gathered, opened_weights(states[1]) as held:
        assert sorted(gathered) == sorted(held)
        assert all(torch.equal(gathered[name], held[name]) for name in held)


# ------------------------------------------------------------------ mistakes


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--resume"], 3, "--resume needs --checkpoint FOLDER"),
        (["--optimizer", "rmsprop"], 3, "optimizer 'rmsprop': accepted are sgd and adam"),
        (["--dtype", "int8"], 3, "dtype 'int8': accepted are float32, float64, bfloat16"),
        (
            ["--amp", "float16"],
            3,
            "--amp float16: accepted is bfloat16; float16 needs a scaled loss",
        ),
        (["--backend", "mpi"], 3, "backend 'mpi': accepted are gloo, nccl, threads"),
        (["--devices", "cpu,cpu,cpu"], 3, "accepted are one for all and one for each of 2 parts"),
        (["--devices", "tpu"], 13, "tpu"),
        (
            ["--data", "mnist"],
            3,
            "data 'mnist': accepted are synthetic, digits, shapes, imagefolder",
        ),
        (["--data", "imagefolder:/none"], 3, "there is no such folder"),
        (["--batch-size", "2000", "--data", "digits"], 3, "accepted is 1 to 1442"),
        (["--lr", "-1"], 3, "lr -1.0: accepted is a number from 0"),
        (["--lr", "fast"], 3, "--lr fast: accepted is a number"),
        (["--lr", "0.1,warmup=x"], 3, "warmup=x: accepted is a number of steps, or of epochs as"),
        (["--lr", "0.1,schedule=step"], 3, "rate 'step': accepted are constant and cosine"),
        (["--loss", "mse"], 3, "loss 'mse': accepted "),
        (["--loss", "cross-entropy,smoothing=1"], 3, "smoothing 1.0: accepted is a number from 0"),
        (["--until", "0.9"], 3, "--until 0.9: accepted is KEY=VALUE, as in accuracy=0.9"),
        (["--until", "accuracy=2"], 3, "until accuracy 2.0: accepted is 0 to 1"),
        (["--until", "val-accuracy=1"], 3, "until val-accuracy needs validation samples, and"),
        (["--steps", "-1"], 3, "--steps -1: accepted is a number of steps, or of epochs as in"),
        (["--lr", "1e308"], 3, "lr 1e+308: accepted is a number from 0 to 1e+30"),
        (["--checkpoint", "x,every=0"], 3, "every 0 steps: accepted is 1 or more"),
        (["--unit", "bits"], 3, "unit 'bits': accepted are MB"),
        (["--plan", "none.json"], 6, "can't read none.json"),
        (["--memory", "1GB"], 3, "--memory with --plan, which says that: accepted is one of them"),
        (
            ["--devices", "4"],
            3,
            "--devices 4 with --plan, which says that: accepted is one of them",
        ),
        (["--json", "none/figures.json"], 11, "there is no folder"),
        (["-o", "none/trained.pt"], 11, "there is no folder"),
        (["--weights", "none.pt"], 15, "none.pt"),
    ],
)
def test_mistakes_are_one_line(options, status, message, plans, capsys):
    given = [
        "train",
        "lenet5",
        "--plan",
        plans["coarse"],
        "--steps",
        1,
        "--backend",
        "threads",
        *options,
    ]
    assert run([str(argument) for argument in given]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hgpart: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


MADE_HERE = "train", "lenet5", "--backend", "threads", "--steps", "1", "--batch-size", "2"


@pytest.mark.full
@pytest.mark.long
def test_a_plan_is_made_within_memory(capsys):
    training = MADE_HERE
    assert run([*training, "--devices", "2", "--memory", "30MB"]) == 0
    captured = capsys.readouterr()
    assert re.search(
        r"^Plan: 2 devices.*; a step needs most memory on .* of 30 MB$", captured.err, re.M
    )
    assert "lenet5 on synthetic, 1 step of 2 samples" in captured.out
    for options, status, message in (
        (("--devices", "2", "--memory", "2"), 8, "no plan for 2 devices of 2 B was found: the one"),
    ):
        assert run([*training, *options]) == status
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("hgpart: error: ")
        assert message in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        *(
            (given, 3, f"no --plan given, but --devices {given[-1] if given else 'cpu'}: accepted")
            for given in ((), ("--devices", "0"), ("--devices", "-1"), ("--devices", "cpu"))
        ),
        (("--devices", "2", "--memory", "x"), 3, "memory 'x': accepted is a number with a unit"),
        (("--devices", "2,2"), 13, "device '2': accepted are cpu, cuda and cuda:N"),
        (("--devices", "2", "--batch-size", "0"), 3, "batch size 0: accepted is 1 or more"),
        (("--devices", "2", "--lr", "abc"), 3, "--lr abc: accepted is a number"),
        (("--devices", "2", "--loss", "foo"), 3, "loss 'foo': accepted "),
        (("--devices", "2", "--steps", "x"), 3, "--steps x: accepted is a number of steps"),
        (("--devices", "2", "--until", "3"), 3, "--until 3: accepted is KEY=VALUE"),
        (("--devices", "2", "--micro-batches", "2,norms=x"), 3, "norms 'x': accepted are"),
        (("--devices", "2", "--schedule", "turns"), 3, "--schedule turns without --plan: accepted"),
        (
            ("--devices", "2", "--memory", "2MB", "--optimizer", "bogus"),
            3,
            "optimizer 'bogus': accepted are sgd and adam",
        ),
    ],
)
def test_mistakes_are_found_before_a_plan_is_searched(options, status, message, capsys):
    """A search of minutes came first, or a traceback, or a training on one device."""
    with patch("hgpart.cli.named_model.NamedModel", side_effect=AssertionError):
        assert run([*MADE_HERE, *options]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--way", "ps"), "way 'ps': accepted are ps-sync and ps-async"),
        (("--way", "ps-async,pull=2"), "--way pull=2: accepted are servers=, shards=, fetch="),
        (("--way", "ps-sync,push=2"), "ps-sync with fetch=, push= or staleness=: accepted are"),
        (("--way", "ps-sync", "--memory", "2GB"), "--memory 2GB with --way ps-sync: accepted is"),
        (("--way", "ps-sync", "--backend", "threads"), "--backend threads with --way ps-sync: "),
        (("--way", "ps-sync", "--devices", "cpu"), "--devices cpu with --way ps-sync: accepted is"),
        (("--way", "ps-sync", "--batch-size", "1"), "--batch-size 1 with 2 workers, which have a"),
    ],
)
def test_mistakes_about_parameter_servers(options, message, capsys):
    assert run(["train", "lenet5", "--devices", "2", *options]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err and captured.err.count("\n") == 1


@pytest.mark.full
@pytest.mark.long
def test_parameter_servers_write_what_they_trained(tmp_path, capfd):
    """Weights of the best epoch come from the servers; the first process may hold none."""
    files = {
        name: tmp_path / name for name in ("trained.pt", "log.csv", "figures.json", "page.html")
    }
    trained, log, figures, page = files.values()
    way = "ps-async,servers=2,shards=round-robin,push=2,fetch=2,staleness=3"
    written = "-o", trained, "--log", log, "--json", figures, "--html", page
    how = "--steps", "3ep", "--optimizer", "adam", "--lr", 0.003
    hgpart("train", "lenet5", "--way", way, "--devices", 2, *ON_DIGITS, *how, *written)
    out, _ = capfd.readouterr()
    assert "ps-async of 2 workers, 2 servers, parameters in turn, fetch every 2 steps" in out
    found = json.loads(figures.read_text())
    steps, volume = found["steps"], found["volume_bytes"]
    assert volume == 2 * 4 * 61706
    assert found["forward_bytes"] == found["backward_bytes"] == steps // 2 * volume
    assert found["accuracy"] > 0.8
    assert [part["device"] for part in found["parts"]] == ["cpu", "cpu", "server", "server"]
    assert len(log.read_text().splitlines()) == steps + 1
    assert page.read_text().startswith("<!doctype html>")
    model = load_model("lenet5")[0]
    model.load_state_dict(torch.load(trained))
    data = load_data("digits", (1, 32, 32), 10, seed=5)
    assert accuracy(Learner(model), data, 16) == max(found["accuracies"])


@pytest.mark.full
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("rank", [1, 2])
def test_a_killed_worker_or_server_ends_all(rank):
    settings = "--devices", 2, "--steps", 10**6, "--batch-size", 2
    process = started("train", "lenet5", "--way", "ps-async", *settings)
    try:
        while "loss" not in process.stderr.readline():
            assert process.poll() is None
        os.kill(ranks_of(process.pid)[rank], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 14
    assert f"hgpart: error: rank {rank} was ended by SIGKILL" in errors


DETECTORS = """
from torch import nn

class Detector(nn.Sequential):
    def forward(self, x):
        return super().forward(x).flatten(2).transpose(1, 2)  # boxes x scores of each

def detector():
    return Detector(nn.Conv2d(1, 10, 3))
"""


MISSING = [
    (["--devices", "gpu"], 13, "device 'gpu': accepted are cpu, cuda and cuda:N"),
    (["--devices", "cpu,cuda:7"], 13, "device cuda:7 is not there: this machine has 0 GPUs"),
    (["--weights", "none.pt"], 15, "none.pt: no weights can be read: No such file"),
    (["--weights", "{folder}/other.pt"], 13, "the state lacks "),
    (["--data", "digits"], 10, "--data digits needs scikit-learn, not installed here: pip"),
    (["--data", "imagefolder:none"], 3, "imagefolder:none: there is no such folder"),
    (["--data", "digits", "--batch-size", 2000], 3, "accepted is 1 to 1442"),
    (["{folder}/models.py:detector"], 14, "float32 numbers, 2 x 900 x 10: accepted are"),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("command", "options", "status", "said"),
    [
        *(("train", *one) for one in MISSING),
        *(("run", *one) for one in MISSING if one[1] in (13, 15)),  # it has no other needs
    ],
)
def test_what_is_needed_is_looked_for_before_processes_start(
    command, options, status, said, plans, capsys, monkeypatch, tmp_path
):
    """Each process failed by itself, a minute later; boxes were trained as classes."""
    (tmp_path / "models.py").write_text(DETECTORS)
    torch.save({"other": torch.zeros(2)}, tmp_path / "other.pt")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    if status == 10:
        monkeypatch.setitem(sys.modules, "sklearn", None)
    given = [command, "--plan", plans["coarse"], *options]
    with patch("hgpart.cli.placing.start_ranks", side_effect=AssertionError):
        assert run([str(argument).format(folder=tmp_path) for argument in given]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_plan_of_another_model_is_refused(plans, capsys):
    given = [
        "train",
        "resnet18",
        "--plan",
        str(plans["coarse"]),
        "--steps",
        "1",
        "--backend",
        "threads",
    ]
    assert run(given) != 0
    assert capsys.readouterr().err.count("\n") == 1


def test_a_log_is_a_table_or_a_board(plans, tmp_path, capsys, monkeypatch):
    training = ("train", "lenet5", "--plan", plans["coarse"], "--backend", "threads", "--steps", 2)
    hgpart(*training, "--batch-size", 4, "--log", tmp_path / "log.csv")
    assert (tmp_path / "log.csv").read_text().count("\n") == 3
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    capsys.readouterr()
    for name, status, message in (
        ("board", 10, "--log FOLDER needs tensorboard, not installed here: pip install -c con"),
        ("none/log.csv", 11, "there is no folder"),
    ):
        assert run([*map(str, training), "--log", str(tmp_path / name)]) == status
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert message in said.err


def test_figures_can_be_printed_alone(plans, capsys):
    given = ["--steps", 2, "--batch-size", 4, "--backend", "threads", "--json", "-"]
    hgpart("train", "lenet5", "--plan", plans["coarse"], *given)
    shown = json.loads(capsys.readouterr().out)
    assert shown["data"] == "synthetic"
    assert shown["accuracy"] is None
    assert len(shown["losses"]) == 2
