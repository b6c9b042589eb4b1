"""Constraints and plans that exist, on the command line: kept, written, read, refused."""

from __future__ import annotations

import json

import pytest
from builtin_graphs import full_size_graph

from hgpart.cli import run
from hgpart.plan import load_plan, restore

PARTITION = ["partition", "lenet5", "--k", "2", "--effort", "0"]
FILE = {"format": "hgpart constraints 1", "pin": {"fc2": [0, 1], "conv1[0:3]": 1}}


def hgpart(*arguments):
    """Run a command that is to succeed."""
    assert run([str(argument) for argument in arguments]) == 0


def fails(capsys, arguments, status):
    """What a command says that fails with a status."""
    assert run([str(argument) for argument in arguments]) == status
    return capsys.readouterr().err


def test_constraints_are_kept_in_the_plan_and_its_figures(capsys, tmp_path):
    file, plan, figures = (tmp_path / name for name in ("file.json", "plan.json", "figures.json"))
    file.write_text(json.dumps(FILE))
    asked = ("--pin", "input=0", "--no-split", "fc1", "--constraints", file, "--eps", 0.3)
    hgpart(*PARTITION, *asked)
    said = "pin fc2=0,1; pin conv1[0:3]=1; pin input=0; no-split fc1"
    assert f"All 4 constraints are kept: {said}" in capsys.readouterr().out
    hgpart(*PARTITION, *asked, "-o", plan, "--json", figures)
    shown, loaded = json.loads(figures.read_text()), load_plan(plan)
    pins = {"fc2": [0, 1], "conv1[0:3]": [1], "input": [0]}
    assert shown["constraints"] == {"pin": pins, "no_split": ["fc1"]}
    assert (shown["broken"], shown["moved_bytes"]) == ([], None)
    restored = restore(loaded, full_size_graph("lenet5"))
    assert str(restored.problem.constraints) == str(loaded.constraints) == said
    assert restored.feasible


def test_contradictions_and_names_are_refused_in_a_line(capsys, tmp_path):
    pins = ["--pin", "fc1=0", "--pin", "fc1=1", "--pin", "conv1=0"]
    said = fails(capsys, [*PARTITION, *pins], 8)
    assert "contradict each other: pin fc1=0; pin fc1=1; one of these must give way" in said
    assert "no layer 'conv9'" in fails(capsys, [*PARTITION, "--apart", "conv9,fc1"], 3)
    file = tmp_path / "file.json"
    file.write_text('{"format": "hgpart constraints 1",\n "pins": {}}')
    assert "line 2" in fails(capsys, [*PARTITION, "--constraints", file], 6)
    assert "does not keep to" in fails(
        capsys, [*PARTITION, "--pin", "fc2=0", "--pin", "conv1=0", "--way", "layerwise"], 8
    )


@pytest.mark.parametrize("text", ['{"pin": {"fc2": "x"}}', '{"together": ["fc2"]}', '{"apart": 1}'])
def test_files_that_say_something_else_are_refused(capsys, tmp_path, text):
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"format": "hgpart constraints 1", **json.loads(text)}))
    assert "accepted" in fails(capsys, [*PARTITION, "--constraints", file], 6)


def test_ways_that_break_constraints_are_left_out_of_a_comparison(capsys, tmp_path):
    rows = tmp_path / "rows.json"
    ways = "layerwise,data-parallel,coarse"
    pins = ("--pin", "fc2=0", "--pin", "conv1=0")
    hgpart("compare", "lenet5", "--k", 2, "--ways", ways, *pins, "--json", rows)
    hgpart("compare", "lenet5", "--k", 2, "--ways", "coarse", "--pin", "fc2=0", "--eps", 0.3)
    assert "--pin fc2=0 --k 2" in capsys.readouterr().out
    why = {row["strategy"]: row.get("why") for row in json.loads(rows.read_text())["rows"]}
    assert why["coarse"] is None
    assert why["layerwise"] == "layerwise does not keep to pin fc2=0"
    assert "does not keep to" in why["data-parallel"]


def test_a_plan_is_mended_for_fewer_devices(capsys, tmp_path):
    plan, mended, figures = (tmp_path / name for name in ("plan.json", "new.json", "figures.json"))
    hgpart("partition", "lenet5", "--k", 3, "--effort", 0, "--eps", 0.3, "-o", plan)
    start = ("--start", f"{plan},without=0", "--effort", 0.05, "--eps", 0.3)
    hgpart("partition", "lenet5", *start, "-o", mended, "--json", figures)
    assert load_plan(mended).k == 2
    moved = json.loads(figures.read_text())["moved_bytes"]
    assert moved > 0
    capsys.readouterr()
    hgpart("partition", "lenet5", *start, "--move-at-most", f"{moved + 1}")
    assert "of weights change place" in capsys.readouterr().out
    assert "the fewest are" in fails(
        capsys, ["partition", "lenet5", *start, "--move-at-most", "1B"], 8
    )
    twice = ["partition", "lenet5", "--start", f"{plan},without=0+0", "--effort", "0"]
    hgpart(*twice, "--eps", 0.3, "-o", mended)
    assert load_plan(mended).k == 2
    for arguments, said in (
        ([*PARTITION, "--move-at-most", "1MB"], "accepted with --start PLAN"),
        ([*twice, "--move-at-most", "1mb"], "--move-at-most '1mb': accepted is a number"),
        ([*twice[:-3], f"{plan},without=0+1+2"], "these are all devices of the plan"),
        ([*twice, "--way", "layerwise"], "can't be combined with --way layerwise"),
        ([*twice, "--backend", "exact"], "--backend exact can't be combined with --start"),
    ):
        assert said in fails(capsys, arguments, 3)


def test_a_plan_that_is_mended_keeps_its_eps_and_constraints(capsys, tmp_path):
    plan, mended = tmp_path / "plan.json", tmp_path / "mended.json"
    pins = ("--pin", "conv1=2", "--pin", "fc2=0,1")
    hgpart("partition", "lenet5", "--k", 3, "--effort", 0, "--eps", 0.4, *pins, "-o", plan)
    capsys.readouterr()
    start = ("partition", "lenet5", "--start", f"{plan},without=1", "--effort", 0.05, "-o", mended)
    hgpart(*start)
    said = capsys.readouterr().out
    assert "Both constraints are kept: pin conv1=1; pin fc2=0" in said
    assert "--way" not in said and "--slices" not in said  # which --start does not take
    assert load_plan(mended).eps == 0.4
    hgpart(*start, "--pin", "fc2=0")
    assert "of the plan hold no longer: pin conv1=2; pin fc2=0,1" in capsys.readouterr().err
    assert str(load_plan(mended).constraints) == "pin fc2=0"
    without_its_device = ["partition", "lenet5", "--start", f"{plan},without=2"]
    assert "pin conv1=2: no such device is left" in fails(capsys, without_its_device, 3)
