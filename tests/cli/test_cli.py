"""The command line: what it writes, what it says of mistakes, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import typer
from builtin_graphs import full_size_graph
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from hgpart.cli import app, run
from hgpart.errors import ModelError
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.formats import read_hmetis, read_partition, read_patoh
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition import partition_graph
from hgpart.partition.native.search import native_partition
from hgpart.plan import Plan, load_plan, restore, save_plan
from hgpart.work.figures import flops

OPTIONS = {
    "coarse": [],
    "fine": ["--modelling", "grain=fine"],
    "thesis": ["--modelling", "linear=layer,bytes-per-element=1"],
    "bare": ["--modelling", "input-vertex=no,output-vertex=no", "--batch-size", "1"],
}
MODELLINGS = {
    "coarse": Modelling(),
    "fine": Modelling(grain="fine"),
    "thesis": Modelling(linear="layer", bytes_per_element=1),
    "bare": Modelling(input_vertex=False, output_vertex=False, batch_size=1),
}


LENET = ["partition", "lenet5", "--k", "2", "--effort", "0"]


@pytest.fixture
def graph():
    return full_size_graph("lenet5")


def hgpart(*arguments):
    """Run a command that is to succeed."""
    assert run([str(argument) for argument in arguments]) == 0


def without_seconds(path):
    figures = json.loads(path.read_text())
    assert figures["seconds"].pop("total") > 0
    del figures["seconds"]
    return figures


# ------------------------------------------------------------------ results


@pytest.mark.few(1)
@pytest.mark.parametrize("options", OPTIONS)
def test_partition_export_and_evaluate_agree(options, graph, tmp_path):
    files = {name: tmp_path / name for name in ("json", "parts", "patoh", "hmetis", "again")}
    hgpart(
        *("partition", "lenet5", "--k", 4, "--eps", 0.25, "--effort", 0.1, *OPTIONS[options]),
        *("--json", files["json"], "--write-partition", files["parts"]),
    )
    shown = without_seconds(files["json"])
    assert shown["feasible"]
    assert shown["imbalance"] <= 0.25

    # What any other tool would find, from the two files alone.
    hgpart(*("export", "lenet5", *OPTIONS[options], "-o", files["patoh"]))
    hypergraph = read_patoh(files["patoh"])
    parts = read_partition(files["parts"], hypergraph.vertices, 4)
    loads = np.bincount(parts, weights=hypergraph.weights, minlength=4)
    assert [part["work"] for part in shown["parts"]] == loads.tolist()
    ends = zip(hypergraph.pointers[:-1], hypergraph.pointers[1:], strict=True)
    spread = [len(set(parts[hypergraph.pins[a:b]].tolist())) - 1 for a, b in ends]
    assert shown["volume_bytes"] == int(hypergraph.costs @ np.array(spread))

    # What hgpart says of that file.
    hgpart(
        *("partition", "lenet5", "--partition", files["parts"], "--eps", 0.25),
        *(*OPTIONS[options], "--json", files["again"]),
    )
    again = without_seconds(files["again"])
    assert (again["seed"], again["backend"]) == (None, None)
    for same in ("k", "feasible", "imbalance", "volume_bytes", "messages", "parts", "layers"):
        assert again[same] == shown[same], same
    assert again["layerwise_volume_bytes"] == shown["layerwise_volume_bytes"]

    # What was exported is the full hypergraph, in both formats.
    modelling = MODELLINGS[options]
    full = cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)
    hgpart(*("export", "lenet5", *OPTIONS[options], "--format", "hmetis", "-o", files["hmetis"]))
    for found in (hypergraph, read_hmetis(files["hmetis"])):
        for name in ("weights", "costs", "pointers", "pins"):
            expected = getattr(full.hypergraph, name)
            np.testing.assert_array_equal(getattr(found, name), expected)


def test_a_seed_gives_the_same_partition_every_time(tmp_path):
    files = [tmp_path / name for name in "ab"]
    options = ("--k", 5, "--eps", 0.3, "--seed", 7, "--effort", 0.1)
    for file in files:
        hgpart("partition", "lenet5", *options, "--json", file)
    first, second = map(without_seconds, files)
    assert first == second
    assert (first["seed"], first["eps"]) == (7, 0.3)


@pytest.mark.full
@pytest.mark.long
def test_commands_write_pages(monkeypatch, tmp_path):
    plan = tmp_path / "plan.json"
    commands = {
        "partition": [*LENET, "-o", plan],
        "run": ["run", "--plan", plan, "--backend", "threads", "--backward", "--steps", 2],
        "train": [
            "train",
            "--plan",
            plan,
            "--backend",
            "threads",
            "--data",
            "digits",
            "--steps",
            2,
        ],
    }
    headings = {
        "partition": ["Load of each part", "Who computes which layer"],
        "run": ["What a step took", "What each part did when"],
        "train": ["Loss", "What a step took", "What each part did when"],
    }
    for name, command in commands.items():
        page = tmp_path / f"{name}.html"
        hgpart(*command, "--html", page)
        html = page.read_text()
        assert all(f"<h2>{heading}</h2>" in html for heading in headings[name])
        assert len(html.encode()) < 1_500_000
        assert ('"name":"planned"' in html) is (name != "partition")  # over what was measured
    # Clocks of several machines have nothing in common.
    monkeypatch.setattr("hgpart.cli.outputs.on_several_machines", lambda: True)
    hgpart(*commands["run"], "--html", tmp_path / "run.html")
    html = (tmp_path / "run.html").read_text()
    assert headings["run"][0] in html
    assert headings["run"][1] not in html


def test_a_schedule_is_drawn(capsys, tmp_path):
    plan = tmp_path / "plan.json"
    hgpart(*LENET, "--batch-size", 8, "-o", plan)
    kept = tmp_path / "schedule.json"
    hgpart("show", plan, "--schedule", "gpipe", "--micro-batches", 3, "-o", kept)
    out = capsys.readouterr().out.removesuffix(f"Next: hgpart run --plan {plan} --backward\n")
    drawn = out.partition("\ngpipe: 3 micro-batches on 2 parts, idle ")[2]
    first, second = drawn.splitlines()[1:3]
    assert (first[:3], second[:3]) == ("0 |", "1 |")
    assert set(first + second) > set("012abc")
    assert re.fullmatch(r"holds at most 0: [\d.]+, 1: [\d.]+ MB", drawn.splitlines()[-1])
    page = tmp_path / "page.html"
    hgpart("show", plan, "--schedule", kept, "--html", page)
    assert drawn in capsys.readouterr().out
    assert "A step of training by gpipe, the batch in 3 micro-batches" in page.read_text()
    fails(capsys, ["show", plan, "--schedule", "zigzag"], 3, "schedule 'zigzag': accepted are seq")
    fields = json.loads(plan.read_text())
    del fields["schedule"]
    (old := tmp_path / "old.json").write_text(json.dumps(fields))
    said = "--micro-batches 3 without a schedule to draw: accepted with --schedule RULE"
    fails(capsys, ["show", old, "--micro-batches", 3], 3, said)
    said = "without a schedule to draw: accepted with --schedule RULE"
    fails(capsys, ["show", old, "-o", kept], 3, said)
    hgpart("show", plan, "--schedule", "async,in-flight=1")
    assert "\nasync: 4 batches, 1 in flight at most, on 2 parts, idle " in capsys.readouterr().out
    said = "2 batches in flight by greedy: accepted with async"
    fails(capsys, ["show", plan, "--schedule", "in-flight=2"], 3, said)
    said = "9 micro-batches of a batch of 8: accepted are 1 to 8"
    fails(capsys, ["show", plan, "--schedule", "greedy", "--micro-batches", 9], 3, said)


def test_json_on_standard_output_is_all_that_is_printed_there(capsys):
    hgpart(*LENET, "--json", "-")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["model"], shown["k"]) == ("lenet5", 2)
    assert list(shown["seconds"])[-1] == "total"


def test_tables_are_printed_and_a_csv_is_written(capsys, tmp_path):
    hgpart(*LENET, "--csv", tmp_path / "parts.csv", "--unit", "MiB")
    out, err = capsys.readouterr()
    assert out.startswith("lenet5 on 2 devices, coarse-grain: imbalance 0.0")
    assert "MiB" in out
    assert err == ""
    assert len((tmp_path / "parts.csv").read_text().splitlines()) == 3


def test_a_plan_restores_the_partition(graph, tmp_path):
    plan, figures = tmp_path / "plan.json", tmp_path / "figures.json"
    options = ("--k", 3, "--speeds", "1,1,2", "--effort", 0)
    hgpart("partition", "lenet5", *options, "-o", plan, "--json", figures)
    shown, loaded = without_seconds(figures), load_plan(plan)
    assert (loaded.model, loaded.input_shape) == ("lenet5", (1, 32, 32))
    found = restore(loaded, graph)
    assert found.evaluation.imbalance == shown["imbalance"]
    assert found.evaluation.volume == shown["volume_bytes"]
    assert list(found.problem.speeds) == shown["speeds"] == [1, 1, 2]


def test_a_machine_of_devices_that_differ_gives_speeds(tmp_path, capsys):
    machine, figures = tmp_path / "boards.json", tmp_path / "figures.json"
    devices = [{"speed": speed} for speed in (1, 1, 2)]
    link = {"latency": 1e-4, "bandwidth": 1e7}
    record = {"format": "hgpart machine 1", "nodes": [3], "devices": devices, "inside": link}
    machine.write_text(json.dumps(record))
    options = ("--machine", machine, "--effort", 0, "--json", figures)
    for more in ((), ("--way", "data-parallel"), ("--objective", "links")):
        hgpart("partition", "lenet5", "--k", 3, *options, *more)
        assert without_seconds(figures)["speeds"] == [1, 1, 2]
    hgpart("partition", "lenet5", "--k", 3, *options, "--speeds", "3,1,1")
    assert without_seconds(figures)["speeds"] == [3, 1, 1]
    hgpart("partition", "lenet5", "--k", 2, *options)  # the fastest two
    assert without_seconds(figures)["speeds"] == [1, 2]
    line = ["partition", "lenet5", "--k", 4, *options]
    assert run([*map(str, line)]) == 3
    assert "of 3 devices for k=4: accepted are 4 or more" in capsys.readouterr().err


def test_work_is_measured_kept_and_passed_back(tmp_path):
    kept = tmp_path / "work.json"
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    # Two layers may well take longer than the rest: any imbalance is fine here.
    job = (*LENET, "--eps", 1, "--batch-size", 2)
    hgpart(*job, "--work", f"profile,save={kept}", "--json", first)
    hgpart(*job, "--work", kept, "--json", second)
    assert without_seconds(first) == without_seconds(second)
    shown = without_seconds(second)
    assert shown["work_unit"] == "s"
    assert shown["work_source"].startswith("profile cpu")


@pytest.mark.full
@pytest.mark.long
def test_shares_of_layers_are_measured_kept_and_divided(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("hgpart.timing.layer_timing.ENOUGH", 0.0)  # each point once
    kept, figures = tmp_path / "times.json", tmp_path / "figures.json"
    hgpart("profile", "lenet5", "--batch-size", 2, "--threads", 1, "-o", kept)
    out = capsys.readouterr().out
    assert out.startswith("lenet5 at 1 x 32 x 32: ")
    assert " s a training step of 2 samples, layer by layer (profile cpu (1 threads) " in out
    assert re.findall(r"^(\w+)  +\d+", out, re.MULTILINE) == [
        *("conv1", "conv2", "conv3", "fc1", "fc2")
    ]
    job = (*LENET, "--eps", 1, "--batch-size", 2, "--work", kept)
    hgpart(*job, "--json", figures)
    shown = without_seconds(figures)
    assert shown["work_unit"] == "s"
    assert shown["work_source"].endswith(", batch 2")
    capsys.readouterr()
    fails(capsys, ["export", "alexnet", "--work", kept, "-o", tmp_path / "x"], 12, "another model")


@pytest.mark.full
def test_the_busiest_device_has_less_to_send_where_that_is_asked_for(capsys, tmp_path):
    command = ["partition", "lenet5", "--k", 4, "--backend", "native", "--effort", "0.1"]
    exchanged = []
    for objective in ("volume", "largest"):
        hgpart(*command, "--objective", objective, "--json", tmp_path / "figures.json")
        shown = json.loads((tmp_path / "figures.json").read_text())
        both = [part["send_bytes"] + part["receive_bytes"] for part in shown["parts"]]
        exchanged.append(max(both))
    assert shown["objective"] == "largest"
    assert shown["objective_value"] == exchanged[1] <= exchanged[0]
    assert "No device sends and receives more than" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.long
def test_slow_links_and_memory_are_kept_in_the_plan_and_shown_again(capsys, tmp_path):
    topology, plan = tmp_path / "topology.json", tmp_path / "plan.json"
    topology.write_text(
        '{"format": "hgpart topology 1", "nodes": [2, 2], "inside": 1, "between": 50}'
    )
    hgpart(
        *("partition", "alexnet", "--k", 4, "--backend", "native", "--effort", "0.1"),
        *("--objective", "links", "--machine", topology),
        *("--memory", "800MB,800MB,800MB,1400MB,in-flight=2"),
        *("-o", plan),
    )
    first = capsys.readouterr().out
    assert "A byte costs" in first
    assert (
        "with 4 copies of its parameters, 1 more version of them with gradients, and the maps of 2 "
        "batches" in first
    )
    untried = "Slices of the batch were not tried: --slices auto may send less\n"
    assert untried in first
    hgpart("show", plan, "--json", tmp_path / "figures.json", "--graph", tmp_path / "graph.dot")
    again = capsys.readouterr().out.split("Wall seconds")[0]
    assert again == first.split("Wall seconds")[0].replace(untried, "")
    shown = json.loads((tmp_path / "figures.json").read_text())
    assert shown["objective"] == "links"
    assert shown["volume_bytes"] < shown["objective_value"] < 50 * shown["volume_bytes"]
    for part in shown["parts"]:
        assert part["memory_bytes"] <= part["memory_limit_bytes"]
    assert (shown["memory_copies"], shown["memory_in_flight"]) == (4, 2)
    assert 'fillcolor="2"' in (tmp_path / "graph.dot").read_text()


def test_best_effort_shows_what_is_not_allowed(capsys):
    hgpart("partition", "lenet5", "--k", 20, "--effort", 0.1, "--best-effort", "--json", "-")
    shown = json.loads(capsys.readouterr().out)
    assert not shown["feasible"]
    assert shown["imbalance"] > 0.1


def test_other_devices_than_the_file_names_are_idle(capsys, tmp_path):
    parts = tmp_path / "parts"
    hgpart(*LENET, "--write-partition", parts)
    capsys.readouterr()
    hgpart("partition", "lenet5", "--partition", parts, "--k", 3, "--json", "-")
    shown = json.loads(capsys.readouterr().out)
    assert [part["work"] > 0 for part in shown["parts"]] == [True, True, False]
    assert not shown["feasible"]


def test_trace_shows_rows_and_what_ends_bands(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(\n"
        "        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Upsample(scale_factor=2),\n"
        "        nn.Conv2d(8, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))\n"
    )
    figures = tmp_path / "rows.json"
    command = ("trace", f"{file}:net", "--input-shape", "3,16,16")
    hgpart(*command, "--rows", "--json", figures)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"{file}:net at 3 x 16 x 16: 2 of 5 layers have bands (16 rows); what ends them: "
        "adaptive_avg_pool2d sums all rows, so partial sums can travel (2)"
    )
    table = {line.split()[0]: line.split()[1:5] for line in lines[5:-1]}
    assert table == {
        "input": ["16", "-", "-", "-"],
        "0": ["16", "3", "1", "input"],
        "2": ["-", "16", "16", "0"],
        "5": ["-", "-", "-", "2"],
        "output": ["-", "-", "-", "5"],
    }
    assert lines[-1] == f"Next: hgpart partition {file}:net --input-shape 3,16,16 --k 4"
    found = json.loads(figures.read_text())["layers"]
    assert [layer["rows"] for layer in found] == [16, 16, None, None, None]
    (read,) = found[1]["reads"]
    figures_of_reads = {"rows": 16, "window": 3, "stride": "1", "summed": False, "channels": None}
    assert read == {"layer": "input", **figures_of_reads}
    assert found[2]["sum"]["rows"] == 14
    assert found[2]["sum"]["reads"][0]["window"] == 3
    assert found[2]["reads"][0]["summed"]
    assert found[2]["ended_by"] == "adaptive_avg_pool2d"
    hgpart(*command, "--json", "-")
    assert json.loads(capsys.readouterr().out)["layers"] == found
    fails(capsys, [*command, "--json", str(tmp_path)], 11, "is a folder")


def test_a_model_of_the_user_is_traced_with_what_was_kept_whole(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "class Sort(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.sort(dim=1).values\n"
        "def net():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), Sort(), nn.Conv2d(8, 4, 3))\n"
    )
    graph = tmp_path / "graph.graphml"
    hgpart("trace", f"{file}:net", "--input-shape", "3,16,16", "--graph", graph)
    labels = nx.get_node_attributes(nx.read_graphml(graph), "label")
    assert [*labels.values()] == ["input", "0", "1", "2", "output"]
    out = capsys.readouterr().out
    assert "(1 kept whole)" in out.splitlines()[0]
    kept, then = out.splitlines()[-2:]
    assert kept == "Kept whole (one task that reads everything): 1 (sort)"
    assert then == f"Next: hgpart partition {file}:net --input-shape 3,16,16 --k 4"


def test_models_lists_those_that_are_named(capsys):
    hgpart("models", "lenet5", "alexnet")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *("model", "lenet5", "alexnet", "Next:")
    ]


@pytest.mark.full
@pytest.mark.long
def test_a_plan_names_the_model_and_the_next_command(capsys, tmp_path):
    plan, parts, named = (tmp_path / name for name in ("plan.json", "parts", "named.json"))
    hgpart(*LENET, "-o", plan, "--write-partition", parts)
    then = f"hgpart run --plan {plan} --backward"
    assert capsys.readouterr().out.splitlines()[-1] == f"Next: {then}"
    hgpart("run", "--plan", plan, "--backend", "threads", "--steps", 1, "--backward")
    shown = capsys.readouterr().out
    assert "lenet5 on 2 devices (one process), 1 step of 32 samples, forward and" in shown
    assert shown.splitlines()[-1] == f"Next: hgpart train --plan {plan}"
    fails(capsys, ["verify", "--k", 2], 3, "no MODEL given")
    # A plan of what another tool found is that of the partition.
    hgpart("partition", "lenet5", "--partition", parts, "-o", named)
    hgpart("partition", "lenet5", "--k", 2, "--way", "horizontal", "-o", parts)
    capsys.readouterr()
    first, again, halves = map(load_plan, (plan, named, parts))
    assert (again.volume_bytes, again.imbalance) == (first.volume_bytes, first.imbalance)
    assert (halves.backend, halves.imbalance) == ("horizontal", 0.0)
    hgpart("show", named)
    hgpart("verify", "--plan", parts)
    assert capsys.readouterr().out.splitlines()[-1] == f"Next: hgpart train --plan {parts}"


def test_a_plan_over_slices_is_verified_and_run_with_samples_for_each(capsys, tmp_path):
    plan = tmp_path / "plan.json"
    job = ("partition", "lenet5", "--k", 4, "--batch-size", 8, "--way", "data-parallel")
    hgpart(*job, "-o", plan)
    assert capsys.readouterr().out.splitlines()[-1] == f"Next: hgpart run --plan {plan} --backward"
    hgpart("verify", "--plan", plan)
    assert capsys.readouterr().out.startswith("PASS")


@pytest.mark.full
def test_micro_batches_are_not_proposed_for_a_model_that_mixes_samples(capsys, tmp_path):
    """The next command of `partition` and `run` was one that is refused."""
    file, plan = tmp_path / "net.py", tmp_path / "plan.json"
    file.write_text(
        "from torch import nn\n"
        "class Net(nn.Conv2d):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x) - x.mean()\n"
        "make = lambda: Net(3, 8, 3)\n"
    )
    model = f"{file}:make"
    hgpart("partition", model, "--k", 2, "--input-shape", "3,8,8", "--batch-size", 8, "-o", plan)
    then = f"Next: hgpart run {model} --plan {plan} --backward"
    assert capsys.readouterr().out.splitlines()[-1] == then
    hgpart("run", model, "--plan", plan, "--backward", "--steps", 1, "--backend", "threads")
    assert "--micro-batches" not in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("width", [pytest.param(None, marks=pytest.mark.full), 60])
def test_output_is_as_wide_as_a_terminal_through_a_pipe(width, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    plan = tmp_path / "plan.json"
    hgpart("partition", "lenet5", "--k", 3, "--effort", 0, "--slices", 2, "-o", plan)
    hgpart("run", "--plan", plan, "--backend", "threads", "--steps", 1, "--backward")
    hgpart("compare", "lenet5", "--k", "2,3", "--ways", "layerwise,data-parallel")
    hgpart("trace", "lenet5")
    hgpart("trace", "lenet5", "--rows")
    hgpart("show", plan, "--schedule", "greedy", "--micro-batches", 8)
    lines = capsys.readouterr().out.splitlines()
    assert sum("   " in line.strip() for line in lines) > 20  # tables
    narrow = width or 80
    drawn = [line for line in lines if re.search(r"^\d (\|| [FB]\d)", line)]  # for 80 columns
    assert max(map(len, drawn)) <= 80
    commands = [line for line in lines if line.strip().removeprefix("Next: ").startswith("hgpart ")]
    kept = [line for line in lines if line not in (*drawn, *commands)]
    assert max(map(len, kept)) <= narrow


def test_a_plan_of_another_model_is_named(capsys, tmp_path):
    hgpart(*LENET, "-o", tmp_path / "plan.json")
    capsys.readouterr()
    job = ["run", "alexnet", "--backend", "threads", "--plan", tmp_path / "plan.json"]
    plan = tmp_path / "plan.json"
    said = f'the plan {plan} is for "lenet5" and samples of 1 x 32 x 32, with which this model'
    fails(capsys, job, 12, said)
    fails(capsys, ["show", tmp_path / "plan.json", "--model", "alexnet"], 12, said)


def test_a_partition_that_gains_nothing_says_so(capsys):
    hgpart("partition", "lenet5", "--k", 2, "--way", "layerwise")
    assert "\nSo it gains nothing over that cut, in load and bytes\n" in capsys.readouterr().out
    hgpart(*LENET)
    assert "gains nothing" not in capsys.readouterr().out


def test_a_shell_completes_choices():
    environment = {
        **os.environ,
        "_HGPART_COMPLETE": "complete_bash",
        "COMP_WORDS": "hgpart train --optimizer ",
        "COMP_CWORD": "3",
    }
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (ended.stdout.split(), ended.returncode) == (["sgd", "adam"], 0)


def test_each_command_says_its_options_in_groups_and_an_example(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    commands = typer.main.get_command(app).commands
    for name, command in commands.items():
        example = command.epilog.removeprefix(f"Example: hgpart {name} ").split()
        command.make_context(name, example)  # can be read
        hgpart(name, "--help")
        shown = capsys.readouterr().out
        assert f"Example: hgpart {name} " in shown
        assert not re.search(r"--.*<(str|bool)>|\[\[", shown)  # flags take no value
        assert max(map(len, shown.splitlines())) <= 80
    hgpart("train", "--help")
    training = re.search(r"─ Training ─.*?╯", capsys.readouterr().out, re.DOTALL)
    assert {"--optimizer", "--seed", "--resume"} <= set(re.findall(r"--[a-z]+", training[0]))
    hgpart("--help")
    shown = capsys.readouterr().out
    assert "<bool>" not in shown
    assert "12 PlanError" in " ".join(shown.split())


# ------------------------------------------------------------------ mistakes

NATIVE = [*LENET, "--backend", "native"]

MISTAKES = {
    "no command": (["partitoin"], 2, "No such command 'partitoin'"),
    "no such thing": (["help"], 2, "No such command 'help'; 'hgpart --help' says what"),
    "unknown option": ([*LENET, "--fast"], 2, "--fast"),
    "missing k": (["partition", "lenet5"], 3, "no --k given: accepted is a number of devices"),
    "k is no number": (
        ["partition", "lenet5", "--k", "two"],
        2,
        "--k two: accepted is a whole number",
    ),
    "k are no numbers": (["compare", "lenet5", "--k", "2,x"], 2, "numbers with commas between; "),
    "shape is no shape": ([*LENET, "--input-shape", "1x32x32"], 2, "3,224,224"),
    "speeds are no numbers": ([*LENET, "--speeds", "1,fast"], 2, "1,1,2"),
    "k < 1": (["partition", "lenet5", "--k", "0"], 3, "k is 0"),
    "k > tasks": (["partition", "lenet5", "--k", "999"], 3, "999"),
    "eps < 0": ([*LENET, "--eps", "-0.1"], 3, "-0.1"),
    "eps is not a number": ([*LENET, "--eps", "nan"], 3, "nan"),
    "grain that is near": ([*LENET, "--modelling", "grain=corse"], 3, "did you mean coarse?"),
    "strategy and grain": (
        [*LENET, "--way", "layerwise", "--modelling", "grain=fine"],
        3,
        "--modelling grain=fine can't be combined with --way layerwise",
    ),
    "grain": ([*LENET, "--modelling", "grain=medium"], 3, "coarse and fine"),
    "linear": ([*LENET, "--modelling", "linear=block"], 3, "neuron and layer"),
    "backend": ([*LENET, "--backend", "metis"], 3, "kahypar, mtkahypar"),
    "unit": ([*LENET, "--unit", "mb"], 3, "MB, GB, MiB, GiB"),
    "batch size": ([*LENET, "--batch-size", "0"], 3, "batch size 0"),
    "speeds of others": ([*LENET, "--speeds", "1,1,2"], 3, "3 speeds for k=2"),
    "speed 0": ([*LENET, "--speeds", "1,0"], 3, "0"),
    "seed": ([*LENET, "--seed", "-1"], 3, "-1"),
    "time limit": ([*LENET, "--time-limit", "0"], 3, "0"),
    "work": ([*LENET, "--work", "guess"], 3, "flops, profile"),
    "device without profile": ([*LENET, "--work", "flops,device=cpu"], 3, "only profile measures"),
    "no sample to profile": (["profile", "lenet5", "--batch-size", "0"], 3, "batch size 0"),
    "device to profile on": (["profile", "lenet5", "--device", "abacus"], 3, "'abacus'"),
    "no thread": (["profile", "lenet5", "--threads", "0"], 2, "at least 1"),
    "one file for two": ([*LENET, "--json", "x", "--csv", "x"], 3, "--json and --csv"),
    "format": (["export", "lenet5", "--format", "metis", "-o", "x"], 3, "patoh and hmetis"),
    "unknown model": (["partition", "lenet6", "--k", "2"], 4, "nearest: lenet5"),
    "unknown in models": (["models", "lenet5", "lenet6"], 4, "nearest: lenet5"),
    "no such file": (["trace", "nowhere.py:net"], 4, "nowhere.py"),
    "input shape": ([*LENET, "--input-shape", "3,32,32"], 5, "2x3x32x32"),
    "no tensor is so large": ([*LENET, "--input-shape", f"{10**20},1,1"], 3, "bytes that a tensor"),
    "no sum is so large": (["trace", "unet", "--input-shape", f"3,{10**8},{10**8}"], 3, "up to"),
    "no partition file": (["partition", "lenet5", "--partition", "none"], 6, "none"),
    "objective": ([*LENET, "--objective", "cut"], 3, "volume, largest, links, time"),
    "objective of others": (
        [*LENET, "--backend", "kahypar", "--objective", "largest"],
        3,
        "backend 'kahypar' takes no objective 'largest': native does",
    ),
    "memory": ([*NATIVE, "--memory", "2 GiBi"], 3, "memory '2 GiBi': accepted is a number"),
    "memory of others": ([*NATIVE, "--memory", "1GB,1GB,1GB"], 3, "3 memory limits for k=2"),
    "memory copies": (
        [*NATIVE, "--memory", "1GB,copies=-1"],
        3,
        "parameters -1.0: accepted",
    ),
    "none in flight": ([*NATIVE, "--memory", "1GB,in-flight=0"], 3, "batches in flight 0"),
    "no memory": ([*NATIVE, "--memory", "in-flight=2"], 3, "0 memory limits for k=2"),
    "too little memory": ([*NATIVE, "--memory", "10kB"], 8, "; such devices, 152 or more"),
    "no memory at all": ([*NATIVE, "--memory", "1kB"], 8, "; 238 such devices, one for each task,"),
    "no topology": ([*NATIVE, "--objective", "links", "--machine", "none"], 6, "can't read none"),
    "topology and objective": (
        [*NATIVE, "--machine", "10gbe", "--objective", "largest"],
        3,
        "--machine 10gbe: accepted with --objective links and time alone",
    ),
    "infeasible": (["partition", "lenet5", "--k", "20", "--effort", "0.1"], 8, "heaviest task"),
    "no such folder": ([*LENET, "--json", "nowhere/x.json"], 11, "nowhere"),
    "output is a folder": ([*LENET, "-o", "."], 11, "folder"),
    "export to nowhere": (["export", "lenet5", "-o", "nowhere/x"], 11, "nowhere"),
}


def fails(capsys, arguments, status, said):
    """The command fails with one line that says it, and leaves no file."""
    assert run([str(argument) for argument in arguments]) == status
    out, err = capsys.readouterr()
    assert err.startswith("hgpart: error: ")
    assert err.count("\n") == 1
    assert said in err
    return out


def test_a_step_is_simulated_and_its_schedule_kept(capsys, tmp_path):
    file, plan = tmp_path / "json", tmp_path / "plan.json"
    hgpart("partition", "lenet5", "--k", 2, "--effort", 0, "--json", file, "-o", plan)
    out, said = capsys.readouterr().out, json.loads(file.read_text())["estimated"]
    kept = load_plan(plan).scheduling
    assert (kept.rule, kept.micro_batches) == (said["rule"], said["micro_batches"])
    pays = said["seconds"] < said["one_device"]
    assert ("so dividing does not pay" in " ".join(out.split())) == (not pays)
    assert "(simulated, for 10 Gb Ethernet and 50 GMAC/s a device)" in " ".join(out.split())
    assert (f"with --way {said['faster']}, " in out) == (said["faster"] is not None)
    hgpart("show", plan, "--json", "-")
    assert json.loads(capsys.readouterr().out)["estimated"] == said


@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_of_one_device_no_seconds_are_known(capsys, grain):
    """Fine-grain parts are estimated, not simulated: their programs are only known once placed."""
    for k, how in ((1, None), (2, grain)):
        options = ("--k", k, "--effort", 0, "--modelling", f"grain={grain}", "--json", "-")
        hgpart("partition", "lenet5", *options)
        said = json.loads(capsys.readouterr().out)["estimated"]
        assert (said is None) == (how is None)
        assert said is None or ("rule" in said) == (grain == "coarse")


def test_devices_that_differ_are_simulated_at_their_speeds(capsys):
    step = {}
    for speeds in ("1,1", "1,2"):
        options = ("--eps", 1, "--effort", 0, "--speeds", speeds, "--batch-size", 4096)
        hgpart("partition", "lenet5", "--k", 2, *options, "--way", "data-parallel", "--json", "-")
        step[speeds] = json.loads(capsys.readouterr().out)["estimated"]
    assert step["1,2"]["seconds"] < step["1,1"]["seconds"]
    assert step["1,2"]["one_device"] == pytest.approx(step["1,1"]["one_device"] / 2, rel=0.1)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_line(mistake, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, status, said = MISTAKES[mistake]
    out = fails(capsys, arguments, status, said)
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_report_of_torchrun_ends_with_the_line_of_the_rank_that_failed(
    capsys, monkeypatch, tmp_path
):
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    fails(capsys, ["models", "lenet6"], 4, "unknown model 'lenet6'")
    report = str(ChildFailedError("hgpart", {0: ProcessFailure(0, os.getpid(), 4, str(file))}))
    assert "traceback : hgpart: error: unknown model 'lenet6'" in report


def test_a_plan_calls_no_code_that_nobody_named(capsys, monkeypatch, tmp_path):
    """`show` imported and called whatever a file said its model was."""
    monkeypatch.chdir(tmp_path)
    file, called, plan = tmp_path / "mine.py", tmp_path / "called", tmp_path / "plan.json"
    file.write_text(
        "from pathlib import Path\n"
        "from torch import nn\n"
        "def net():\n"
        f"    Path({str(called)!r}).touch()\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)), (3, 8, 8)\n"
    )
    options = ["--k", 2, "--effort", 0.01, "--batch-size", 1]  # of which there are no slices to try
    hgpart("partition", "mine.py:net", *options, "-o", plan)
    first = capsys.readouterr().out.split("Wall seconds")[0]
    called.unlink()
    fails(
        capsys,
        ["show", plan],
        3,
        '"mine.py:net", code that is called only where you name it: accepted with --model',
    )
    assert not called.exists()
    for trusted in (["--trust"], ["--model", "mine.py:net"]):
        hgpart("show", plan, *trusted)
        assert capsys.readouterr().out.split("Wall seconds")[0] == first
        called.unlink()


NASTY_NAMES = ["[/bold]", ":smile:", "\x1b[31m", "line\nend", 'q"', "\\", "\u202e"]


@pytest.mark.full
def test_names_of_models_and_files_are_text_to_the_terminal(capsys, monkeypatch, tmp_path):
    """They were taken for markup, and raised, or reached the terminal with their escapes."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from collections import OrderedDict\n"
        "from torch import nn\n"
        "def net():\n"
        f"    names = {NASTY_NAMES!r}\n"
        "    layers = [(name, nn.Conv2d(2, 2, 1)) for name in names]\n"
        "    return nn.Sequential(OrderedDict(layers)), (2, 3, 3)\n"
    )
    hgpart("partition", "mine.py:net", "--k", 2, "--eps", 1, "--effort", 0.01, "-o", "plan.json")
    layers = capsys.readouterr().out.split("Layers (")[1].splitlines()[4:-4]
    assert [line.split()[0] for line in layers] == [
        *("[/bold]", ":smile:", r"\x1b[31m", r"line\nend", 'q"', "\\", r"\u202e")
    ]
    plan = json.loads(Path("plan.json").read_text())
    for field in ("work_unit", "work_source", "backend", "start"):
        plan[field] = "[/bold]\x1b[31m"
    Path("plan.json").write_text(json.dumps(plan))
    hgpart("show", "plan.json", "--trust")
    hgpart("verify", "mine.py:net", "--plan", "plan.json")
    assert capsys.readouterr().out.replace("\n", "").isprintable()
    fails(capsys, ["show", "\x1b[31m"], 6, r"can't read \x1b[31m")


def test_a_letter_that_the_output_has_not_is_written_as_an_escape(monkeypatch, tmp_path):
    """Python raised where standard output was ASCII and a layer's name was not."""
    monkeypatch.chdir(tmp_path)
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    hgpart("export", "lenet5", "-o", "größe")
    out.flush()
    assert out.buffer.getvalue().startswith(b"gr\\xf6\\xdfe: 238 vertices")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "command",
    [
        ["show", "--model", "lenet5"],
        ["verify", "lenet5", "--plan"],
        ["run", "lenet5", "--backend", "threads", "--plan"],
        ["train", "lenet5", "--backend", "threads", "--steps", 1, "--plan"],
        ["compare", "lenet5", "--html", "page", "--plan"],
    ],
    ids=lambda command: command[0],
)
def test_the_model_on_the_command_line_is_the_one_that_is_called(
    command, capsys, graph, monkeypatch, tmp_path
):
    plan = tmp_path / "plan.json"
    found = partition_graph(graph, flops(graph), 2, 0.1, effort=0)
    save_plan(Plan(found, "os:abort", (1, 32, 32)), plan)

    def unloadable(spec, **options):
        raise ModelError(f"was told to load {spec}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hgpart.load_model", unloadable)
    fails(capsys, [*command, plan, "--no-cache"], 4, "was told to load lenet5")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0\n1\nx\n", "line 3"),
        ("0 1 0", "the end of the file after 3 of 238 parts"),
        ("0\n" * 239, "line 239"),
        ("0\n" * 237 + "2\n", "line 238"),
    ],
)
def test_a_malformed_partition_file_names_the_line(text, said, capsys, tmp_path):
    file = tmp_path / "parts"
    file.write_text(text)
    out = fails(capsys, ["partition", "lenet5", "--partition", file, "--k", 2], 6, said)
    assert out == ""


def test_one_large_number_of_a_part_is_no_number_of_devices(capsys, tmp_path):
    """Tables for two million devices took 13 s and gigabytes, for a file of 476 bytes."""
    file = tmp_path / "parts"
    file.write_text("0\n" * 237 + "2655352\n")
    fails(capsys, ["partition", "lenet5", "--partition", file], 6, "line 238: found part '2655352'")


def test_work_of_another_model_or_no_work_is_refused(capsys, tmp_path):
    kept, wrong = tmp_path / "work.json", tmp_path / "wrong.json"
    hgpart(*LENET, "--work", f"flops,save={kept}")
    capsys.readouterr()
    fails(capsys, ["export", "alexnet", "--work", kept, "-o", wrong], 12, "another model")
    wrong.write_text(kept.read_text()[:200])
    fails(capsys, [*LENET, "--work", wrong], 6, "line")


def test_a_model_that_can_not_be_traced_says_where(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "class Loop(nn.Conv2d):\n"
        "    def forward(self, x):\n"
        "        while x.sum() > 0:\n"
        "            x = super().forward(x)\n"
        "        return x\n"
        "def net():\n"
        "    return Loop(3, 3, 3), (3, 16, 16)\n"
        "def shapeless():\n"
        "    return nn.Conv2d(3, 3, 3)\n"
    )
    fails(capsys, ["trace", f"{file}:net"], 5, "mine.py:4")
    fails(capsys, ["trace", f"{file}:shapeless"], 3, "--input-shape 3,224,224")
    fails(capsys, ["models", f"{file}:shapeless"], 4, "shape")


def test_a_model_that_ends_the_process_is_an_error(capsys, tmp_path, monkeypatch):
    """`sys.exit(0)` in a model's code ended the command with status 0 and without its file."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import sys\n"
        "from torch import nn\n"
        "class Leaving(nn.Conv2d):\n"
        "    def forward(self, x):\n"
        "        sys.exit(0)\n"
        "def net():\n"
        "    return Leaving(3, 3, 3), (3, 16, 16)\n"
        "def leaves():\n"
        "    sys.exit(0)\n"
    )
    plan = tmp_path / "plan.json"
    command = ["partition", f"{file}:net", "--k", "2", "-o", str(plan)]
    fails(capsys, command, 5, "mine.py:5: its code ends the process: sys.exit(0)")
    fails(capsys, ["trace", f"{file}:leaves"], 4, "SystemExit: 0")
    assert not plan.exists()

    def leave(*arguments):  # wherever else a command calls the model
        sys.exit(0)

    monkeypatch.setattr("hgpart.layers.layering.channel_graph", leave)
    fails(
        capsys,
        ["trace", "lenet5", "--no-cache"],
        4,
        "the model's code ends the process: sys.exit(0)",
    )


def test_what_a_plan_does_not_say_is_a_warning(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "from numpy import random\n"
        "class Halting(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x, module):\n"
        "        return module(x)\n"
        "class Net(torch.nn.Conv2d):\n"
        "    def forward(self, x):\n"
        "        x = super().forward(x) * random.rand()\n"
        "        return Halting.apply(x, torch.relu).view(2, 3, -1)[:, :, :int(x.shape[0])]\n"
        "def net():\n"
        "    return Net(3, 3, 3), (3, 16, 16)\n"
    )
    hgpart("trace", f"{file}:net")
    assert capsys.readouterr().err.splitlines() == [
        f"hgpart: warning: the model itself draws from NumPy's generator (read at {file}:9) in "
        "each forward pass: the model can be divided, but not placed",
        "hgpart: warning: the backward pass has Halting, an autograd.Function that takes a "
        "builtin_function_or_method: in parts the model runs, but can't be trained",
        "hgpart: warning: the model computes with its batch size, here 2: in parts it takes whole "
        "batches only, and is traced anew for each other size",
    ]


def test_a_missing_package_names_its_install_command(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    fails(capsys, ["trace", "timm:resnet18"], 10, "pip install")


def test_a_result_that_can_not_be_written_leaves_what_was_there(capsys, monkeypatch, tmp_path):
    def full(written, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    file = tmp_path / "figures.json"
    file.write_text("old")
    fails(capsys, [*LENET, "--json", file], 11, "No space left on device")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


# ------------------------------------------------------------------ how it ends


PROGRAM = "from hgpart.cli import main; main()"
# With a command that prints, and does not import torch for that as the others do.
SAYING = """
from hgpart.cli import app, main
from hgpart.cli.outputs import plain_console
app.command("say")(lambda: plain_console().print("said"))
main()
"""


def process(*arguments, program=PROGRAM, stdout=subprocess.PIPE):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )


def test_the_process_ends_with_the_status_of_the_error():
    ended = process("partition", "lenet5", "--k", "2", "--json", "nowhere/x.json")
    assert ended.returncode == 11
    assert ended.stdout == ""
    assert ended.stderr.startswith("hgpart: error: --json nowhere/x.json: ")
    assert ended.stderr.count("\n") == 1


def interrupt(*arguments):
    raise KeyboardInterrupt


def test_an_interrupt_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("hgpart.layers.layering.channel_graph", interrupt)
    assert run(["trace", "lenet5", "--no-cache"]) == 130
    assert capsys.readouterr().err == "hgpart: interrupted\n"


def test_an_interrupt_of_the_imports_is_one_line():
    """Ctrl-C in the first half second was a traceback, and status 1."""
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'hgpart.cli.options':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from hgpart.__main__ import main; main()"
    )
    command = [sys.executable, "-c", code, "models"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (130, "hgpart: interrupted\n")


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [[], ["--backend", "exact"]])
def test_ctrl_c_in_a_search_keeps_its_best_and_says_so(options, capsys, monkeypatch, tmp_path):
    """The status was 0, and nothing told the partition from what a whole search finds."""

    def start(problem, search, bound):
        return native_partition(problem, replace(search, on_progress=interrupt), bound)

    monkeypatch.setattr("hgpart.partition.exact.counting.native_partition", start)
    monkeypatch.setattr("hgpart.cli.stages.Stages.search", interrupt)  # of backend native
    plan, first, second = (tmp_path / name for name in ("plan.json", "first", "second"))
    job = ["partition", "lenet5", "--k", "3", "--effort", "0.1", *options]
    assert run([*job, "-o", str(plan), "--json", str(first)]) == 130
    out, err = capsys.readouterr()
    said = "Ctrl-C ended the search: this is the best that it had found"
    assert out.splitlines()[1] == said
    assert err == "hgpart: interrupted in the search: the partition is the best by then\n"
    assert load_plan(plan).interrupted
    hgpart("show", plan, "--json", second)
    assert capsys.readouterr().out.splitlines()[1] == said
    assert without_seconds(first) == without_seconds(second)
    assert json.loads(first.read_text())["interrupted"] is True


def test_a_whole_search_was_not_interrupted(tmp_path):
    hgpart(*LENET, "--json", tmp_path / "figures")
    assert json.loads((tmp_path / "figures").read_text())["interrupted"] is False


def test_a_reader_that_has_enough_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    ended = process("say", program=SAYING, stdout=writing)
    os.close(writing)
    assert ended.returncode == 11
    assert ended.stderr == ""


def test_a_full_disk_behind_standard_output_is_one_line():
    with Path("/dev/full").open("w") as full:
        ended = process("say", program=SAYING, stdout=full)
    assert ended.returncode == 11
    assert ended.stderr == "hgpart: error: can't write the output: No space left on device\n"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_help_and_version_do_not_wait_for_torch(option):
    code = (
        "import sys; from hgpart.cli import run; status = run(sys.argv[1:]); "
        "sys.exit(9 if 'torch' in sys.modules else status)"
    )
    ended = subprocess.run([sys.executable, "-c", code, option], capture_output=True, timeout=120)
    assert ended.returncode == 0
    assert b"hgpart" in ended.stdout


def test_no_argument_at_all_shows_the_help(capsys):
    hgpart()
    out = capsys.readouterr().out
    for command in ("partition", "models", "trace", "export", "verify"):
        assert command in out
