"""hgpart transform, and MODEL+kind:parts wherever a model is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hgpart import load_model
from hgpart.cli import run

CELLS = """
from torch import nn

from hgpart.zoo.architectures.inception_resnet_v2 import ScaledResidual


def net():
    def cell():
        return ScaledResidual(4, 0.5, nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1), width=4)

    layers = nn.Conv2d(1, 4, 1), cell(), cell(), nn.Flatten(), nn.Linear(4 * 36, 10)
    return nn.Sequential(*layers), (1, 6, 6)


def shapeless():
    return net()[0]


class Undecided(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


def untraceable():
    return Undecided(), (1, 6, 6)
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "cells.py").write_text(CELLS)
    return f"{tmp_path}/cells.py:net"


@pytest.mark.full
@pytest.mark.long
def test_what_it_writes_is_a_model(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, wanted = tmp_path / "made.py", f"{spec}+split:2"
    assert run(["transform", wanted, "-o", str(file)]) == 0
    said = capsys.readouterr().out
    assert "1           2   4 x 6 x 6   1, 2      4 channels in 2 parts" in said
    assert "Parameters: 1,538 -> 1,506 (-2.1%)" in said
    made, shape = load_model(f"{file}:model", seed=3)
    named, same = load_model(f"{spec}+split:2", seed=3)
    assert shape == same == (1, 6, 6)
    assert made.state_dict().keys() == named.state_dict().keys()
    x = torch.randn(2, 1, 6, 6)
    assert torch.equal(made(x), named(x))
    other, _ = load_model(f"{spec}+split:2", seed=4)
    weights = [model.get_parameter("1.part_1.from_2.conv2d.weight") for model in (made, other)]
    assert not torch.equal(*weights)
    before = sorted(tmp_path.iterdir())
    assert run(["transform", f"{wanted}+parallel:2"]) == 0
    assert run(["transform", wanted]) == 0
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("kind", ["split", "parallel"])
def test_a_plan_it_writes_is_that_of_the_strategy(
    kind: str, spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, same = tmp_path / "plan.json", tmp_path / "same.json"
    assert run(["transform", f"{spec}+{kind}:2", "-o", str(plan)]) == 0
    said = capsys.readouterr().out
    assert f"Next: hgpart run {spec}+{kind}:2 --plan {plan} --backward" in said
    assert "\n\n2 devices, each part on one, all else on the first: " in said
    wanted = ["--k", "2", "--way", "transformed-parts", "-o", str(same)]
    assert run(["partition", f"{spec}+{kind}:2", *wanted]) == 0
    written, partitioned = (json.loads(file.read_text()) for file in (plan, same))
    del partitioned["schedule"]  # simulated by partition
    assert written == partitioned
    assert run(["verify", f"{spec}+{kind}:2", "--plan", str(plan)]) == 0


@pytest.mark.full
@pytest.mark.long
def test_a_transformed_model_is_planned_placed_and_trained_by_its_name(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, plan = f"{spec}+split:2", tmp_path / "plan.json"
    assert run(["partition", model, "--k", "2", "--eps", "1", "-o", str(plan)]) == 0
    assert json.loads(plan.read_text())["model"] == model
    assert run(["show", str(plan)]) != 0  # it has code called, as the model without does
    assert "--trust" in capsys.readouterr().err
    assert run(["verify", model, "--plan", str(plan)]) == 0
    wanted = ["--data", "digits", "--steps", "2", "--backend", "threads", "--json", "-"]
    assert run(["train", model, "--plan", str(plan), *wanted]) == 0


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("cells.py:net", [], "names no change: accepted are +parallel:P"),
        ("cells.py:net+split:2", ["-o", "x.txt"], "or a plan.json"),
        ("cells.py:net+split:2", ["-o", "x.json", "--stages", "1"], "with --stages: a plan is of"),
        ("cells.py:net+split:2", ["-o", "x.json", "--unequal"], "with --unequal: a plan is of"),
        ("cells.py:net+halves:2", [], "accepted are parallel"),
        ("cells.py:net+split:9", [], "4 channels are fewer than 9 parts"),
        ("cells.py:net+parallel:3", [], "fewer than 3"),
        ("cells.py:untraceable+split:2", [], "can't trace Undecided"),
        ("lenet5+split:2", [], "residual cells"),
        ("cells.py:net+halves:2+split:2", [], "'halves'"),
        ("cells.py:shapeless+split:2+split:2", [], "shape"),
    ],
)
def test_what_cannot_be_is_refused_by_one_line(
    model: str,
    options: list[str],
    says: str,
    spec: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = model if model.startswith("lenet5") else f"{tmp_path}/{model}"
    assert run(["transform", source, *options]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
