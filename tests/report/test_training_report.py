"""What is said about a training, where it is not the ordinary."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
from rich.console import Console

from hgpart.execution.records.totals import Timing, Totals, Traffic
from hgpart.report.running import print_contradiction
from hgpart.report.training import TrainingReport, print_training, training_json
from hgpart.run.training.epochs import Epoch
from hgpart.run.training.loop import TrainingResult
from hgpart.run.training.options import TrainingOptions
from hgpart.run.training.scores import Loss


def report(losses, accuracy=None, steps=None, seconds=1.0):
    steps = len(losses) if steps is None else steps
    traffic = Traffic.none(2)
    traffic.forward_bytes[0, 1] = 3_000_000 * steps
    traffic.backward_bytes[1, 0] = 2_000_000 * steps
    timings = (Timing(1.0, 0.5, 1.0, 0.5), Timing())
    speed = 4 * steps / seconds if steps else None
    return TrainingReport(
        model="net",
        data="digits",
        dtype="float32",
        devices=("cpu", "cuda:0"),
        processes=2,
        result=TrainingResult(
            tuple(losses),
            accuracy,
            steps,
            speed,
            Totals(timings, traffic),
            TrainingOptions(len(losses), 4).completed({}),
        ),
        volume_bytes=3_000_000,
        peak_bytes=(7_000_000, 500_000),
    )


def printed(shown, unit="MB"):
    text = io.StringIO()
    print_training(shown, Console(file=text, width=1000), unit)
    return text.getvalue().splitlines()


def test_an_accuracy_on_test_samples_is_said_where_there_is_one():
    shown = report([1.0], accuracy=0.5)
    shown = replace(shown, result=replace(shown.result, test=0.25))
    assert "validation accuracy 50.00 %, test accuracy 25.00 %" in printed(shown)[0]
    assert json.loads(training_json(shown))["test_accuracy"] == 0.25
    assert "test_accuracy" not in json.loads(training_json(report([1.0], accuracy=0.5)))


def test_what_matters_most_comes_first():
    lines = printed(report([2.0, 1.0], accuracy=0.9812, steps=1, seconds=0.5))
    assert lines[0] == "loss 1, validation accuracy 98.12 %, 8.0 samples/s"
    assert lines[1] == ("net on digits, 2 steps of 4 samples, 1 of them before it was resumed")
    assert [line.split() for line in lines if line.startswith(("0 (", "1 ("))] == [
        ["0", "(cpu)", "2.000", "1.000", "33.3", "7.000"],
        ["1", "(cuda:0)", "0.000", "0.000", "-", "0.500"],
    ]
    assert [line.split() for line in lines if line.startswith(("forward", "backward", "the"))] == [
        ["forward", "3.000", "3.000"],
        ["backward", "2.000", "2.000"],
        ["the", "plan's", "volume", "3.000"],
    ]


def test_the_best_epoch_is_said_and_the_rate_if_it_changes():
    shown = report([2.0, 1.0], accuracy=0.5)
    epochs = Epoch(1, 0.1, 0.75), Epoch(2, 0.05, 0.75), Epoch(3, 0.05, 0.5)
    result = replace(shown.result, epochs=epochs, best=epochs[0])
    said = "epochs, the best one 1: validation accuracy 75.00 %"
    assert printed(replace(shown, result=result))[2] == (
        f"3 {said}; learning rate 0.1, 0.05 in the last one"
    )
    figures = json.loads(training_json(replace(shown, result=result)))
    assert figures["accuracies"] == [0.75, 0.75, 0.5]
    assert figures["learning_rates"] == [0.1, 0.05, 0.05]
    assert figures["best_epoch"] == 1
    alike = replace(result, epochs=epochs[:1])
    assert printed(replace(shown, result=alike))[2] == f"1 {said}".replace("epochs", "epoch")


def test_a_users_loss_stands_where_an_accuracy_would():
    shown, loss = report([2.0, 1.0]), Loss("net.py:loss", of_classes=False)
    epochs = Epoch(1, 0.1, 0.75), Epoch(2, 0.1, 0.25), Epoch(3, 0.1, 0.5)
    of_loss = replace(shown.result, epochs=epochs, loss=loss, validation_loss=0.5)
    lines = printed(replace(shown, result=of_loss))
    assert lines[0].startswith("loss 1, validation loss 0.5, ")
    assert lines[2] == "3 epochs, the best one 2: validation loss 0.25"
    figures = json.loads(training_json(replace(shown, result=of_loss)))
    assert figures["validation_losses"] == [0.75, 0.25, 0.5]
    assert (figures["accuracy"], figures["validation_loss"]) == (None, 0.5)


def test_the_curve_has_ten_rows_at_most_and_bars_in_proportion():
    lines = printed(report(np.linspace(4.0, 1.0, 95).tolist()))
    start = lines.index("Loss") + 3
    rows = [line.split() for line in lines[start : start + 10]]
    assert rows[0][0] == "1-9"
    assert rows[-1][0] == "86-95"
    assert len(rows[0][2]) == 40
    assert [len(row[2]) for row in rows] == sorted((len(row[2]) for row in rows), reverse=True)
    assert lines[start + 10] == ""


def test_a_diverged_training_is_still_reported():
    shown = report([1.0, float("inf"), float("nan")])
    figures = json.loads(training_json(shown), parse_constant=lambda name: 1 / 0)
    assert figures["losses"] == [1.0, None, None]
    lines = printed(shown)
    assert lines[0].startswith("loss nan")
    assert any(line.split() == ["3-3", "nan"] for line in lines)


def test_no_steps_are_no_error():
    assert printed(report([], accuracy=0.1))[0] == "no steps, validation accuracy 10.00 %"
    shown = report([1.0], accuracy=0.5, steps=0)
    assert printed(shown)[0] == "loss 1, validation accuracy 50.00 %"
    assert json.loads(training_json(shown))["samples_per_second"] is None


def test_time_against_work_is_said_in_lines_that_fit_with_its_command_whole():
    """The sentence went over any width with its command in it, only where a run was uneven."""
    to = io.StringIO()
    model = "a_folder/with_a_long_name/net.py:make_the_model"
    print_contradiction(Console(file=to, width=60), model, (0.5, 0.5), (1.0, 3.0))
    *sentence, command = to.getvalue().splitlines()
    assert max(map(len, sentence)) <= 60
    assert command == f"  hgpart profile {model} -o times.json"
