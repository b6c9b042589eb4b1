"""Seconds of a step in two processes of which one has half a core: equal shares beside ours.

    python benchmarks/unequal_devices.py --json rows.jsonl [--only vgg11:16] [--by cgroup]

Each process is pinned to a core of its own. A program that never waits shares the second core
(--by neighbour), or a cgroup gives the second process half of each 10 ms (--by cgroup: Linux, as
root). The processes measure their links and speeds, `hgpart calibrate`'s figures; layers are timed
on the first core. Then of each cell: the way recommended for these devices, the same as if both
were equally fast, data parallelism with equal shares and with ours, one process on the fast core,
and torch's DDP, each predicted on the measured machine and run, in turns. Run it on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

import hgpart
from hgpart.calibration.calibrate import calibrate
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.machines.machine import Machine
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named
from hgpart.placement import place
from hgpart.plan import Plan, load_plan, save_plan
from hgpart.prediction.predict import predict
from hgpart.recommendation.ways import rank_ways
from hgpart.run.measuring import mean_square, measure
from hgpart.run.processes.connection import connect
from hgpart.run.processes.launch import launch
from hgpart.run.scheduling import wanted_schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.timing.layer_timing import time_layers
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.work.layer_times import LayerTimes, training_work

CELLS = {  # the batch and the shape of a sample
    "resnet18:16": (16, (3, 64, 64)),
    "vgg11:16": (16, (3, 64, 64)),
    "resnet50:16": (16, (3, 128, 128)),
    "mobilenet_v2:32": (32, (3, 64, 64)),
    "unet:8": (8, (3, 64, 64)),
}
CGROUP = Path("/sys/fs/cgroup/cpu")
PERIOD = 10_000  # microseconds, of which the second process has half
DDP = "torch's DDP"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", help="of cells, as resnet18:16,vgg11:16")
    parser.add_argument("--by", choices=("neighbour", "cgroup"), default="neighbour")
    parser.add_argument("--machine", type=Path, help="a file of such processes, else measured")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=60.0, help="of each recommendation")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {0})
    with tempfile.TemporaryDirectory() as folder, limited(asked.by) as group:
        work = Path(folder)
        file = asked.machine or work / "machine.json"
        if asked.machine is None:
            launch(__file__, ["calibrate", group, str(file)], 2)
        machine = hgpart.files.load_machine(file)
        if machine.speeds is None:
            sys.exit("both processes are equally fast: is the first core idle?")
        say(f"speeds {machine.speeds} by {asked.by}")
        for name in asked.only.split(",") if asked.only else CELLS:
            for row in rows_of(name, machine, asked, work, group):
                with asked.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    show([json.loads(line) for line in asked.json.read_text().splitlines()])


@contextmanager
def limited(by: str) -> Iterator[str]:
    """Let the second core, or who joins the cgroup that is returned, have half of its time."""
    if by == "neighbour":
        command = [
            sys.executable,
            "-c",
            "import os\nos.sched_setaffinity(0, {1})\nwhile True: pass",
        ]
        neighbour = subprocess.Popen(command)
        try:
            yield ""
        finally:
            neighbour.kill()
            neighbour.wait()
        return
    group = CGROUP / f"hgpart-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(PERIOD // 2))
        yield str(group)
    finally:
        group.rmdir()


def rows_of(
    name: str, machine: Machine, asked: argparse.Namespace, work: Path, group: str
) -> Iterator[dict[str, Any]]:
    """Predicted and measured seconds of each way of a cell."""
    batch, shape = CELLS[name]
    model = name.partition(":")[0]
    say(f"{name}: profile")
    module, _ = hgpart.load_model(model, device="meta")
    traced = trace(module, example_inputs(module, shape))
    graph = channel_graph(traced)
    times = time_layers(module, traced, graph, batch_size=batch)
    alike = replace(machine, devices=(machine.devices[0],) * 2)
    options: dict[str, Any] = {"batch_size": batch, "time_limit": asked.time_limit, "name": model}
    say(f"{name}: recommend")
    found = rank_ways(module, traced, graph, times, machine, **options)
    equal = rank_ways(module, traced, graph, times, alike, **options)
    problem = Problem(graph, training_work(times, graph, batch), Modelling(batch_size=batch), 2)

    def divided(way: str, speeds: tuple[float, ...] | None) -> Plan:
        partition = way_named(way).partition(replace(problem, speeds=speeds), Search())
        return Plan(partition, model, shape, Scheduling("greedy"))

    plans = {
        f"recommended: {found.best.trial.text}": found.best.plan,
        f"recommended as if equal: {equal.best.trial.text}": equal.best.plan,
        "data-parallel by speeds": divided("data-parallel", machine.speeds),
        "data-parallel, equal shares": divided("data-parallel", None),
        "one process": found.one_device.plan,
    }
    for number, plan in enumerate(plans.values()):
        save_plan(plan, work / f"{number}.json")
    measured: dict[str, list[float]] = {text: [] for text in (*plans, DDP)}
    for turn in range(asked.rounds):
        for number, text in [*enumerate(measured)][:: -1 if turn % 2 else 1]:
            say(f"{name}, round {turn + 1}: {text}")
            file, out = work / f"{number}.json", work / "seconds"
            k = 2 if text == DDP else plans[text].partition.k
            what = str(file) if text != DDP else f"{model}:{batch}:{','.join(map(str, shape))}"
            launch(__file__, ["run", group, what, str(asked.steps), str(out)], k)
            measured[text].append(float(out.read_text()))
    for text, seconds in measured.items():
        plan = plans.get(text)
        predicted = None if plan is None else predicted_seconds(module, plan, machine, times)
        yield {
            "cell": name,
            "by": asked.by,
            "speeds": [device.speed for device in machine.devices],
            "way": text,
            "predicted": predicted,
            "measured": statistics.median(seconds),
            "rounds": seconds,
        }


def predicted_seconds(
    module: torch.nn.Module, plan: Plan, machine: Machine, times: LayerTimes
) -> float:
    """Of a step that follows another, without the optimizer, as `measure` runs it."""
    k, batch = plan.partition.k, plan.partition.modelling.batch_size
    placement = place(module, plan, ["meta"] * k)
    assert plan.scheduling is not None
    made = wanted_schedule(placement, plan.scheduling, True, batch_size=batch)
    return predict(placement, made, machine.of_fastest(k), times, batch).period


# ------------------------------------------------------------------ in each process


def rank(task: str, group: str, *arguments: str) -> None:
    own = int(os.environ["RANK"])
    os.sched_setaffinity(0, {own})
    if group and own == 1:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    hgpart.keep_freed_memory()
    k = int(os.environ["WORLD_SIZE"])
    with connect(k) as connection:
        if task == "calibrate":
            machine = calibrate(connection, 1)
            if own == 0:
                hgpart.files.save_machine(machine, arguments[0])
            return
        file, steps, out = arguments
        count = int(steps)
        if not file.endswith(".json"):
            seconds = ddp_seconds(file, count, k)
        else:
            plan = load_plan(file)
            module, _ = hgpart.load_model(plan.model, seed=0)
            placement = place(module, plan, ["cpu"] * k, parts=[own])
            images = torch.randn(plan.modelling.batch_size, *plan.input_shape)
            options: dict[str, Any] = {"backward": True, "scheduling": plan.scheduling}
            ran = measure(placement, images, count, connection=connection, **options)
            seconds = ran.seconds / ran.steps
        if own == 0:
            Path(out).write_text(str(seconds))


def ddp_seconds(cell: str, steps: int, k: int) -> float:
    """A step of torch's DDP with equal shares, without the optimizer."""
    name, batch, shape = cell.split(":")
    module, _ = hgpart.load_model(name, seed=0)
    model = DistributedDataParallel(module)
    images = torch.randn(int(batch) // k, *map(int, shape.split(",")))
    begin = 0.0
    for step in range(steps + 2):  # in the second step DDP still sorts its buckets
        if step == 2:
            torch.distributed.barrier()
            begin = time.perf_counter()
        model.zero_grad()
        mean_square(model(images)).backward()
    torch.distributed.barrier()
    return (time.perf_counter() - begin) / steps


# ------------------------------------------------------------------ tables


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("cell", "by", "speeds", "way", "predicted ms", "measured ms", "error", "speed-up")
    alone = {
        (row["cell"], row["by"]): row["measured"] for row in rows if row["way"] == "one process"
    }
    for row in rows:
        predicted, measured = row["predicted"], row["measured"]
        error = "-" if predicted is None else f"{predicted / measured - 1:+.1%}"
        table.add_row(
            row["cell"],
            row["by"],
            ", ".join(map(str, row["speeds"])),
            row["way"],
            "-" if predicted is None else f"{1000 * predicted:,.1f}",
            f"{1000 * measured:,.1f}",
            error,
            f"{alone[row['cell'], row['by']] / measured:.2f}",
        )
    Console(width=150).print(table)


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank(*sys.argv[1:])
    else:
        main()
