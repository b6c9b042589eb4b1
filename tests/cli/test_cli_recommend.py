"""`hgpart recommend`: the best way, and a plan of it that trains without another option."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from toy_times import in_proportion

from hgpart import load_model
from hgpart.cli import run
from hgpart.cli.stages import then_of_plan
from hgpart.layers.layering import channel_graph
from hgpart.plan import load_plan
from hgpart.recommendation import ways as module
from hgpart.recommendation.trials import trials
from hgpart.tracing.input_shape import InputShape
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.work.layer_times import save_layer_times

FAST = {"latency": 1e-6, "bandwidth": 1e10}


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """One thread a process, not as if torchrun had started the tests; few divisions."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "trials", lambda k, *_, **__: trials(k)[:2])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A machine, and what layers take: long, so that to divide them pays."""
    folder = tmp_path_factory.mktemp("files")
    device = {"kind": "toy", "memory": None, "threads": 1}
    machine = {"format": "hgpart machine 1", "nodes": [2], "device": device, "inside": FAST}
    (folder / "machine.json").write_text(json.dumps(machine))
    module, shape = load_model("lenet5", device="meta")
    graph = channel_graph(trace(module, example_inputs(module, shape)))
    save_layer_times(in_proportion(graph, scale=1e3), graph, folder / "times.json")
    return folder


def hgpart_recommend(files, *arguments):
    options = {f"--{name}": files / f"{name}.json" for name in ("machine", "times")}
    named = [text for option in options.items() for text in option]
    output = ["-o", files / "best.json", "--batch-size", 8]
    return run(["recommend", "lenet5", *map(str, [*named, *output, *arguments])])


@pytest.mark.full
def test_the_plan_trains_by_itself(files, capfd):
    assert hgpart_recommend(files) == 0
    shown = capfd.readouterr().out.splitlines()
    assert shown[0].startswith("Best: data-parallel on 2 devices, ")
    assert "(simulated)" in shown[0]
    assert shown[-1].endswith(f"hgpart train --plan {files / 'best.json'}")
    plan = load_plan(files / "best.json")
    assert (plan.k, plan.modelling.batch_size) == (2, 8)
    options = ["--steps", "2", "--backend", "threads", "--json", "-"]
    assert run(["train", "lenet5", "--plan", str(files / "best.json"), *options]) == 0
    trained = json.loads(capfd.readouterr().out)
    assert trained["batch_size"] == 8
    assert trained["micro_batches"] == plan.scheduling.micro_batches


def test_what_comes_next_is_what_the_model_can_do():
    """A model without class scores was to be trained, which failed."""
    with torch.device("meta"):
        scores, boxes = nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))
    shape = InputShape((4,))
    assert then_of_plan(scores, shape, "--plan p") == "hgpart train --plan p"
    assert then_of_plan(boxes, shape, "--plan p") == "hgpart run --plan p --backward"


def test_a_plan_of_inference_is_run_forward(files, capfd):
    times = {"toy": files / "times.json"}
    kinds = ",".join(f"{kind}={file}" for kind, file in times.items())
    options = ["--goal", "latency", "--time-limit", 0, "--times", kinds]
    assert hgpart_recommend(files, *options) == 0
    shown = capfd.readouterr().out
    assert "s a batch (simulated)" in shown.splitlines()[0]
    assert shown.splitlines()[-1].endswith(f"hgpart run --plan {files / 'best.json'}")
    assert load_plan(files / "best.json").modelling.training is False
    assert hgpart_recommend(files, "--goal", "inference-throughput", "--measure", 2) == 3
    assert "accepted with goals of training and latency" in capfd.readouterr().err
    for wrong in ("toy=", f"toy={files / 'times.json'},toy={files / 'times.json'}"):
        assert hgpart_recommend(files, "--times", wrong) == 3
        assert "accepted is a file, or KIND=FILE" in capfd.readouterr().err
    assert hgpart_recommend(files, "--times", f"gpu={files / 'times.json'}") == 3
    assert "no layer times of 'toy'" in capfd.readouterr().err


def test_json_on_standard_output_is_all_there_is(files, capfd):
    assert hgpart_recommend(files, "--json", "-", "--time-limit", 0, "--data", "digits") == 0
    found = json.loads(capfd.readouterr().out)
    (alone,) = found["ways"]
    assert alone["way"] == "single"
    assert (
        found["epoch_steps"] == 1442 // 8
    )  # of scikit-learn's 1,797, a fifth of each is not learned
    assert alone["epoch_seconds"] == pytest.approx(1442 // 8 * alone["simulated_seconds"])
    assert load_plan(files / "best.json").k == 1


@pytest.mark.long
@pytest.mark.full
def test_processes_train_by_the_plan_alone(files, capfd):
    assert hgpart_recommend(files, "--measure", 1) == 0
    shown = capfd.readouterr().out
    assert " s a step (measured)" in shown.splitlines()[0]
    assert "torch ddp" in shown
    assert run(["train", "lenet5", "--plan", str(files / "best.json")]) == 0
    assert "100 steps of 8 samples" in capfd.readouterr().out


@pytest.mark.full
def test_latency_is_measured_in_passes_forward(files, capfd):
    assert hgpart_recommend(files, "--goal", "latency", "--measure", 1) == 0
    shown = capfd.readouterr().out
    assert " s a batch (measured)" in shown.splitlines()[0]
    assert "torch ddp" not in shown
    assert load_plan(files / "best.json").modelling.training is False


@pytest.mark.full
@pytest.mark.long
def test_all_is_measured_where_nothing_is_known(files, tmp_path, capfd, monkeypatch):
    output = tmp_path / "best.json"
    options = ["--devices", "2", "--batch-size", "4", "-o", str(output)]
    assert run(["recommend", "lenet5", *options]) == 0
    shown = capfd.readouterr().out
    assert "were measured now" in shown
    assert load_plan(output).scheduling is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--devices", 0), "--devices 0: accepted is 1 or more"),
        (("--devices", 3), "3 devices of a machine of 2: accepted are 1 to 2"),
        (("--batch-size", 0), "--batch-size 0: accepted is 1 or more"),
        (("--measure", -1), "--measure -1: accepted is a whole number, at least 0"),
        (("--goal", "fast"), "goal 'fast': accepted are time, memory, throughput"),
        (("--memory", "much"), "memory 'much'"),
        (("--memory", "1kB"), "no way to train lenet5 fits in memory: the one that needs least"),
        (("--machine", "nowhere"), "nowhere"),
        (("--machine", "10gbe:2", "--measure", 1), "--measure 1 with --machine 10gbe:2"),
        (("--times", "machine.json"), "machine.json"),
        (("--output", "."), "is a folder"),
        (("--data", "letters"), "data 'letters': accepted are synthetic, digits"),
        (("--data", "digits", "--goal", "latency"), "accepted with goals of training"),
        (("--micro-batches", 9), "9 micro-batches of a batch of 8: accepted are 1 to 8"),
    ],
)
def test_what_is_wrong_is_one_line(files, capfd, monkeypatch, arguments, said):
    monkeypatch.chdir(files)
    assert hgpart_recommend(files, *arguments) > 0
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("hgpart: error: ")
    assert said in err
