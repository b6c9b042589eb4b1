"""Models with several inputs, integer ones among them, and a loss inside, in all commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hgpart import cli
from hgpart.plan import load_plan

MODELS = """
import torch
from torch import nn
from torch.nn import functional as F


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_image = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.of_depth = nn.Conv2d(1, 4, 3, padding=1)
        self.scores = nn.Conv2d(8, 5, 1)

    def forward(self, image, depth, labels=None, weight=None):
        maps = torch.cat([self.of_image(image), self.of_depth(depth)], 1)
        scores = self.scores(maps)
        if labels is None:
            return scores
        return {"scores": scores, "loss": F.cross_entropy(scores, labels, weight)}


class Summed(Segmenter):
    def forward(self, image, depth, labels):
        return F.cross_entropy(super().forward(image, depth), labels, reduction="sum")


def shaped():
    return Segmenter(), ("image=3,8,8", "depth=1,8,8", "labels=8,8:int64:5")
"""
INPUTS = ["--input-shape", "3,8,8", "--input-shape", "depth=1,8,8"]
INPUTS += ["--input-shape", "labels=8,8:int64:5"]
WRITTEN = ("3,8,8", "depth=1,8,8", "labels=8,8:int64:5")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("models") / "models.py"
    file.write_text(MODELS)
    return str(file)


@pytest.fixture(scope="module")
def plan(models: str) -> str:
    path = str(Path(models).with_name("plan.json"))
    made = ["--k", "2", "--effort", "0", "--eps", "0.5", "--batch-size", "4", "-o", path]
    assert cli.run(["partition", f"{models}:Segmenter", *INPUTS, *made]) == 0
    return path


def fails(capsys: pytest.CaptureFixture[str], line: list[str], status: int, said: str) -> None:
    assert cli.run(line) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hgpart: error: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_plan_keeps_them(models: str, plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_plan(plan).input_shape == WRITTEN
    assert '"input_shape": ["3,8,8", "depth=1,8,8", "labels=8,8:int64:5"]' in Path(plan).read_text()
    assert cli.run(["show", plan, "--model", f"{models}:Segmenter"]) == 0
    assert cli.run(["verify", f"{models}:Segmenter", "--plan", plan, "--json", "-"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out[out.index("\n{") :])
    assert found["passed"] is True
    assert found["forward_bytes"] == found["planned_forward_bytes"] > 0


@pytest.mark.full
@pytest.mark.parametrize("options", [[], ["--backward", "--micro-batches", "2"]])
def test_a_run_draws_them(options: list[str], models: str, plan: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    line = ["run", f"{models}:Segmenter", "--plan", plan, "--steps", "1", "--json", str(file)]
    assert cli.run([*line, *options]) == 0
    assert json.loads(file.read_text())["batch_size"] == 4


@pytest.mark.full
@pytest.mark.parametrize("options", [["--slices", "2"], ["--micro-batches", "2"], ["--eval"]])
def test_a_loss_that_is_a_mean_is_exact_however_the_batch_is_divided(
    options: list[str], models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["verify", f"{models}:Segmenter", *INPUTS, "--k", "2", "--batch-size", "4", *options]
    assert cli.run(line) == 0
    assert capsys.readouterr().out.startswith("PASS")


def test_another_loss_is_exact_whole_and_refused_in_slices(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["verify", f"{models}:Summed", *INPUTS, "--k", "2"]
    assert cli.run(line) == 0
    capsys.readouterr()
    said = "is a loss inside the model that is not a mean over samples: accepted is 1"
    fails(capsys, [*line, "--slices", "2"], 3, said)


def test_a_factory_says_them(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["trace", f"{models}:shaped", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["input_shape"] == ["image=3,8,8", "depth=1,8,8", "labels=8,8:int64:5"]
    assert cli.run(["trace", f"{models}:shaped"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert f"{models}:shaped at image=3,8,8 depth=1,8,8 labels=8,8:int64:5: " in first


def test_commands_that_train_on_images_refuse_them(
    models: str, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"{models}:Segmenter"
    said = "a model with inputs 3,8,8 depth=1,8,8 labels=8,8:int64:5: accepted are models with one"
    fails(capsys, ["train", model, "--plan", plan], 3, f"hgpart train of {said}")
    fails(capsys, ["train", model, *INPUTS, "--devices", "2"], 3, f"hgpart train of {said}")
    fails(capsys, ["bench", model, *INPUTS], 3, f"hgpart bench of {said}")


@pytest.mark.parametrize(
    ("inputs", "status", "said"),
    [
        (["3,8,8", "deep=1,8,8"], 3, "accepted are inputs for Segmenter.forward(image, depth, "),
        (["3,8,8", "image=1,8,8"], 3, "image is an input by name and by position"),
        (["depth=1,8,8", "depth=1,8,8"], 3, "inputs depth, depth: accepted is each name once"),
        (["3,8,8", "depth=1,8,8:int65"], 2, "accepted types are float, int64, int32, uint8, bool"),
        (["3,8,8", "1,8,8", "8,8:uint8:999"], 2, "accepted are 1 to 256 values of uint8"),
    ],
)
def test_inputs_that_it_does_not_take_are_said(
    inputs: list[str], status: int, said: str, models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [word for text in inputs for word in ("--input-shape", text)]
    fails(capsys, ["trace", f"{models}:Segmenter", *line], status, said)
