"""`hgpart verify`: PASS and FAIL, its figures, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from hgpart import cli
from hgpart.errors import ArgumentError, RunError
from hgpart.partition.stages import solve
from hgpart.placement.held_state import HeldState
from hgpart.plan import load_plan


def verify(*arguments):
    return cli.run(["verify", "lenet5", *map(str, arguments)])


def fails(capfd, status, said, code):
    """The command failed with one line that says it."""
    assert code == status
    error = capfd.readouterr().err
    assert error.startswith("hgpart: error: ")
    assert error.count("\n") == 1
    assert said in error


def test_it_passes(capfd):
    assert verify("--k", 4) == 0
    out, err = capfd.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "PASS: lenet5 in 4 parts computes what the original does"
    assert lines[1] == "grain coarse, partition coarse, seed 0, 2 samples, float64, training"
    for kind in ("outputs", "gradients"):
        row = next(line.split() for line in lines if line.startswith(kind))
        assert float(row[1]) <= float(row[2]) == 1e-10
    for direction in ("forward", "backward"):
        row = next(line.split() for line in lines if line.startswith(direction))
        assert row[1] == row[2]
        assert row[3] == row[4]


@pytest.mark.few(2)
@pytest.mark.parametrize("way", ["random", "horizontal", "layerwise"])
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_other_ways(capfd, grain, way):
    options = ("--modelling", f"grain={grain}", "--way", way, "--batch-size", 3, "--json", "-")
    assert verify("--k", 3, *options) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["passed"] is True
    assert (found["grain"], found["partition"], found["k"]) == (grain, way, 3)
    assert (found["batch_size"], found["training"], found["dtype"]) == (3, True, "float64")
    assert found["failures"] == found["misplaced"] == []
    assert found["forward_bytes"] == found["planned_forward_bytes"] > 0
    assert found["backward_messages"] == found["planned_backward_messages"] > 0
    assert found["outputs_difference"] <= found["outputs_tolerance"] == 1e-10
    assert found["gradients_tolerance_because"] == "for float64"


def test_micro_batches(capfd):
    options = ("--way", "random", "--batch-size", 4, "--schedule", "zero-bubble")
    assert verify("--k", 3, *options, "--micro-batches", 3) == 0
    assert "4 samples in 3 micro-batches (zero-bubble), float64" in capfd.readouterr().out
    assert verify("--k", 3, *options, "--micro-batches", 3, "--json", "-") == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["passed"], found["micro_batches"], found["schedule"]) == (True, 3, "zero-bubble")
    assert verify("--k", 3, *options, "--micro-batches", "3,norms=batch") == 0
    assert "3 micro-batches (zero-bubble, norms of the batch), f" in capfd.readouterr().out
    said = "--schedule async: accepted in verify, which compares one step with the model's, are"
    stream = verify("--k", 3, "--schedule", "async")
    fails(capfd, ArgumentError.exit_status, said, stream)
    said = "5 micro-batches of a batch of 4: accepted are 1 to 4"
    fails(capfd, ArgumentError.exit_status, said, verify("--k", 3, *options, "--micro-batches", 5))


def test_a_plan_in_float32_and_evaluation(capfd, tmp_path):
    plan, figures = tmp_path / "plan.json", tmp_path / "figures.json"
    arguments = ["partition", "lenet5", "--k", "2", "--batch-size", "2", "-o", str(plan)]
    assert cli.run(arguments) == 0
    capfd.readouterr()
    assert verify("--plan", plan, "--dtype", "float32", "--eval", "--json", figures) == 0
    assert capfd.readouterr().out.startswith("PASS: lenet5 in 2 parts")
    found = json.loads(figures.read_text())
    assert (found["training"], found["dtype"]) == (False, "float32")
    assert (found["buffers_tolerance"], found["buffers_tolerance_because"]) == (1e-4, "for float32")
    assert found["forward_bytes"] == load_plan(plan).volume_bytes
    assert verify("--plan", plan) == 0  # in float64, twice the bytes
    assert "PASS" in capfd.readouterr().out


@pytest.mark.few(2)
@pytest.mark.parametrize("options", [[], ["--eval"], ["--dtype", "float32"]])
def test_a_model_without_parameters(capfd, tmp_path, options):
    """No tensor of the model says in which type it computes."""
    file = tmp_path / "pooling.py"
    file.write_text("from torch import nn\nmake = lambda: (nn.AvgPool2d(2), (3, 4, 4))\n")
    wanted = ["--k", "2", "--way", "random", *options]
    assert cli.run(["verify", f"{file}:make", *wanted]) == 0
    assert capfd.readouterr().out.startswith("PASS: ")


def test_ctrl_c_in_the_search_is_no_pass(capfd, monkeypatch):
    def search(*arguments, **options):
        return replace(solve(*arguments, **options), interrupted=True)

    monkeypatch.setattr("hgpart.partition.stages.solve", search)
    assert verify("--k", 2) == 130
    assert capfd.readouterr() == ("", "hgpart: interrupted in the search for a partition\n")


def test_a_broken_placement_fails(capfd, monkeypatch):
    fill = HeldState.fill

    def wrong(self, programs, *others):
        fill(self, programs, *others)
        with torch.no_grad():
            next(programs.parts[0].module.parameters()).mul_(2)

    monkeypatch.setattr(HeldState, "fill", wrong)
    assert verify("--k", 2) == RunError.exit_status
    out, err = capfd.readouterr()
    assert out.startswith("FAIL: lenet5 in 2 parts does not compute what the original does\n")
    assert "  outputs differ by " in out
    assert err.startswith("hgpart: error: lenet5 in its parts is not the original: outputs differ ")
    assert err.count("\n") == 1


@pytest.mark.few(2)
@pytest.mark.parametrize("way", ["random", "layerwise", "horizontal", "coarse"])
def test_slices_of_the_batch(capfd, way):
    options = ("--slices", 2, "--way", way, "--micro-batches", 2, "--json", "-")
    assert verify("--k", 2, *options) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["passed"], found["batch_size"]) == (True, 4)
    assert found["forward_bytes"] == found["planned_forward_bytes"] > 0


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["kahypar", "native"])
def test_slices_by_a_backend(capfd, backend):
    """It was refused at the end, for a batch of 1, which nobody had asked for."""
    assert verify("--k", 2, "--slices", 2, "--backend", backend, "--json", "-") == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["passed"], found["batch_size"]) == (True, 2)
    assert found["partition"] == {"native": "coarse", "kahypar": "coarse-kahypar"}[backend]


def test_arguments(capfd, tmp_path):
    wrong = ArgumentError.exit_status
    fails(capfd, wrong, "neither --k nor --plan given: accepted is one of them", verify())
    both = verify("--k", 2, "--plan", tmp_path / "plan.json")
    fails(capfd, wrong, "both --k and --plan given", both)
    fails(capfd, wrong, "k is 0", verify("--k", 0))
    fails(capfd, wrong, "way 'best': accepted are coarse", verify("--k", 2, "--way", "best"))
    fails(capfd, wrong, "dtype 'half'", verify("--k", 2, "--dtype", "half"))
    fails(capfd, wrong, "grain 'whole'", verify("--k", 2, "--modelling", "grain=whole"))
    fails(capfd, wrong, "--batch-size 0", verify("--k", 2, "--batch-size", 0))
    fails(capfd, wrong, "one for each of 3 parts", verify("--k", 3, "--devices", "cpu,cpu"))
    fails(capfd, wrong, "unit 'KB'", verify("--k", 2, "--unit", "KB"))
