"""The log of a training: each step once, through a stop as well."""

from __future__ import annotations

import csv
import sys

import pytest
import torch
from torch import nn

from hgpart.errors import ArgumentError, MissingPackageError
from hgpart.run.learner import Learner
from hgpart.run.training.data import Data, load_data
from hgpart.run.training.log import Log
from hgpart.run.training.loop import train
from hgpart.run.training.options import TrainingOptions
from hgpart.run.training.resuming import Checkpointing

OPTIONS = TrainingOptions(7, 480, lr=0.2, warmup=2, lr_schedule="cosine")  # three steps an epoch


@pytest.fixture(scope="module")
def data():
    return load_data("digits", (1, 8, 8), 10, seed=2)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def logged(path, data, options=OPTIONS, **more):
    result = train(Learner(network()), data, options, log=Log(path, "val_accuracy"), **more)
    return result, rows_of(path)


def test_a_table_has_each_step_and_the_accuracy_after_each_epoch(data, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("an earlier training's\n")
    result, rows = logged(path, data)
    names = ["step", "loss", "lr", "samples_per_second", "val_accuracy"]
    assert list(rows[0]) == names
    assert [int(row["step"]) for row in rows] == [*range(1, 8)]
    assert [float(row["loss"]) for row in rows] == [*result.losses]
    assert [float(row["lr"]) for row in rows] == [0.2 * OPTIONS.factor(step) for step in range(7)]
    assert all(float(row["samples_per_second"]) > 0 for row in rows)
    accuracies = {at: row["val_accuracy"] for at, row in enumerate(rows, 1) if row["val_accuracy"]}
    assert {at: float(text) for at, text in accuracies.items()} == {
        3: result.epochs[0].validation,
        6: result.epochs[1].validation,
    }


@pytest.mark.parametrize("stop", [2, 4, 6])
def test_a_resumed_log_has_no_step_twice_and_none_too_few(stop, data, tmp_path):
    _, expected = logged(tmp_path / "whole.csv", data)
    path, folder = tmp_path / "cut.csv", tmp_path / "checkpoints"

    def pull(step, loss):
        if step == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        logged(path, data, checkpointing=Checkpointing(folder, 2), on_step=pull)
    with path.open("a") as file:
        file.write("7,0.5,0.1")  # a row that the end of the process has cut
    resuming = Checkpointing(folder, 2, resume=True, warn=lambda message: None)
    _, rows = logged(path, data, checkpointing=resuming)
    for row in (*rows, *expected):
        del row["samples_per_second"]
    assert rows == expected


def test_a_log_of_other_columns_is_not_gone_on_with(data, tmp_path):
    path = tmp_path / "log.csv"
    short = TrainingOptions(2, 480)
    logged(path, data, short, checkpointing=Checkpointing(tmp_path / "checkpoints", 2))
    path.write_text("step,loss\n1,0.5\n")
    resuming = Checkpointing(tmp_path / "checkpoints", 2, resume=True)
    with pytest.raises(ArgumentError, match="has the columns 'step,loss': accepted are step,loss,"):
        logged(path, data, TrainingOptions(3, 480), checkpointing=resuming)
    path.unlink()
    _, rows = logged(path, data, TrainingOptions(3, 480), checkpointing=resuming)
    assert [row["step"] for row in rows] == ["3"]


def test_without_validation_the_column_is_empty(data, tmp_path):
    path = tmp_path / "log.csv"
    _, rows = logged(path, Data("some", data.train, None, 10, 0), TrainingOptions(4, 480))
    assert [row["val_accuracy"] for row in rows] == [""] * 4


def test_a_process_that_is_not_the_first_writes_nothing(data, tmp_path):
    learner = Learner(network())
    learner.first = False
    train(learner, data, TrainingOptions(1, 480), log=Log(tmp_path / "log.csv", "val_accuracy"))
    assert not (tmp_path / "log.csv").exists()


def test_what_is_needed_is_looked_for_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingPackageError, match=r"needs tensorboard, .*'\.\[tensorboard\]'"):
        Log(tmp_path / "board", "val_accuracy")
    (tmp_path / "log.txt").touch()
    with pytest.raises(ArgumentError, match=r"log.txt: accepted are FILE\.csv and a folder"):
        Log(tmp_path / "log.txt", "val_accuracy")


def test_a_board_has_what_a_table_has(data, tmp_path):
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed: pip install '.[tensorboard]'",
    )
    folder, checkpoints = tmp_path / "board", tmp_path / "checkpoints"
    for steps, resume in ((4, False), (7, True)):
        log = Log(folder, "val_accuracy")
        options = TrainingOptions(steps, 480)
        result = train(
            Learner(network()), data, options, Checkpointing(checkpoints, 9, resume), log=log
        )
    board = reading.EventAccumulator(str(folder))
    board.Reload()
    losses = board.Scalars("loss")
    assert [event.step for event in losses] == [*range(1, 8)]
    assert [event.value for event in losses] == pytest.approx(result.losses)
    assert [event.step for event in board.Scalars("val_accuracy")] == [3, 6]
