"""Seconds of a step within memory limits: what parts recompute is chosen, all of it, or nothing.

python benchmarks/memory.py --times FOLDER [--models a,b]
python benchmarks/memory.py --plan FOLDER [--models a,b] [--k 2,4] [--limits 1,0.7] [--slower 1e9]
python benchmarks/memory.py --measure FOLDER [--models a,b] [--steps 3] [--minutes 2.5]
python benchmarks/memory.py --kept FOLDER [--models a,b] [--steps 3]
python benchmarks/memory.py --table

A limit is a fraction of what one device needs. With --plan, `hgpart recommend` (its function in
Python) looks for the fastest of a few ways, three times: as it is; with nothing recomputed; and
with all steps recomputed, in about as many stretches as a stretch has steps (Chen et al., arXiv
1604.06174). With --slower it does so a fourth time, for devices with a slower memory of so many
bytes a second to offload to. FOLDER gets the plans, and the times of layers, measured first.
With --measure, plans for two devices are run as `hgpart train` does, in two processes that give
back what they free; the peak of each, without what it has when the libraries are loaded, and
without what it reads of their code later, stands beside the prediction.
With --kept, data parallelism on two devices is allowed ever less of what a step takes, and run.
Rows are in results/memory.jsonl; one that is there is not made again.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch

import hgpart
from hgpart.bench.ways.job import Job
from hgpart.bench.ways.placed import placed
from hgpart.bench.ways.way import TrainingWay
from hgpart.cli.stages import classes_of
from hgpart.cores import take_own_cores
from hgpart.errors import HgpartError
from hgpart.execution.outlines import chunk_steps
from hgpart.files import load_plan, save_plan
from hgpart.freed_memory import give_back_freed_memory, keep_no_freed_memory
from hgpart.hypergraph.modelling import Modelling
from hgpart.machines.machine import SlowerMemory
from hgpart.machines.named import named_machine
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named
from hgpart.placement import place
from hgpart.placement.accounting import part_step_bytes
from hgpart.placement.ordering.ordered import step_work
from hgpart.placement.ordering.within_memory import dropped_within
from hgpart.plan import Plan
from hgpart.recommendation import ways
from hgpart.recommendation.measured_here import times_here
from hgpart.recommendation.memory import lasting_bytes
from hgpart.recommendation.simulating import Simulations
from hgpart.recommendation.trials import Trial, trials
from hgpart.run.processes.launch import new_store, rank_environment
from hgpart.run.scheduling import schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.outline import Stretch
from hgpart.tracing.input_shape import InputShape
from hgpart.work.figures import flops
from hgpart.work.layer_times import LayerTimes, load_layer_times, save_layer_times

MODELS = {"vgg16": (16, 224), "resnet50": (16, 224), "unet": (8, 256)}  # samples, size of images
SMALLER = {"vgg16": (16, 128), "resnet50": (16, 128), "unet": (8, 128)}
LIMITS = 1.0, 0.7, 0.5, 0.35
KEPT = 1.0, 0.85, 0.7, 0.55  # of what a step takes, as far as that can be had
KEPT_HEAD = (
    "| model | kept | process | predicted MB | measured MB | ratio |",
    "|---|---|---|---|---|---|",
)
WAYS = "single", "data-parallel", "one-weird-trick", "spatial", "layerwise"
VARIANTS = "chosen", "offload", "nothing", "all"
RESULTS = Path(__file__).parent / "results" / "memory.jsonl"
KEY = "model", "k", "limit", "variant"
SECONDS = 1500.0  # of a search, at most

Row = dict[str, Any]


class Momentum(Job):
    """A training by the optimizer that plans count."""

    def new_optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(module.parameters(), lr=self.lr, momentum=0.9)


class Remembers(Simulations):
    """Places a way once for all limits, and simulates each of its schedules once."""

    placements: ClassVar[dict[str, Any]] = {}
    rankings: ClassVar[dict[Any, Any]] = {}

    @classmethod
    def forget(cls) -> None:
        """Begin with another model or other devices."""
        cls.placements.clear()
        cls.rankings.clear()

    def _placed(self, divided: Any) -> Any:
        text = divided.trial.text
        if text not in self.placements:
            self.placements[text] = super()._placed(divided)
        known = self.placements[text]
        return known and replace(known, divided=divided)

    def _ranked(self, placed: Any, scheduling: Any) -> Any:
        key = placed.divided.trial.text, scheduling
        if key not in self.rankings:
            self.rankings[key] = super()._ranked(placed, scheduling)
        return self.rankings[key]


class RecomputesNothing(Remembers):
    """Ways that do not fit as they are do not fit."""

    def _try(self, placed: Any, scheduling: Any) -> None:
        if not scheduling.recompute:
            super()._try(placed, scheduling)


class RecomputesAll(Remembers):
    """All ways of several devices recompute all steps."""

    def _try(self, placed: Any, scheduling: Any) -> None:
        placement = placed.placement
        if placement.k > 1:
            parts = placement.programs.parts
            every = ([*chain(*chunk_steps(parts[part]))] for part in range(placement.k))
            scheduling = replace(scheduling, recompute=tuple(map(in_stretches, every)))
        super()._try(placed, scheduling)


def in_stretches(steps: list[str]) -> tuple[Stretch, ...]:
    """About as many as each has steps."""
    length = math.ceil(math.sqrt(len(steps))) if steps else 1
    return tuple(Stretch(tuple(steps[at : at + length])) for at in range(0, len(steps), length))


def known_ways(k: int, *settings: Any, **more: Any) -> tuple[Trial, ...]:
    """A few ways for one device and for all, whose partitions take a moment."""
    listed = trials(k, *settings, **more)
    return tuple(trial for trial in listed if trial.k in (1, k) and trial.way.name in WAYS)


SEARCHES = {
    "chosen": Remembers,
    "offload": Remembers,
    "nothing": RecomputesNothing,
    "all": RecomputesAll,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--k", default="2,4")
    parser.add_argument("--limits", default=",".join(map(str, LIMITS)))
    parser.add_argument("--slower", type=float)
    parser.add_argument("--times", type=Path)
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--worker", nargs=5)
    options = parser.parse_args()
    options.ends = time.monotonic() + 60 * options.minutes
    if options.worker:
        work(*options.worker)
    elif options.times:
        time_all(options)
    elif options.plan:
        plan_all(options)
    elif options.measure:
        measure_all(options)
    elif options.kept:
        kept_all(options)
    else:
        table(rows())


def rows() -> list[Row]:
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def write(done: list[Row]) -> None:
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in done))


# ------------------------------------------------------------------ plans


def time_all(options: argparse.Namespace) -> None:
    options.times.mkdir(exist_ok=True, parents=True)
    for name in options.models.split(","):
        batch, size = MODELS[name]
        module, traced, graph = traced_model(name, size)
        times_of(options.times / f"{name}_times.json", module, traced, graph, batch)


def plan_all(options: argparse.Namespace) -> None:
    options.plan.mkdir(exist_ok=True, parents=True)
    ways.trials = known_ways  # type: ignore[assignment, attr-defined]
    known = {tuple(row[name] for name in KEY) for row in rows()}
    for name in options.models.split(","):
        batch, size = MODELS[name]
        module, traced, graph = traced_model(name, size)
        times = times_of(options.plan / f"{name}_times.json", module, traced, graph, batch)
        for k in map(int, options.k.split(",")):
            machine = named_machine("10gbe", k)
            assert machine is not None
            Remembers.forget()
            ways.Simulations = Remembers  # type: ignore[attr-defined]
            asked = {"batch_size": batch, "name": name, "time_limit": SECONDS}
            free = hgpart.rank_ways(module, traced, graph, times, machine, memory=2**50, **asked)
            whole = free.one_device.largest_bytes
            assert whole is not None
            for limit in map(float, options.limits.split(",")):
                for variant in VARIANTS:
                    if (name, k, limit, variant) in known or time.monotonic() > options.ends:
                        continue
                    if variant == "offload" and options.slower is None:
                        continue
                    slower = SlowerMemory(options.slower) if variant == "offload" else None
                    devices = tuple(replace(own, slower=slower) for own in machine.devices)
                    here = replace(machine, devices=devices)
                    ways.Simulations = SEARCHES[variant]  # type: ignore[attr-defined]
                    row = dict(zip(KEY, (name, k, limit, variant), strict=True))
                    row |= {"batch_size": batch, "size": size, "one_device_bytes": whole}
                    row["one_device_seconds"] = free.one_device.seconds
                    memory = round(limit * whole)
                    try:
                        found = hgpart.rank_ways(
                            module, traced, graph, times, here, memory=memory, **asked
                        )
                    except HgpartError as error:
                        row["why"] = str(error)
                    else:
                        split = [way for way in found.ranked if way.k > 1]
                        if split:
                            best = split[0]
                            file = options.plan / f"{name}-{k}-{limit}-{variant}.json"
                            save_plan(best.plan, file)
                            row |= {
                                "way": best.trial.text,
                                "schedule": best.scheduling.text,
                                "seconds": best.seconds,
                                "needed": best.needed_bytes,
                            }
                    write([*rows(), row])
                    print({**row, "one_device_bytes": whole / 1e6}, flush=True)


def traced_model(name: str, size: int) -> tuple[Any, Any, Any]:
    model, _ = hgpart.load_model(name, device="meta")
    traced = hgpart.trace(model.train(), hgpart.example_inputs(model, (3, size, size)))
    return model, traced, hgpart.channel_graph(traced)


def times_of(file: Path, module: Any, traced: Any, graph: Any, batch: int) -> LayerTimes:
    if not file.exists():
        save_layer_times(times_here(module, traced, graph, batch, 1), graph, file)
    return load_layer_times(file, graph)


# ------------------------------------------------------------------ measured


def measure_all(options: argparse.Namespace) -> None:
    done = rows()
    for row in done:
        if row["k"] != 2 or row["model"] not in options.models.split(",") or "needed" not in row:
            continue
        if "measured" in row or time.monotonic() > options.ends:
            continue
        name = "-".join(str(row[field]) for field in KEY)
        file = options.measure / f"{name}.json"
        alike = next(
            (
                other
                for other in done
                if "measured" in other
                and other["model"] == row["model"]
                and same_plan(file, options.measure, other)
            ),
            None,
        )
        laps = alike["measured"] if alike else measured(file, row, options.steps)
        row["measured"] = laps
        write(done)
        print(name, row["seconds"], row["needed"], laps, flush=True)


def same_plan(file: Path, folder: Path, other: Row) -> bool:
    """Whether two rows have the same plan, whatever limit it was made for."""
    theirs = folder / f"{'-'.join(str(other[field]) for field in KEY)}.json"
    return theirs.read_bytes() == file.read_bytes()


def measured(file: Path, row: Row, steps: int) -> list[dict[str, Any]]:
    """Seconds and peak bytes of each process."""
    k, store = row["k"], new_store("0")
    processes = []
    for rank in range(k):
        asked = [file, row["model"], row["batch_size"], row["size"], steps]
        environment = {
            **os.environ,
            **rank_environment(rank, k, store.port),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, __file__, "--worker", *map(str, asked)]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        )
    answers = [process.communicate()[0] for process in processes]
    return [json.loads(answer.splitlines()[-1]) for answer in answers]


def work(file: str, name: str, batch: str, size: str, steps: str) -> None:
    """A process of a plan: a line with the seconds of its steps and the most that it had."""
    rank, k = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    keep_no_freed_memory()
    take_own_cores(rank, k, 1)
    torch.set_num_threads(1)
    load_libraries(name)
    shape = (3, int(size), int(size))
    plan = load_plan(file)
    empty, _ = hgpart.load_model(name, device="meta")
    classes = classes_of(empty, InputShape(shape))
    job = Momentum(name, InputShape(shape), classes, int(batch), k)
    way = TrainingWay("plan", "plan", scheduling=plan.scheduling or Scheduling())
    before, code = account("VmRSS"), account("RssFile")
    ends: list[float] = []
    with placed(way, job, plan, rank) as worker:
        give_back_freed_memory()
        lasting = account("VmRSS")
        worker.learn(0, 1, lambda: None)
        Path("/proc/self/clear_refs").write_text("5")
        ends.append(time.perf_counter())
        worker.learn(1, int(steps), lambda: ends.append(time.perf_counter()))
        peak = account("VmHWM") - account("RssFile") + code
    each = [end - begin for begin, end in pairwise(ends)]
    print(json.dumps({"seconds": each, "peak": peak - before, "placed": lasting - before}))


def load_libraries(name: str) -> None:
    """Trace a small model, and train the named one on small images without hgpart.

    So all libraries are in memory, with the code that each kind of layer runs.
    """
    model, shape = hgpart.load_model("lenet5")
    hgpart.trace(model.train(), hgpart.example_inputs(model, shape))
    model, _ = hgpart.load_model(name)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01, momentum=0.9)
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    optimizer.step()
    del model, optimizer
    gc.collect()
    give_back_freed_memory()


def account(name: str) -> int:
    """Bytes by Linux's account of this process; see proc(5)."""
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


# ------------------------------------------------------------------ plans by data parallelism


def kept_all(options: argparse.Namespace) -> None:
    """Measure plans for two devices that are allowed some of what a step takes."""
    options.kept.mkdir(exist_ok=True, parents=True)
    print(*KEPT_HEAD, sep="\n")
    for name in options.models.split(","):
        batch, size = SMALLER[name]
        module, _, graph = traced_model(name, size)
        problem = Problem(graph, flops(graph), Modelling(batch_size=batch), 2)
        partition = way_named("data-parallel").partition(problem, Search(), bound=0)
        plan = Plan(partition, name, InputShape((3, size, size)), Scheduling("gpipe"))
        placement = place(module, plan, ["meta"] * 2)
        order = schedule(placement, "gpipe", batch_size=batch)
        lasting = lasting_bytes(placement, batch)
        work = [*step_work(placement.programs).values()]
        taken = [part_step_bytes(placement, part, order, batch).taken for part in range(2)]
        for share in KEPT:
            limits = [round(share * most) for most in taken]
            chosen = dropped_within(placement, order, limits, work, batch)
            if chosen is None:
                break
            scheduling = Scheduling("gpipe", recompute=chosen)
            own = schedule(placement, "gpipe", batch_size=batch, recompute=chosen)
            step = [part_step_bytes(placement, part, own, batch).taken for part in range(2)]
            needed = [kept + most for kept, most in zip(lasting, step, strict=True)]
            file = options.kept / f"{name}-{share}.json"
            save_plan(replace(plan, scheduling=scheduling), file)
            row = {"model": name, "k": 2, "batch_size": batch, "size": size}
            for rank, lap in enumerate(measured(file, row, options.steps)):
                peak = lap["peak"]
                said = f"{needed[rank] / 1e6:.1f} | {peak / 1e6:.1f} | {peak / needed[rank]:.3f}"
                print(f"| {name} | {share} | {rank} | {said} |", flush=True)


# ------------------------------------------------------------------ tables


def table(done: list[Row]) -> None:
    print(*lines_of_seconds(done), sep="\n")
    print()
    print(*lines_of_peaks(done), sep="\n")


def lines_of_seconds(done: list[Row]) -> Iterator[str]:
    cells = {tuple(row[name] for name in KEY): row for row in done}
    yield "| model | k | limit | GB | chosen | with offload | nothing | all | measured | way |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for model, k, limit in dict.fromkeys(key[:3] for key in cells):
        own = [cells.get((model, k, limit, variant), {}) for variant in VARIANTS]
        seconds = [f"{row['seconds']:.3g}" if "seconds" in row else "-" for row in own]
        really = [f"{median(row):.3g}" if "measured" in row else "-" for row in own]
        size = limit * own[0]["one_device_bytes"] / 1e9
        way = f"{own[0].get('way', '')}, {own[0].get('schedule', own[0].get('why', ''))}"
        times = " ".join(really) if k == 2 else ""
        yield f"| {model} | {k} | {limit} | {size:.2f} | {' | '.join(seconds)} | {times} | {way} |"


def median(row: Row) -> float:
    """Seconds of a step of the process that takes longest."""
    each = [sorted(lap["seconds"]) for lap in row["measured"]]
    return max(float(laps[len(laps) // 2]) for laps in each)


def lines_of_peaks(done: list[Row]) -> Iterator[str]:
    yield "| model | limit | recomputed | process | predicted MB | measured MB | ratio |"
    yield "|---|---|---|---|---|---|---|"
    for row in done:
        for rank, lap in enumerate(row.get("measured", ())):
            needed, peak = row["needed"][rank], lap["peak"]
            said = " | ".join((row["model"], str(row["limit"]), row["variant"], str(rank)))
            yield f"| {said} | {needed / 1e6:,.0f} | {peak / 1e6:,.0f} | {peak / needed:.3f} |"


if __name__ == "__main__":
    main()
