"""Seconds of a step, predicted and measured, in two processes; and what would be recommended.

    python benchmarks/prediction.py --json rows.jsonl [--machine machine.json] [--only resnet18:8]

Calibrates once (or reads --machine). Then of each cell (a model, a batch size, a shape): profiles
its layers, lets `hgpart.recommend` simulate all ways, and runs those that promise most and some
that always count, with torch's own, in turns. The published formulas of
`hgpart.analytic` are given what is measured of one process. The file has a line for each
cell; what it holds is not measured again. Run it on idle cores: only what is said to be simulated
may be disturbed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hgpart
from hgpart.analytic import data_parallel_seconds, gpipe_seconds
from hgpart.bench.results import Measured, measured
from hgpart.bench.session import Session, WayError
from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import Layout, TrainingWay, way_of
from hgpart.cli.stages import classes_of
from hgpart.machines.machine import Machine
from hgpart.recommendation.ranking import Recommendation
from hgpart.recommendation.ways import rank_ways
from hgpart.timing.layer_timing import time_layers

K = 2
TIMES = Path("build")  # of layers, which are kept to look at
BEST = 3  # of what is simulated, that are always run
ALWAYS = (
    "one device",
    "data parallel",
    "one weird trick",
    "cut between layers",
    "filters (eps 0.1)",
    "filters for least time",
    "slices and filters for least time",
)
TORCHS = ("single", "ddp")
ROUNDS, STEPS = 3, 3
LARGE = 5_000_000  # parameters
BEFORE = ", as divided before"  # what was measured of, where it is divided in another way now


@dataclass(frozen=True)
class Cell:
    """What is trained."""

    model: str
    batch_size: int
    shape: tuple[int, int, int]

    @property
    def name(self) -> str:
        """Model and batch size."""
        return f"{self.model}:{self.batch_size}"


CELLS = (
    Cell("resnet18", 8, (3, 224, 224)),
    Cell("mobilenet_v2", 8, (3, 224, 224)),
    Cell("vgg16", 8, (3, 64, 64)),
    Cell("resnet50", 8, (3, 128, 128)),
    Cell("densenet121", 8, (3, 128, 128)),
    Cell("unet", 2, (3, 128, 128)),
    Cell("resnet18", 32, (3, 64, 64)),
    Cell("mobilenet_v2", 16, (3, 128, 128)),
    Cell("vgg16", 16, (3, 64, 64)),
    Cell("resnet50", 32, (3, 64, 64)),
    Cell("densenet121", 32, (3, 64, 64)),
    Cell("unet", 8, (3, 64, 64)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--machine", type=Path, default=Path("build/prediction_machine.json"))
    parser.add_argument("--only", help="of cells, as resnet18:8,vgg16:16")
    parser.add_argument("--table", action="store_true", help="run nothing, print what is there")
    parser.add_argument("--time-limit", type=float, default=60.0, help="of simulations of a cell")
    parser.add_argument(
        "--again", type=Path, help="rows whose runs are taken: only profile and simulate once more"
    )
    asked = parser.parse_args()
    if not asked.table:
        measure(asked)
    show(rows_of(asked.json))


def measure(asked: argparse.Namespace) -> None:
    """All cells that are not in the file."""
    if not asked.machine.exists():
        say("calibrate", "measured")
        asked.machine.parent.mkdir(parents=True, exist_ok=True)
        command = ("calibrate", "--processes", str(K), "--threads", "1", "-o", str(asked.machine))
        subprocess.run((sys.executable, "-m", "hgpart", *command), check=True)
    machine = hgpart.files.load_machine(asked.machine)
    TIMES.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    hgpart.keep_freed_memory()  # as the commands do
    there = {(row["model"], row["batch"]) for row in rows_of(asked.json)}
    runs = [] if asked.again is None else rows_of(asked.again)
    known = {f"{row['model']}:{row['batch']}": row for row in runs}
    wanted = asked.only.split(",") if asked.only else [cell.name for cell in CELLS]
    for cell in CELLS:
        if cell.name in wanted and (cell.model, cell.batch_size) not in there:
            row = row_of(cell, machine, asked.time_limit, known.get(cell.name))
            with asked.json.open("a") as file:
                file.write(json.dumps(row) + "\n")


def say(what: str, how: str) -> None:
    """On stderr: what is done now, and whether it is disturbed by others."""
    print(f"{time.strftime('%H:%M:%S')} {what}: {how}", file=sys.stderr, flush=True)


def row_of(
    cell: Cell, machine: Machine, time_limit: float, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Profile, simulate, run; or take what was measured of the same ways."""
    module, _ = hgpart.load_model(cell.model)
    traced = hgpart.trace(module.train(), hgpart.example_inputs(module, cell.shape))
    graph = hgpart.channel_graph(traced)
    say(f"{cell.name} layers", "measured")
    begin = time.perf_counter()
    times = time_layers(module, traced, graph, batch_size=cell.batch_size)
    profiled = time.perf_counter() - begin
    hgpart.files.save_layer_times(times, graph, TIMES / f"{cell.model}-{cell.batch_size}.json")
    parameters = sum(one.numel() for one in module.parameters())
    gradient_bytes = sum(one.nbytes for one in module.parameters())
    module = hgpart.load_model(cell.model, device="meta")[0].train()
    say(f"{cell.name} ways", "simulated")
    begin = time.perf_counter()
    found = rank_ways(
        *(module, traced, graph, times, machine),
        devices=K,
        batch_size=cell.batch_size,
        time_limit=time_limit,
        name=cell.model,
    )
    searched = time.perf_counter() - begin
    ways = {
        text: {
            "schedule": one.scheduling.text,
            "predicted": one.simulated_seconds,
            "bytes": one.sent_bytes,
            "rank": at,
        }
        for at, one in enumerate(found.ranked)
        for text in [one.trial.name]
    }
    if known is None:
        say(f"{cell.name} steps", "measured")
        job = Job(cell.model, cell.shape, classes_of(module, cell.shape), cell.batch_size, K)
        rows, failed = in_turns(runs_of(found, job))
        quartiles = {text: row.quartiles for text, row in rows.items()}
    else:
        # A division may be another one now: what it took counts, but is no error of a prediction.
        quartiles = {}
        for text, way in known["ways"].items():
            if "measured" in way:
                now = ways.get(text, {})
                same = all(way.get(one) == now.get(one) for one in ("schedule", "bytes"))
                quartiles[text if same else f"{text}{BEFORE}"] = way["measured"]
        failed = known["failed"]
    for text, measured_seconds in quartiles.items():
        ways.setdefault(text, {})["measured"] = measured_seconds
    return {
        "model": cell.model,
        "batch": cell.batch_size,
        "shape": cell.shape,
        "parameters": parameters,
        "profile s": profiled,
        "recommend s": searched,
        "ways": ways,
        "dropped": {one.what: one.why for one in found.dropped},
        "failed": failed,
        "analytic": analytic(found, quartiles, machine, gradient_bytes),
        "at": time.strftime("%Y-%m-%d %H:%M"),
    }


def runs_of(found: Recommendation, job: Job) -> dict[str, tuple[TrainingWay, Job, Layout]]:
    """The best that were simulated, those that always count, and torch's own."""
    same = {one.what: one.why for one in found.dropped}
    by_text = {one.trial.text: one for one in found.ranked}
    chosen = {one.trial.text: one for one in found.ranked[:BEST]}
    for name in ALWAYS:
        text = name if name == "one device" else f"{name} on {K} devices"
        text = same.get(text, text).removeprefix("the same as ")
        if text in by_text:
            chosen[text] = by_text[text]
    runs: dict[str, tuple[TrainingWay, Job, Layout]] = {}
    for one in chosen.values():
        way = TrainingWay(one.trial.text, "coarse", one.scheduling)
        runs[one.trial.name] = way, replace(job, workers=one.trial.k), one.plan
    for name in TORCHS:
        way = way_of(name)
        runs[f"torch {name}"] = way, job, None
    return runs


def in_turns(
    runs: Mapping[str, tuple[TrainingWay, Job, Layout]],
) -> tuple[dict[str, Measured], dict[str, str]]:
    """Every second round the other way round."""
    rows: dict[str, Measured] = {}
    failed: dict[str, str] = {}
    for number in range(ROUNDS):
        for text in [*runs][:: -1 if number % 2 else 1]:
            if text in failed:
                continue
            try:
                with Session(*runs[text]) as session:
                    warm_up = session.learn(1)
                    timed = session.learn(STEPS)
            except WayError as error:
                failed[text] = str(error)
                continue
            row = measured(runs[text][0], warm_up, timed, 1)
            rows[text] = rows[text].and_then(row) if text in rows else row
    return rows, failed


def analytic(
    found: Recommendation,
    quartiles: Mapping[str, Sequence[float]],
    machine: Machine,
    gradient_bytes: int,
) -> dict[str, float]:
    """What the published formulas say of the same, by the measured step of one process."""
    if "torch single" not in quartiles:
        return {}
    alone = quartiles["torch single"][1]
    link = machine.link(0, 1).seconds_of
    said = {
        "one device": alone,
        "data parallel": data_parallel_seconds(alone, gradient_bytes, [link] * K),
    }
    for one in found.ranked:
        if one.trial.name == "cut between layers":
            count = one.scheduling.micro_batches
            maps = float(np.sum(one.prediction.sent_bytes)) / 2 / count
            said["cut between layers"] = gpipe_seconds(alone, [link] * (K - 1), [maps], count)
    return said


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What was measured so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def pairs(row: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Of each way that was run: predicted and measured seconds."""
    for name, way in row["ways"].items():
        if "predicted" in way and "measured" in way:
            yield name, way["predicted"], way["measured"][1]


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The tables, as Markdown."""
    show_errors(rows)
    show_choices(rows)
    show_least_time(rows)


def show_errors(rows: Sequence[Mapping[str, Any]]) -> None:
    """Of each cell, by how much predictions are more than what was measured."""
    names = list(dict.fromkeys(name for row in rows for name, *_ in pairs(row)))
    print("| cell |", " | ".join(names), "|")
    print("|---|", "---:|" * len(names))
    errors: list[float] = []
    for row in rows:
        of_row = {name: said / true - 1 for name, said, true in pairs(row)}
        errors += of_row.values()
        texts = [f"{of_row[name]:+.1%}" if name in of_row else "" for name in names]
        print(f"| {row['model']} {row['batch']} at {row['shape'][1]} |", " | ".join(texts), "|")
    print(f"\nPredicted: {summary(errors)}")
    for name in ("one device", "data parallel", "cut between layers"):
        own = [said / true - 1 for row in rows for at, said, true in pairs(row) if at == name]
        of_formula = [
            row["analytic"][name] / true - 1
            for row in rows
            for at, _, true in pairs(row)
            if at == name and name in row["analytic"]
        ]
        print(f"{name}: {summary(own)}; by the formula {summary(of_formula)}")


def summary(errors: Sequence[float]) -> str:
    sizes = [abs(one) for one in errors]
    if not sizes:
        return "none"
    return f"{len(sizes)} errors, mean {statistics.mean(sizes):.1%}, worst {max(sizes):.1%}"


def show_choices(rows: Sequence[Mapping[str, Any]]) -> None:
    """What is recommended, beside the fastest that was measured and torch's own."""
    print("\n| cell | recommended | ms | fastest measured | ms | of it | DDP | one process |")
    print("|---|---|---:|---|---:|---:|---:|---:|")
    over: list[float] = []
    of_ddp: dict[str, float] = {}
    for row in rows:
        true = {name: way["measured"][1] for name, way in row["ways"].items() if "measured" in way}
        run = [one for one in row["ways"] if "predicted" in row["ways"][one] and one in true]
        top = min(run, key=lambda one: row["ways"][one]["rank"])
        fastest = min(true, key=lambda one: true[one])
        over.append(true[top] / true[fastest])
        cell = f"{row['model']} {row['batch']} at {row['shape'][1]}"
        alone = min(true.get("torch single", np.inf), true["one device"])
        if row["parameters"] >= LARGE:
            of_ddp[cell] = true["torch ddp"] / true[top]
        cells = (
            *(cell, top, f"{true[top] * 1e3:.0f}", fastest, f"{true[fastest] * 1e3:.0f}"),
            f"{over[-1]:.3f}",
            f"{true['torch ddp'] / true[top]:.3f}",
            f"{alone / true[top]:.3f}",
        )
        print("|", " | ".join(cells), "|")
    near = sum(one <= 1.03 for one in over)
    print(
        f"\nThe fastest, or within 3 % of it: {near} of {len(over)}; over the fastest, geometric "
        f"mean {statistics.geometric_mean(over):.3f}"
    )
    if of_ddp:
        mean = statistics.geometric_mean(of_ddp.values())
        print(f"DDP's time over it, of {LARGE:,} parameters or more: geometric mean {mean:.3f}")


def show_least_time(rows: Sequence[Mapping[str, Any]]) -> None:
    """Measured: searches for least time, beside the least volume and the cut between layers."""
    named = (*ALWAYS[3:], "one device")
    print("\n| cell, ms measured |", " | ".join(named), "|")
    print("|---|", "---:|" * len(named))
    for row in rows:
        texts = []
        for name in named:
            way = row["ways"].get(name, {})
            if "measured" not in way:
                way = row["ways"].get(f"{name}{BEFORE}", {})
            if "measured" not in way:
                why = row["dropped"].get(f"{name} on {K} devices", "")
                same = why.removeprefix("the same as ").removesuffix(f" on {K} devices")
                way = row["ways"].get(same, {})
            texts.append(f"{way['measured'][1] * 1e3:.0f}" if "measured" in way else "")
        print(f"| {row['model']} {row['batch']} at {row['shape'][1]} |", " | ".join(texts), "|")


if __name__ == "__main__":
    main()
