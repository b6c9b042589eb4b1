"""Simulated seconds of a step: --objective time beside least volume and the best cut of layers.

    python benchmarks/least_time.py --json results.jsonl [--models vgg16,unet] [--k 4,64]
                                    [--machines 10gbe,edge] [--machine machine.json] [--effort 0.3]
                                    [--time-limit 20]

Layers take what they would at so many multiply-accumulates a second, and a moment each: nothing is
measured, but for --machine, a file of `hgpart calibrate`: that is of its own devices, and layers
are profiled here. The file has a line for each row; what it holds is not simulated again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import MofNCompleteColumn, TimeElapsedColumn
from torch import nn

import hgpart
from hgpart.errors import HgpartError
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.machines.machine import Device, Link, Machine
from hgpart.partition.problem.memory import COPIES, MemoryLimits, part_memory
from hgpart.partition.problem.objectives import WIDE
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.topology import time_objective
from hgpart.recommendation.least_time import least_time
from hgpart.terminal import progress_bar, warn
from hgpart.timing.layer_timing import time_layers
from hgpart.work.figures import whole_work
from hgpart.work.layer_times import LayerTimes, Pass, ShareTimes, training_work

MODELS = {  # batch size, shape of a sample
    "vgg16": (16, (3, 224, 224)),
    "resnet50": (32, (3, 128, 128)),
    "mobilenet_v2": (32, (3, 224, 224)),
    "unet": (16, (3, 128, 128)),
    "densenet121": (32, (3, 128, 128)),
}
COMPARED = ("least volume, eps 0.03", "least volume, eps 0.1", "layers balanced")
HANDLING = 2e-5  # seconds that any layer takes before it computes


@dataclass(frozen=True)
class Setting:
    """A machine by its number of devices, and multiply-accumulates a second of one."""

    machine: Callable[[int], Machine]
    rate: float


def edge(k: int) -> Machine:
    """Small computers on 100 Mb/s Ethernet."""
    link = Link.of(latency=5e-4, bandwidth=100e6 / 8 * 0.94)
    return Machine(f"edge:{k}", (Device("edge"),) * k, (1,) * k, link, link if k > 1 else None)


SETTINGS = {
    "10gbe": Setting(lambda k: hgpart.files.load_machine("10gbe", k), 5e10),
    "nvlink-8": Setting(lambda k: hgpart.files.load_machine("nvlink-8", k), 5e12),
    "edge": Setting(edge, 2e9),
}


@dataclass(frozen=True)
class Subject:
    """A model, what it is divided by, and its layers' times."""

    module: nn.Module
    shape: tuple[int, ...]
    graph: ChannelGraph
    times: LayerTimes
    batch_size: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--machines", default=",".join(SETTINGS))
    parser.add_argument("--k", default="4,8,16,64,256,1024")
    parser.add_argument("--machine", type=Path, help="of 'hgpart calibrate', with all its devices")
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--time-limit", type=float, help="seconds, times the root of k, of a row")
    parser.add_argument(
        "--memory", type=float, help="of each device, as a share of what one alone would need"
    )
    asked = parser.parse_args()
    cells = list(cells_of(asked))
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=len(cells))
        for model, name, k in cells:
            bar.update(task, description=f"{model} {name} k={k}")
            if (model, name, k) not in done(asked.json):
                limit = asked.time_limit and asked.time_limit * max(1.0, k**0.5)
                row = row_of(model, name, k, Search(0, asked.effort, limit), asked.memory)
                with asked.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            bar.advance(task)
    show(rows_of(asked.json))


def cells_of(asked: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Of each model the machine that was measured, then others, few devices first."""
    models = asked.models.split(",")
    if asked.machine is not None:
        devices = hgpart.files.load_machine(asked.machine).k
        yield from ((model, str(asked.machine), devices) for model in models)
    counts = [int(k) for k in asked.k.split(",") if k]
    machines = [name for name in asked.machines.split(",") if name]
    yield from ((model, name, k) for k, model, name in itertools.product(counts, models, machines))


def row_of(
    model: str, name: str, k: int, search: Search, memory: float | None = None
) -> dict[str, Any]:
    """Simulate all of a cell: what is compared is among what least time chooses from."""
    setting = SETTINGS.get(name)
    subject = subject_of(model, setting)
    machine = hgpart.files.load_machine(name) if setting is None else setting.machine(k)
    work = training_work(subject.times, subject.graph, subject.batch_size)
    whole = whole_work(work, subject.graph)
    modelling = hgpart.Modelling(batch_size=subject.batch_size)
    objective = time_objective(machine, k, whole, 1)
    problem = Problem(subject.graph, work, modelling, k, WIDE, objective=objective)
    row: dict[str, Any] = {"model": model, "machine": name, "k": k, "one device": whole}
    if memory is not None:
        limit = int(memory * needed_alone(problem))
        problem = replace(problem, memory=MemoryLimits((limit,) * k))
        row["memory"] = limit
    begin = time.perf_counter()
    try:
        found = least_time(subject.module, subject.shape, problem, machine, subject.times, search)
        best = found.best
        row |= {"time": best.seconds, "way": best.trial.name, "m": best.scheduling.micro_batches}
        row["ways"] = {ranked.trial.name: ranked.seconds for ranked in found.ranked}
        row["left out"] = {dropped.what: dropped.why for dropped in found.dropped}
    except HgpartError as error:
        row |= {"ways": {}, "left out": {"time": str(error)}}
    row["seconds of time"] = time.perf_counter() - begin
    return row


def needed_alone(problem: Problem) -> int:
    """Bytes of one device that has all of a model."""
    model = problem.hypergraph(layer_blocks(problem.views))
    (needed,) = part_memory(model, np.zeros(len(model.vertex_layers), np.int32), 1, COPIES)
    return int(needed)


def subject_of(model: str, setting: Setting | None) -> Subject:
    """Trace; profile where the machine is one that was measured."""
    batch_size, shape = MODELS[model]
    module, _ = hgpart.load_model(model, device="meta")
    traced = hgpart.trace(module, hgpart.example_inputs(module, shape))
    graph = hgpart.channel_graph(traced)
    if setting is None:
        times = time_layers(module, traced, graph, batch_size=batch_size)
    else:
        times = by_operations(graph, setting.rate)
    return Subject(module.train(), shape, graph, times, batch_size)


def by_operations(graph: ChannelGraph, rate: float) -> LayerTimes:
    """Times of shares at so many multiply-accumulates a second; backward is forward twice."""
    found: list[ShareTimes | None] = []
    for layer in graph.layers:
        if not layer.operators:
            found.append(None)
            continue
        shares = sorted({1, layer.tasks})
        rows = tuple(
            tuple(HANDLING + samples * tasks * layer.macs / rate for samples in (1, 64))
            for tasks in shares
        )
        seconds = {which: rows for which in Pass}
        seconds[Pass.UPDATE] = tuple((HANDLING * tasks / layer.tasks,) for tasks in shares)
        found.append(ShareTimes(tuple(shares), seconds))
    return LayerTimes((1, 64), tuple(found), f"{rate:g} MAC/s")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What was simulated so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def done(path: Path) -> set[tuple[str, str, int]]:
    """Cells that the file has."""
    return {(row["model"], row["machine"], row["k"]) for row in rows_of(path)}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table, as Markdown: milliseconds of a step."""
    columns = ["one device", *COMPARED, "time"]
    print("|", " | ".join(["model", "machine", "k", *columns, "way", "m", "s"]), "|")
    print("|---|---|---:|" + "---:|" * len(columns) + "---|---:|---:|")
    for row in rows:
        known = row | row["ways"]
        times = [f"{1e3 * known[column]:.4g}" if column in known else "-" for column in columns]
        rest = [row.get("way", "-"), str(row.get("m", "-")), f"{row['seconds of time']:.0f}"]
        print("|", " | ".join([row["model"], row["machine"], str(row["k"]), *times, *rest]), "|")
        for way, why in row["left out"].items():
            if "imbalance" not in why and why != "out of time":
                warn(f"{row['model']} {row['machine']} k={row['k']}: {way}: {why}")


if __name__ == "__main__":
    main()
