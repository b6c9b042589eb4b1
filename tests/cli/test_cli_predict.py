"""`hgpart predict`: simulated seconds of a plan, alone and beside those of processes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from toy_times import in_proportion
from traces import assert_is_trace

from hgpart import load_model, place, predict, schedule
from hgpart.cli import run
from hgpart.cli.commands.compare import CompareResults
from hgpart.cli.commands.predict import PredictResults
from hgpart.errors import OutputError
from hgpart.machines.machine_files import load_machine
from hgpart.plan import keep_schedule, load_plan
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.outline import Stretch
from hgpart.work.layer_times import save_layer_times

SLOW = {"latency": 1e-4, "bandwidth": 1e7}


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """One thread a process, and not as if torchrun had started the tests."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A plan, a machine and what layers take."""
    folder = tmp_path_factory.mktemp("files")
    arguments = ["partition", "lenet5", "--effort", 0, "--k", 2, "--batch-size", 8]
    assert run([*map(str, [*arguments, "-o", folder / "plan.json"])]) == 0
    device = {"kind": "toy", "memory": None, "threads": 1}
    machine = {"format": "hgpart machine 1", "nodes": [2], "device": device, "inside": SLOW}
    (folder / "machine.json").write_text(json.dumps(machine))
    graph = placement_of(folder).programs.blueprint.graph
    save_layer_times(in_proportion(graph, update=1e-3), graph, folder / "times.json")
    return folder


def placement_of(folder):
    module, _ = load_model("lenet5", device="meta")
    plan = load_plan(folder / "plan.json")
    return place(module.train(), plan, ["meta"] * 2)


def hgpart_predict(files, *arguments):
    options = {f"--{name}": files / f"{name}.json" for name in ("plan", "machine", "times")}
    named = [text for option in options.items() for text in option]
    return run(["predict", "lenet5", *map(str, [*named, *arguments])])


def test_a_plan_that_recomputes_what_its_model_has_not_is_named(files, capfd, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text((files / "plan.json").read_text())
    keep_schedule(plan, Scheduling(recompute=((Stretch(("no_step",)),), ())))
    assert hgpart_predict(files, "--plan", plan) == 12
    assert f"the plan {plan}: part 0 is to recompute no_step" in capfd.readouterr().err


def test_figures_are_those_of_the_function(files, capfd):
    assert hgpart_predict(files, "--schedule", "gpipe", "--micro-batches", 4, "--json", "-") == 0
    found = json.loads(capfd.readouterr().out)
    placement = placement_of(files)
    graph, machine = placement.programs.blueprint.graph, load_machine(str(files / "machine.json"))
    made = schedule(placement, "gpipe", 4, batch_size=8)
    wanted = predict(placement, made, machine, in_proportion(graph, update=1e-3), 8)
    assert found["simulated_seconds"] == pytest.approx(wanted.period)
    assert found["simulated_samples_per_second"] == pytest.approx(8 / wanted.period)
    assert found["update_seconds"] == pytest.approx(wanted.update_seconds)
    assert found["sent_bytes"] == wanted.sent_bytes.sum() > 0
    parts = found["parts"]
    assert [part["busy_seconds"] for part in parts] == pytest.approx([*wanted.busy])
    assert [part["peak_bytes"] for part in parts] == [*wanted.peak_bytes]
    assert "error" not in found


def test_tables_say_that_it_is_simulated(files, capfd, tmp_path):
    outputs = ["--timeline", tmp_path / "t.json", "--html", tmp_path / "page.html"]
    assert hgpart_predict(files, "--micro-batches", 2, *outputs) == 0
    shown = capfd.readouterr().out.splitlines()
    assert shown[0].endswith(" samples/s (simulated)")
    assert "Parts, in a step (simulated)" in shown
    assert sum("| keeps " in line for line in shown) == 2
    assert assert_is_trace(tmp_path / "t.json", parts=2)
    assert f"<h1>{shown[0]}</h1>" in (tmp_path / "page.html").read_text()


def test_a_stream_is_told_by_the_batch(files, capfd):
    assert hgpart_predict(files, "--schedule", "async,in-flight=2", "--json", "-") == 0
    found = json.loads(capfd.readouterr().out)
    assert found["simulated_seconds"] * found["simulated_samples_per_second"] == pytest.approx(8)
    assert found["update_seconds"] == 0


@pytest.mark.full
@pytest.mark.long
def test_measured_steps_stand_beside_simulated_ones(files, capfd, tmp_path):
    page = ["--html", tmp_path / "page.html"]
    assert hgpart_predict(files, "--micro-batches", 2, "--measure", 2, "--json", "-", *page) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["measured_steps"] == 2
    assert found["error"] == pytest.approx(
        found["simulated_seconds"] / found["measured_seconds"] - 1
    )
    assert math.isfinite(found["error"])
    assert all(part["measured_busy_seconds"] > 0 for part in found["parts"])
    assert '"name":"measured"' in page[1].read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--measure", 0), "--measure 0: accepted is a whole number, at least 1"),
        (("--batch-size", 0), "--batch-size 0: accepted is 1 or more"),
        (("--micro-batches", 9), "9 micro-batches of a batch of 8"),
        (("--machine", "nowhere"), "nowhere"),
        (("--times", "plan.json"), "plan.json"),
    ],
)
def test_what_is_wrong_is_one_line(files, capfd, monkeypatch, arguments, said):
    monkeypatch.chdir(files)
    assert hgpart_predict(files, *arguments) > 0
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("hgpart: error: ")
    assert said in err


@pytest.mark.full
@pytest.mark.long
def test_a_partition_of_least_time_is_one_that_predict_finds_as_fast(files, capfd, tmp_path):
    plan, figures = tmp_path / "plan.json", tmp_path / "figures.json"
    options = ["--machine", files / "machine.json", "--work", files / "times.json", "--eps", 0.3]
    arguments = ["partition", "lenet5", "--objective", "time", "--k", 2, "--batch-size", 8]
    arguments += ["--effort", 0.02, "--micro-batches", 2, "-o", plan, "--json", figures]
    assert run([*map(str, [*arguments, *options])]) == 0
    said = capfd.readouterr()
    assert "by the search's estimate" in said.out
    first = said.err.splitlines()[0]
    assert "s a step (simulated), 2 micro-batches" in first
    shown = json.loads(figures.read_text())
    assert shown["objective"] == "time"
    times = ["--times", files / "times.json", "--machine", files / "machine.json"]
    line = ["predict", "lenet5", "--plan", plan, *times, "--micro-batches", 2, "--json", "-"]
    assert run([*map(str, line)]) == 0
    found = json.loads(capfd.readouterr().out)
    seconds = found["simulated_seconds"] + found["update_seconds"]
    assert first.startswith(f"{seconds:.4g} s")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--objective", "time"], "--objective time without --machine"),
        (["--objective", "time", "--machine", "10gbe"], "'hgpart profile MODEL -o times.json'"),
        (["--machine", "10gbe"], "--machine 10gbe: accepted with --objective links and time alone"),
        (["--micro-batches", "2"], "accepted with --objective time alone"),
        (
            ["--objective", "time", "--machine", "10gbe", "--work", "FILE", "--slices", "2"],
            "slices",
        ),
        (
            [
                "--objective",
                "time",
                "--machine",
                "10gbe",
                "--work",
                "FILE",
                "--modelling",
                "training=no",
            ],
            "training",
        ),
        (["--objective", "time", "--machine", "10gbe:1", "--work", "FILE"], "10gbe:1 of 1 devices"),
        (
            [
                "--objective",
                "time",
                "--machine",
                "10gbe",
                "--work",
                "FILE",
                "--micro-batches",
                "99",
            ],
            "--micro-batches 99 of a batch of 32",
        ),
    ],
)
def test_what_least_time_cannot_do_is_said_in_one_line(files, options, said, capfd):
    line = [str(files / "times.json") if text == "FILE" else text for text in options]
    assert run(["partition", "lenet5", "--k", "2", *line]) != 0
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("hgpart: error: ")
    assert shown.err.count("\n") == 1
    assert said in shown.err


def test_options_that_name_no_file_to_write_are_not_checked_as_one(tmp_path, monkeypatch):
    """A folder with the number of --measure refused it, and a plan in a folder not writable."""
    (tmp_path / "3").mkdir()
    monkeypatch.chdir(tmp_path)
    PredictResults(measure="3").check()
    CompareResults(plan=Path("/proc/1/plan.json"), html=Path("page.html")).check()
    with pytest.raises(OutputError):
        PredictResults(json="3").check()
