"""Slices of the batch on the command line: plans, files of other partitioners, and mistakes."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import hgpart
from hgpart.cli import run
from hgpart.hypergraph.formats import read_hmetis, read_partition, read_patoh
from hgpart.hypergraph.metrics import communication_volume, part_loads

FAST = ["lenet5", "--k", "2", "--effort", "0"]
SLICED = ["partition", *FAST, "--slices", "3", "--batch-size", "8"]
GRAINS = [pytest.param("coarse", marks=pytest.mark.full), "fine"]


def lines_of(capsys):
    return capsys.readouterr().out.splitlines()


def failed(arguments, status, capsys):
    """What is said of a mistake: one line."""
    assert run(arguments) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err.removeprefix("hgpart: error: ").rstrip("\n")


@pytest.fixture(scope="module", params=GRAINS)
def files(request, tmp_path_factory):
    """A plan and a partition file of three slices of 2, 3 and 3 samples, and their figures."""
    folder = tmp_path_factory.mktemp("slices")
    written = {name: str(folder / name) for name in ("plan.json", "parts.txt", "figures.json")}
    plan, parts, figures = written.values()
    files = ["-o", plan, "--write-partition", parts, "--json", figures]
    assert run([*SLICED, "--modelling", f"grain={request.param}", *files]) == 0
    return folder, ["--modelling", f"grain={request.param}", "--slices", "3", "--batch-size", "8"]


def test_a_plan_is_shown_again(files, capsys):
    folder, _ = files
    assert run(["show", str(folder / "plan.json"), "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    made = json.loads((folder / "figures.json").read_text())
    for name in ("seconds",):
        shown.pop(name), made.pop(name)
    assert shown == made
    assert made["slices"] == 3
    assert made["step_bytes"] == (
        2 * made["volume_bytes"] - made["maps_forward_bytes"] + made["maps_backward_bytes"]
    )


@pytest.mark.parametrize("file_format", ["patoh", "hmetis"])
def test_other_partitioners_read_and_write_all_slices(files, file_format, capsys):
    folder, options = files
    graph, parts = folder / f"graph.{file_format}", folder / "parts.txt"
    assert run(["export", "lenet5", *options, "-o", str(graph), "--format", file_format]) == 0
    hypergraph = (read_patoh if file_format == "patoh" else read_hmetis)(graph)
    found = read_partition(parts, hypergraph.vertices, 2)
    capsys.readouterr()
    assert run(["partition", "lenet5", *options, "--partition", str(parts), "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    made = json.loads((folder / "figures.json").read_text())
    assert shown["volume_bytes"] == made["volume_bytes"]
    assert shown["volume_bytes"] == communication_volume(hypergraph, found, 2)
    loads = part_loads(hypergraph, found, 2)
    assert [part["work"] * 8 for part in shown["parts"]] == pytest.approx(loads.tolist())
    assert shown["parts"] == made["parts"]
    assert [layer["tasks_by_part"] for layer in shown["layers"]] == [
        layer["tasks_by_part"] for layer in made["layers"]
    ]


def test_a_partition_file_of_another_number_of_slices(files, capsys):
    folder, options = files
    job = ["partition", "lenet5", *options]
    parts = ["--partition", str(folder / "parts.txt")]
    for slices in ("1", "2", "4"):
        said = failed([*job, "--slices", slices, *parts], 6, capsys)
        assert re.search(r" has \d+ parts, expected \d+: accepted with --slices 3$", said)
    few = failed([*job, "--batch-size", "2", "--slices", "2", *parts], 6, capsys)
    assert "after the last of" in few
    plan = ["--partition", str(folder / "plan.json")]
    said = failed([*job, *plan], 6, capsys)
    assert said.endswith("plan.json is a plan, expected a partition file: hgpart show prints plans")


def test_a_plan_of_other_slices_than_its_parts(files, tmp_path, capsys):
    text = (files[0] / "plan.json").read_text()
    assert '"slices": 3' in text
    other = tmp_path / "plan.json"
    for slices, status, said in (
        (
            '"slices": 2',
            12,
            r"plan.json has parts for \d+ blocks, .* in 2 slices of the batch",
        ),
        (
            '"slices": 1',
            12,
            r"plan.json has parts for \d+ blocks, expected one for each of \d+$",
        ),
        ('"slices": 9', 6, "slices 9: accepted is a whole number from 1 to 8, for a batch of 8$"),
        ('"slices": 0', 6, 'found "slices": 0'),
    ):
        other.write_text(text.replace('"slices": 3', slices))
        assert re.search(said, failed(["show", str(other)], status, capsys))


def said_by(arguments, capsys):
    """What a command that is to succeed writes as JSON."""
    assert run([*map(str, arguments), "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module", params=GRAINS)
def divided(request, tmp_path_factory):
    """A plan in which slices do not lie alike, and its figures."""
    folder = tmp_path_factory.mktemp("divided")
    asked = [
        "--slices",
        "3",
        "--batch-size",
        "9",
        "--eps",
        "0.06",
        "--modelling",
        f"grain={request.param}",
    ]
    files = ["-o", str(folder / "plan.json"), "--json", str(folder / "figures.json")]
    assert run(["partition", *FAST, *asked, *files]) == 0
    plan = hgpart.files.load_plan(folder / "plan.json")
    assert len(np.unique(plan.parts.reshape(3, -1), axis=0)) > 1
    return folder


def test_a_plan_is_verified_and_run(divided, capsys):
    folder = divided
    made = json.loads((folder / "figures.json").read_text())
    plan = ["lenet5", "--plan", folder / "plan.json"]
    options = ["--batch-size", 9, "--schedule", "greedy"]
    found = said_by(["verify", *plan, *options, "--dtype", "float32"], capsys)
    assert found["forward_bytes"] == made["volume_bytes"]
    ran = said_by(["run", *plan, "--steps", 2, "--backward", "--backend", "threads"], capsys)
    assert ran["as_planned"]
    assert ran["forward_bytes"] + ran["backward_bytes"] == 2 * made["step_bytes"]
    inference = said_by(["run", *plan, "--steps", 2, "--backend", "threads"], capsys)
    assert inference["as_planned"]
    assert inference["forward_bytes"] == 2 * made["maps_forward_bytes"]
    assert inference["uncounted_bytes"] == 0
    turns = ["--steps", 5, "--backward", "--schedule", "turns,in-flight=2"]
    in_turns = said_by(["run", *plan, *turns, "--backend", "threads"], capsys)
    assert in_turns["as_planned"]
    assert in_turns["forward_bytes"] == in_turns["planned_forward_bytes"] > 0


@pytest.mark.full
@pytest.mark.long
def test_inference_in_processes_sends_maps_alone(divided, monkeypatch, capsys, tmp_path):
    """Weights went once, before the passes that count; of gradients there is nothing."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made, file = json.loads((divided / "figures.json").read_text()), tmp_path / "found.json"
    steps = ["--steps", "3", "--json", str(file)]
    assert run(["run", "lenet5", "--plan", str(divided / "plan.json"), *steps]) == 0
    found = json.loads(file.read_text())
    assert found["forward_bytes"] == 3 * made["maps_forward_bytes"] > 0
    assert (found["backward_bytes"], found["uncounted_bytes"]) == (0, 0)
    assert found["as_planned"]


@pytest.mark.full
def test_slices_of_a_plan_for_inference_need_nothing_of_each_other(tmp_path, capsys):
    plan = str(tmp_path / "plan.json")
    asked = ["--slices", "2", "--batch-size", "8", "--modelling", "training=no"]
    assert run(["partition", *FAST, *asked, "-o", plan]) == 0
    capsys.readouterr()
    found = said_by(["run", "lenet5", "--plan", plan, "--steps", 2, "--backend", "threads"], capsys)
    assert found["as_planned"]
    assert (found["forward_bytes"], found["backward_bytes"], found["uncounted_bytes"]) == (0, 0, 0)
    assert found["samples_per_second"] > 0
    verified = ["verify", "lenet5", "--plan", plan, "--batch-size", 8, "--dtype", "float32"]
    assert said_by(verified, capsys)["passed"]


@pytest.mark.full
@pytest.mark.long
def test_training_goes_on_by_another_plan(divided, tmp_path, capsys):
    """With other slices, or none, on another number of parts; the loss is that of one device."""
    other, whole = str(tmp_path / "other.json"), str(tmp_path / "whole.json")
    three = ["lenet5", "--k", "3", "--effort", "0", "--eps", "0.3"]
    assert run(["partition", *three, "--slices", "2", "--batch-size", "8", "-o", other]) == 0
    assert run(["partition", *FAST, "--batch-size", "8", "-o", whole]) == 0
    capsys.readouterr()
    training = ["train", "lenet5", "--data", "digits", "--batch-size", "8", "--backend", "threads"]
    expected = said_by([*training, "--plan", whole, "--steps", 4], capsys)["losses"]
    for steps, plan in ((1, divided / "plan.json"), (2, other), (3, whole), (4, other)):
        kept = ["--checkpoint", tmp_path / "checkpoints", "--resume"]
        found = said_by([*training, "--plan", plan, "--steps", steps, *kept], capsys)
        assert found["losses"] == pytest.approx(expected[:steps], rel=1e-5)


NORMED = """
from torch import nn

def net():
    first = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
    return nn.Sequential(*first, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 144, 10))
"""


@pytest.mark.full
@pytest.mark.long
def test_norms_of_the_batch(tmp_path, capsys):
    (tmp_path / "models.py").write_text(NORMED)
    net, plan = f"{tmp_path / 'models.py'}:net", tmp_path / "plan.json"
    asked = ["--k", 2, "--effort", 0, "--eps", 0.1, "--input-shape", "3,16,16"]
    asked += ["--slices", 2, "--batch-size", 8, "--modelling", "norms=batch"]
    made = said_by(["partition", net, *asked, "-o", plan], capsys)
    assert made["statistics_bytes"] > 0
    options = ["--batch-size", 8, "--schedule", "greedy"]
    for more in ([], ["--micro-batches", "2,norms=batch"]):
        found = said_by(["verify", net, "--plan", plan, *options, *more], capsys)
        assert found["passed"]
    ran = said_by(
        ["run", net, "--plan", plan, "--steps", 2, "--backward", "--backend", "threads"], capsys
    )
    assert ran["as_planned"]
    assert ran["forward_bytes"] == 2 * made["volume_bytes"]
    assert ran["forward_bytes"] + ran["backward_bytes"] == 2 * made["step_bytes"]


@pytest.mark.full
def test_what_is_refused_of_slices(divided, capsys):
    plan = str(divided / "plan.json")
    training = ["train", "lenet5", "--plan", plan, "--data", "digits", "--steps", "1"]
    said = failed([*training, "--schedule", "async,stash=no"], 3, capsys)
    assert said.startswith("batches in flight without stash by a plan over slices")
    few = ["run", "lenet5", "--plan", plan, "--backend", "threads", "--batch-size", "1"]
    assert "has no sample: accepted are larger" in failed(few, 13, capsys)


@pytest.mark.parametrize(
    ("slices", "status", "said"),
    [
        ("0", 2, "'0': write a whole number, at least 1, or auto"),
        ("-1", 2, "'-1': write a whole number, at least 1, or auto"),
        ("2.5", 2, "'2.5': write a whole number, at least 1, or auto"),
        ("x", 2, "'x': write a whole number, at least 1, or auto"),
        ("9", 3, "slices 9: accepted is a whole number from 1 to 8, for a batch of 8"),
    ],
)
def test_numbers_that_slices_can_not_have(slices, status, said, capsys):
    arguments = ["partition", *FAST, "--batch-size", "8", f"--slices={slices}"]
    assert said in failed(arguments, status, capsys)


def test_who_takes_no_slices(capsys):
    assert "takes no slices" in failed([*SLICED, "--backend", "exact"], 3, capsys)
    export = ["export", "lenet5", "--slices", "auto", "-o", "graph"]
    assert "'auto': write a whole number, at least 1; " in failed(export, 2, capsys)


def test_a_batch_of_one_is_one_slice(capsys):
    one = ["partition", *FAST, "--batch-size", "1"]
    assert run([*one, "--slices", "auto"]) == 0
    found = lines_of(capsys)
    assert found.pop(1) == "1 slice: a batch of 1 sample can't be divided"
    assert run(one) == 0
    assert lines_of(capsys)[:-2] == found[:-2]  # but the seconds


def test_what_slices_would_save_is_one_line(capsys):
    large = [*FAST, "--batch-size", "256"]
    assert run(["partition", *large]) == 0
    found = lines_of(capsys)
    assert re.fullmatch(
        r"With the batch in slices at most 0\.\d+ MB would travel each way of a training step: "
        "--slices auto",
        found.pop(1),
    )
    assert run(["partition", *FAST, "--batch-size", "8"]) == 0
    few = lines_of(capsys)
    assert few[1] == "Slices of the batch were not tried: --slices auto may send less"
    assert run(["partition", *large, "--modelling", "training=no"]) == 0
    inferred = lines_of(capsys)
    if " times by the same simulation: " in found[4]:
        found.pop(4)
    seconds = [lines.pop(3).partition(" takes about ")[0] for lines in (found, inferred)]
    assert seconds == ["A training step", "A forward pass"]
    assert inferred[:-2] == found[:-2]


def test_one_slice_is_no_proof(capsys):
    assert run(["partition", *FAST, "--batch-size", "2", "--slices", "auto"]) == 0
    said = lines_of(capsys)[1]
    assert said == "1 slice of the batch: no other number that was tried sends less"


def test_work_is_that_of_the_model_whatever_the_slices(capsys):
    work = []
    for options in (
        ["--slices", "1"],
        ["--slices", "3"],
        ["--slices", "3", "--modelling", "training=no"],
    ):
        assert run(["partition", *FAST, "--batch-size", "8", *options, "--json", "-"]) == 0
        shown = json.loads(capsys.readouterr().out)
        work.append(sum(part["work"] for part in shown["parts"]))
        assert shown["max_work"] == pytest.approx(max(part["work"] for part in shown["parts"]))
        layers = [sum(layer["work_by_part"]) for layer in shown["layers"]]
        assert sum(layers) == pytest.approx(work[-1])
        assert shown["layerwise_max_work"] == 298_920  # both convolutions'
    assert work == pytest.approx([416_520] * 3)


@pytest.mark.full
def test_bands_beside_all_that_the_command_looks_at(capsys, tmp_path):
    """Ways that it compares with, which have none, were taken for ways over bands."""
    plan = tmp_path / "bands.json"
    banded = ["partition", "lenet5", "--k", "2", "--bands", "4", "--effort", "0"]
    made = said_by([*banded, "--batch-size", "4", "-o", plan], capsys)
    assert (made["bands"], made["slices"]) == (4, 1)
    assert {tile for group in made["layers"][1]["tiles"] for tile in group["tiles"]} == {*range(4)}
    assert said_by([*banded, "--batch-size", "4", "--slices", "auto"], capsys)["feasible"]
    assert run(["show", str(plan)]) == 0
    assert "Next: hgpart run " in capsys.readouterr().out
    assert run(["verify", "--plan", str(plan)]) == 0
    assert "PASS" in capsys.readouterr().out
    assert run(["partition", "lenet5", "--k", "2", "--way", "spatial"]) == 0
    assert "2 bands of rows" in capsys.readouterr().out
    for more, said in (
        (["--way", "spatial"], "--bands 4 can't be combined with --way spatial"),
        (["--objective", "time"], "--bands 4 can't be combined with --objective time"),
        (
            ["--backend", "exact"],
            "bands of rows (4) with backend 'exact': accepted is 1",
        ),
    ):
        assert said in failed([*banded, *more], 3, capsys)
    fine = [*banded, "--modelling", "grain=fine"]
    assert said_by([*fine, "-o", plan], capsys)["bands"] == 4
    assert run(fine) == run(["show", str(plan)]) == 0
    assert "Next:" not in capsys.readouterr().out
    assert "a fine-grain plan over 4 bands" in failed(["verify", "--plan", str(plan)], 13, capsys)
    assert "--bands 4 can't be given in compare" in failed(
        ["compare", "lenet5", "--k", "2", "--bands", "4"], 3, capsys
    )
