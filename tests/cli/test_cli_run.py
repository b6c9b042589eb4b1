"""`hgpart run`: throughput, time and bytes of a placed model, in processes and in one."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from dataclasses import replace

import pytest
import torch
from progress_lines import without_progress
from traces import assert_is_trace

from hgpart import load_model, place, schedule
from hgpart.cli import main, run
from hgpart.cli.processes import device_of_each
from hgpart.errors import ArgumentError, OutputError
from hgpart.files import save_schedule
from hgpart.placement.ordering.usual_schedule import Fastest
from hgpart.placement.programs import Programs
from hgpart.plan import keep_schedule, load_plan
from hgpart.run.processes.heartbeats import Heartbeats
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.outline import Stretch
from hgpart.schedules.rules import RULES


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """One thread a process, and not as if torchrun had started the tests."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


ASYNC = ("--backward", "--schedule", "async")


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    for k, grain in ((1, "coarse"), (2, "fine")):
        arguments = [
            "partition",
            "lenet5",
            "--effort",
            0,
            "--k",
            k,
            "--modelling",
            f"grain={grain}",
        ]
        assert run([*map(str, [*arguments, "--batch-size", 8, "-o", folder / f"{k}.json"])]) == 0
    return folder


def hgpart_run(plans, k, *arguments):
    return run(["run", "lenet5", "--plan", str(plans / f"{k}.json"), *map(str, arguments)])


def fails(capfd, status, said, code):
    """The command failed with one line that says it."""
    assert code == status
    out, err = capfd.readouterr()
    err = without_progress(err)
    assert err.startswith("hgpart: error: ")
    assert err.count("\n") == 1
    assert said in err
    assert out == ""


def volume(plans, k):
    return load_plan(plans / f"{k}.json").volume_bytes


def check_figures(found, plans, k, steps, backward):
    """The bytes are those of the plan, and each part's add up to them."""
    assert found["as_planned"] is True
    assert (found["k"], found["steps"], found["backward"]) == (k, steps, backward)
    assert found["forward_bytes"] == found["planned_forward_bytes"] == volume(plans, k) * steps
    assert found["backward_bytes"] == found["planned_backward_bytes"]
    assert bool(found["backward_bytes"]) == backward
    assert found["samples_per_second"] == pytest.approx(
        steps * found["batch_size"] / found["seconds"]
    )
    assert [part["part"] for part in found["parts"]] == list(range(k))
    for way in ("forward", "backward"):
        for verb in ("sent", "received"):
            total = sum(part[f"{verb}_{way}_bytes"] for part in found["parts"])
            assert total == found[f"{way}_bytes"]
    assert all(part["forward_busy"] > 0 for part in found["parts"])
    assert all((part["backward_busy"] > 0) == backward for part in found["parts"])
    assert all(part["peak_bytes"] == part["planned_peak_bytes"] for part in found["parts"])
    assert any(part["peak_bytes"] for part in found["parts"])


def test_in_processes(capfd, plans, tmp_path):
    weights = tmp_path / "weights.pt"
    torch.save(load_model("lenet5", seed=3)[0].state_dict(), weights)
    options = ("--steps", 3, "--backward", "--weights", weights, "--json", tmp_path / "run.json")
    assert hgpart_run(plans, 2, *options, "--timeline", tmp_path / "times.json") == 0
    out, err = capfd.readouterr()
    kept = load_plan(plans / "2.json").scheduling
    assert without_progress(err) in ("", f"{Fastest(kept, 1.0, 1.0).text}\n")  # by the first run
    found = json.loads((tmp_path / "run.json").read_text())
    assert (found["backend"], found["batch_size"]) == ("gloo", 8)
    check_figures(found, plans, 2, steps=3, backward=True)
    # By chance a part takes longer than its work says, or others run.
    by_chance = r"Part \d has \d+ % of the multiply-acc(.*\n)*?  hgpart profile .*\n"
    by_chance += r"|The measured seconds can't be trusted.*\n(  .*\n)*"
    *lines, then = re.sub(by_chance, "", out).splitlines()
    assert then.startswith("Next: hgpart train --plan ")
    assert lines[0].startswith(f"{found['samples_per_second']:,.1f} samples/s, ")
    assert lines[1] == (
        "lenet5 on 2 devices (2 processes, gloo), 3 steps of 8 samples, forward and backward"
    )
    rows = [line.split() for line in lines if line.startswith(("0 (", "1 ("))]
    for row, part in zip(rows, found["parts"], strict=True):
        sent = (part["sent_forward_bytes"] + part["sent_backward_bytes"]) / 3e6
        assert float(row[-6]) == float(row[-5]) == pytest.approx(sent, abs=1e-4)
        assert row[-4] == row[-3]
        assert float(row[-2]) == float(row[-1]) == pytest.approx(part["peak_bytes"] / 1e6, abs=1e-4)
        shares = [part[f"{name}_share"] for name in ("busy", "waiting", "idle")]
        assert row[4:7] == [f"{100 * share:.1f}" for share in shares]
        assert sum(shares) == pytest.approx(1)
    assert found["bubble"] == pytest.approx(
        1 - sum(part["busy_share"] for part in found["parts"]) / 2
    )
    busiest = max(part["busy_share"] for part in found["parts"])
    assert found["busiest_share"] == pytest.approx(busiest)
    most = found["most_samples_per_second"]
    assert most == pytest.approx(found["samples_per_second"] / busiest)
    assert lines[-3] == (
        f"The busiest device works {100 * busiest:.1f} % of the time: without waiting it would do "
        f"{most:,.1f} samples/s, which no schedule of this plan exceeds"
    )
    assert f"{100 * found['simulated_bubble']:.1f} % by the schedule's own costs (sim" in lines[-2]
    assert_is_trace(tmp_path / "times.json", parts=2)
    assert lines[-1].endswith("in a step, to the byte as the plan says")


@pytest.mark.long
@pytest.mark.parametrize(
    ("carrier", "again"),
    [("threads", ""), pytest.param("gloo", ",recompute=yes", marks=pytest.mark.full)],
)
def test_with_batches_in_flight(capfd, plans, tmp_path, carrier, again):
    options = ("--steps", 5, "--backward", "--schedule", f"async,in-flight=3{again}")
    options += ("--timeline", tmp_path / "times.json")
    options += ("--backend", "threads") if carrier == "threads" else ()
    assert hgpart_run(plans, 2, *options, "--json", tmp_path / "run.json") == 0
    found = json.loads((tmp_path / "run.json").read_text())
    check_figures(found, plans, 2, steps=5, backward=True)
    assert (found["schedule"], found["in_flight"], found["stash"]) == ("async", 3, True)
    shown = capfd.readouterr().out
    told = " with maps recomputed" * bool(again)
    assert f"5 steps of 8 samples, 3 in flight (async){told}, forward and backward" in shown
    assert "stale: mean number of updates that a forward pass of the part was without" in shown
    for part in found["parts"]:
        assert 0 <= part["mean_staleness"] <= part["most_staleness"] < 3
        assert part["peak_bytes"] == part["planned_peak_bytes"] > 0
    events = assert_is_trace(tmp_path / "times.json", 2)
    updates = [one for one in events if (one["name"][0], one["cat"]) == ("U", "run")]
    assert len(updates) == 2 * 5


@pytest.mark.long
@pytest.mark.parametrize("carrier", ["threads", pytest.param("gloo", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("rule", "again"),
    [("greedy", ",recompute=yes"), pytest.param("zero-bubble", "", marks=pytest.mark.full)],
)
def test_in_micro_batches(capfd, plans, tmp_path, rule, again, carrier):
    options = ("--steps", 2, "--backward", "--micro-batches", 3, "--schedule", f"{rule}{again}")
    options += ("--backend", "threads") if carrier == "threads" else ()
    assert hgpart_run(plans, 2, *options, "--json", tmp_path / "run.json") == 0
    found = json.loads((tmp_path / "run.json").read_text())
    check_figures(found, plans, 2, steps=2, backward=True)
    assert (found["backend"], found["micro_batches"], found["schedule"]) == (carrier, 3, rule)
    assert found["recompute"] == bool(again)
    told = f"({rule})" + " with maps recomputed" * bool(again)
    assert f"2 steps of 8 samples in 3 micro-batches {told}, forward" in capfd.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("carrier", ["threads", pytest.param("gloo", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "rule", ["greedy", *(pytest.param(one, marks=pytest.mark.full) for one in [*RULES][:-1])]
)
def test_forward_passes_in_micro_batches(capfd, plans, tmp_path, rule, carrier):
    options = ("--steps", 2, "--micro-batches", 3, "--schedule", rule)
    options += ("--backend", "threads") * (carrier == "threads") + (
        "--timeline",
        tmp_path / "t.json",
    )
    assert hgpart_run(plans, 2, *options, "--json", tmp_path / "run.json") == 0
    found = json.loads((tmp_path / "run.json").read_text())
    check_figures(found, plans, 2, steps=2, backward=False)
    assert (found["backend"], found["micro_batches"], found["schedule"]) == (carrier, 3, rule)
    events = assert_is_trace(tmp_path / "t.json", parts=2)
    assert {(event["args"]["direction"], event["args"]["micro_batch"]) for event in events} == {
        ("forward", micro_batch) for micro_batch in range(3)
    }


@pytest.fixture(scope="module")
def schedules(plans):
    """A file for two parts and three micro-batches, and some that are not."""
    folder = plans / "schedules"
    folder.mkdir()
    for k in (1, 2):
        drawn = ("--schedule", "zero-bubble", "--micro-batches", 3, "-o", folder / f"{k}.json")
        assert run([*map(str, ["show", plans / f"{k}.json", *drawn])]) == 0
    text = (folder / "2.json").read_text()
    (folder / "spoiled.json").write_text(text.replace('"0:F0.0", ', ""))
    placement = place(load_model("lenet5")[0].eval(), load_plan(plans / "2.json"))
    save_schedule(folder / "forward.json", schedule(placement, "greedy", 3, backward=False))
    save_schedule(folder / "stream.json", schedule(placement, "async", 3))
    return folder


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("carrier", ["threads", pytest.param("gloo", marks=pytest.mark.full)])
@pytest.mark.parametrize("backward", [False, True])
def test_by_a_file(capfd, plans, schedules, tmp_path, backward, carrier):
    """It says the micro-batches; without backward passes its forward passes are run."""
    file = schedules / "2.json"
    options = ("--steps", 2, "--json", tmp_path / "run.json")
    options += ("--backward",) * backward + ("--backend", "threads") * (carrier == "threads")
    assert hgpart_run(plans, 2, *options, "--schedule", file) == 0
    found = json.loads((tmp_path / "run.json").read_text())
    check_figures(found, plans, 2, steps=2, backward=backward)
    assert (found["micro_batches"], found["schedule"]) == (3, str(file))
    assert f"2 steps of 8 samples in 3 micro-batches ({file}), forward" in capfd.readouterr().out


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--micro-batches", 9), 3, "9 micro-batches of a batch of 8: accepted are 1 to 8"),
        (("--micro-batches", 0), 3, "0 micro-batches: accepted is 1 or more"),
        (("--schedule", "zigzag"), 3, "schedule 'zigzag': accepted are sequential, gpipe, 1f1b, z"),
        (("--schedule", "2.json", "--micro-batches", 2), 3, "2.json: accepted is 3, for which"),
        (("--schedule", "2.json", "--batch-size", 2), 3, "3 micro-batches of a batch of 2: accept"),
        (("--schedule", "1.json"), 12, "1.json is a schedule of another plan (k=1): accepted is"),
        (("--schedule", "spoiled.json"), 6, "a valid order (part 0 does not do F0.0)"),
        (("--schedule", "../2.json"), 6, "../2.json, line 2: found"),
        (("--schedule", "forward.json", "--backward"), 3, "is a schedule without backward passes"),
        (("--backend", "nccl"), 3, "backend nccl on device cpu: accepted are GPUs, as in --devic"),
        (("--schedule", "async"), 3, "--schedule async without --backward: accepted is with it"),
        (("--schedule", "in-flight=3"), 3, "3 batches in flight by greedy: accepted with async"),
        ((*ASYNC[:2], "turns"), 3, "turns by a plan with the batch whole: accepted are plans over"),
        ((*ASYNC[:2], "async,in-flight=0"), 3, "0 batches in flight: accepted is 1 to 1000"),
        ((*ASYNC[:2], "async,in-flight=1001"), 3, "1001 batches in flight: accepted is 1 to 1000"),
        (
            (*ASYNC, "--micro-batches", 2),
            3,
            "2 micro-batches with async, whose parts work on other",
        ),
        (
            (*ASYNC[:2], "async,recompute=yes,stash=no"),
            3,
            "recompute without stash, with newer weights",
        ),
        (
            (*ASYNC, "--micro-batches", "norms=batch"),
            3,
            "norms of the batch with batches in flight",
        ),
        (("--schedule", "stash=no"), 3, "stash=no with greedy, which keeps no other weights"),
        (("--schedule", "stream.json", "--backward"), 3, "is for a stream of 3 batches: accepted"),
    ],
)
def test_what_no_schedule_can_do_is_refused_before_any_process_starts(
    capfd, plans, schedules, monkeypatch, options, status, said
):
    monkeypatch.chdir(schedules)
    monkeypatch.setattr("hgpart.cli.placing.start_ranks", lambda *_: pytest.fail("started"))
    fails(capfd, status, said, hgpart_run(plans, 2, *options))


NORM_OF_VECTORS = """
from torch import nn

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
"""


def test_a_norm_with_one_value_per_channel_is_refused_before_any_process_starts(
    capfd, tmp_path, monkeypatch
):
    (tmp_path / "models.py").write_text(NORM_OF_VECTORS)
    model, plan = f"{tmp_path / 'models.py'}:network", str(tmp_path / "plan.json")
    made = ["--k", "2", "--effort", "0", "--input-shape", "1,8,8", "--batch-size", "3", "-o", plan]
    assert run(["partition", model, *made]) == 0
    capfd.readouterr()
    for command in ("run", "train"):
        name = "hgpart.cli.placing.start_ranks"
        monkeypatch.setattr(name, lambda *_: pytest.fail("started"))
        options = ["--backward"] if command == "run" else ["--batch-size", "3"]
        options += ["--steps", "1", "--micro-batches", "2"]
        said = "2 has one value per channel in a batch or micro-batch of 1: accepted are more"
        fails(capfd, 13, said, run([command, model, "--plan", plan, *options]))


SCALED = """import torch
from torch import nn


class Scaled(nn.Conv2d):
    def __init__(self):
        super().__init__(8, 4, 3)
        self.register_buffer("scale", torch.full((8, 1, 1), 0.5), persistent=False)

    def forward(self, x):
        return super().forward(x * self.scale)


def network():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Scaled())
"""


@pytest.mark.full
def test_what_no_state_dict_has_needs_no_value_where_only_programs_are_wanted(
    capfd, tmp_path, monkeypatch
):
    (tmp_path / "models.py").write_text(SCALED)
    model, plan = f"{tmp_path / 'models.py'}:network", str(tmp_path / "plan.json")
    made = ["--k", "2", "--effort", "0", "--input-shape", "3,8,8", "--batch-size", "2", "-o", plan]
    assert run(["partition", model, *made]) == 0
    order = str(tmp_path / "order.json")
    wanted = ["--schedule", "gpipe", "--micro-batches", "2", "-o", order]
    assert run(["show", plan, "--model", model, *wanted]) == 0
    assert "holds at most 0: " in capfd.readouterr().out
    started = []
    monkeypatch.setattr("hgpart.cli.placing.start_ranks", lambda *_: started.append(True))
    options = ["--backward", "--micro-batches", "norms=batch", "--schedule", order]
    assert run(["run", model, "--plan", plan, *options]) == 0
    assert started


def test_in_one_process(capfd, plans):
    options = ("--steps", 2, "--backend", "threads", "--batch-size", 8, "--json", "-")
    assert hgpart_run(plans, 2, *options) == 0
    out, err = capfd.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["backend"] == "threads"
    check_figures(found, plans, 2, steps=2, backward=False)


def test_other_bytes_than_the_plans_are_an_error(capfd, plans, monkeypatch):
    expected = Programs.expected

    def one_byte_more(placement, batch_size):
        found = expected(placement, batch_size)
        traffic = found.traffic.copy()
        traffic[1, 0] += 1
        return replace(found, traffic=traffic)

    monkeypatch.setattr(Programs, "expected", one_byte_more)
    assert hgpart_run(plans, 2, "--steps", 1, "--backend", "threads") == 14
    out, err = capfd.readouterr()
    assert "in a step, not as the plan says" in out
    assert err.startswith(
        "hgpart: error: other bytes travelled than the plan says: forward, part 1 sent "
    )


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--steps", 0), 3, "--steps 0: accepted is 1 or more"),
        (("--batch-size", -1), 3, "--batch-size -1: accepted is 1 or more"),
        (("--batch-size", 10**20), 3, "accepted is 1 to 1048576"),
        (("--backend", "mpi"), 3, "backend 'mpi': accepted are gloo, nccl, threads"),
        (("--devices", "cpu,cpu,cpu"), 3, "--devices cpu,cpu,cpu: accepted are one for all and"),
        (("--timeline", "/nowhere/t.json"), 11, "--timeline /nowhere/t.json: there is no folder"),
        (("--json", "/nowhere/run.json"), 11, "--json /nowhere/run.json: there is no folder"),
        (("--unit", "TB"), 3, "unit 'TB': accepted are MB, GB, MiB, GiB"),
        (("--backend", "threads", "--weights", "/nowhere.pt"), 15, "/nowhere.pt"),
        (("--backend", "threads", "--devices", "gpu"), 13, "device 'gpu'"),
    ],
)
def test_what_is_wrong_is_one_line(capfd, plans, options, status, said):
    fails(capfd, status, said, hgpart_run(plans, 2, *options))


def test_a_plan_that_is_not_there(capfd, tmp_path):
    fails(capfd, 6, "no.json", run(["run", "lenet5", "--plan", str(tmp_path / "no.json")]))


def test_a_port_in_use(capfd, plans, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        fails(capfd, 14, "Address already in use", hgpart_run(plans, 2))


def test_another_number_of_processes_than_parts(capfd, plans, monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    code = hgpart_run(plans, 2)
    fails(capfd, 14, "there are 3 processes, the plan has k=2: accepted is 2", code)


def test_a_plan_that_recomputes_what_its_model_has_not_is_named(capfd, plans, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text((plans / "2.json").read_text())
    keep_schedule(plan, Scheduling(recompute=((Stretch(("no_step",)),), ())))
    said = f"the plan {plan}: part 0 is to recompute no_step, but has no step no_step"
    options = ["--plan", str(plan), "--backward", "--backend", "threads"]
    fails(capfd, 12, said, run(["run", "lenet5", *options]))


def test_a_timeline_of_several_machines(capfd, plans, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    said = "--timeline of processes on several machines, which have no clock in common: accepted"
    fails(capfd, 3, said, hgpart_run(plans, 2, "--timeline", "t.json"))


@pytest.mark.parametrize("command", [("run", "--steps", 1), ("train", "--steps", 1)])
def test_the_others_are_done_before_rank_0_prints(capfd, plans, monkeypatch, tmp_path, command):
    """hgpart train | head: a reader that had enough failed the others, who waited for rank 0."""
    reader, writer = os.pipe()
    os.close(reader)
    failures = []
    monkeypatch.setattr(Heartbeats, "tell", lambda self, cause: failures.append(cause))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ranks = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": free.getsockname()[1]}
    for name, value in {**ranks, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    name, *options = map(str, command)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert run([name, "lenet5", "--plan", str(plans / "1.json"), *options]) == 11
    assert failures == []
    assert without_progress(capfd.readouterr().err) == ""


def test_a_reader_that_has_enough_is_told_nothing(capfd, plans, monkeypatch):
    def launch(*arguments):
        raise OutputError("nobody reads what rank 0 prints")

    monkeypatch.setattr("hgpart.run.processes.launch.launch", launch)
    assert hgpart_run(plans, 2) == 11
    assert capfd.readouterr() == ("", "")


def test_a_rank_ends_before_python_does(monkeypatch):
    """A thread of gloo, left where a run has failed, aborts a process that is at its end."""

    class EndedError(Exception):
        pass

    def end(status):
        raise EndedError(status)

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "argv", ["hgpart", "run", "lenet5", "--plan", "/nowhere.json"])
    with pytest.raises(EndedError, match=r"^6$"):
        main()


@pytest.mark.full
def test_what_the_processes_find_wrong_is_one_line(capfd, plans):
    """Here a device that is not there; found in each process, said once."""
    fails(capfd, 13, "device cuda:99 is not there", hgpart_run(plans, 2, "--devices", "cuda:99"))


def test_a_device_for_each_part():
    assert device_of_each(("cuda",), 2) == ("cuda", "cuda")
    assert device_of_each(["cpu", "cuda:1"], 2) == ("cpu", "cuda:1")
    with pytest.raises(ArgumentError, match="one for each of 3 parts"):
        device_of_each(("cpu", "cpu"), 3)
