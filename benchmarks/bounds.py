"""How far bounds are below the least volumes found: built-in models, coarse-grain, eps 0.1.

python benchmarks/bounds.py [--models a,b] [--k 2,4,8,16,32] [--csv FILE]

The batch is 32. Volumes are the best of results/quality.csv (the batch whole) and of
results/slices.jsonl (in any number of slices); those of slices that these have not are found anew,
with 32 slices and 0.3 of the default effort. `before` is the gap to `lower_bound`, `gap` that to
the better of it and `part_bound`; CPU seconds are of the latter. A row that the CSV has already is
not computed again.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

import hgpart
from hgpart.partition.bounds.lower_bound import lower_bound, relative_gap
from hgpart.partition.bounds.part_bound import part_bound
from hgpart.partition.problem.problem import Problem

RESULTS = Path(__file__).parent / "results"
MODELS = "vgg16,resnet50,resnet18,mobilenet_v2,unet,densenet121,alexnet,googlenet"
EPS, BATCH, SLICES, EFFORT = 0.1, 32, 32, 0.3

Key = tuple[str, int, bool]


@dataclass(frozen=True)
class Row:
    """A volume, and the gaps to bounds of it."""

    model: str
    k: int
    sliced: bool
    volume: int
    before: float
    gap: float
    cpu_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--k", default="2,4,8,16,32")
    parser.add_argument("--csv", type=Path, default=RESULTS / "bounds.csv")
    options = parser.parse_args()
    numbers = [*map(int, options.k.split(","))]
    done = {(row.model, row.k, row.sliced) for row in read(options.csv)}
    volumes = {**of_quality(), **of_slices()}
    for sliced in (True, False):
        for model in options.models.split(","):
            for k in numbers:
                if (model, k, sliced) not in done:
                    row = measured(model, k, sliced, volumes.get((model, k, sliced)))
                    write(options.csv, row)
                    print(row, flush=True)
    show(read(options.csv))


def of_quality() -> dict[Key, int]:
    """The least volumes with the batch whole."""
    volumes: dict[Key, int] = {}
    with (RESULTS / "quality.csv").open() as file:
        for row in csv.DictReader(file):
            if row["grain"] == "coarse" and float(row["eps"]) == EPS and row["volume"]:
                is_within = float(row["imbalance"]) <= EPS
                keep(volumes, (row["model"], int(row["k"]), False), int(row["volume"]), is_within)
    return volumes


def of_slices() -> dict[Key, int]:
    """The least volumes with the batch in slices."""
    volumes: dict[Key, int] = {}
    with (RESULTS / "slices.jsonl").open() as file:
        for row in map(json.loads, file):
            if row["batch_size"] == BATCH and row["eps"] == EPS and row["grain"] == "coarse":
                is_within = bool(row.get("feasible"))
                keep(volumes, (row["model"], row["k"], True), row.get("volume", 0), is_within)
    return volumes


def keep(volumes: dict[Key, int], key: Key, volume: int, is_within: bool) -> None:
    if is_within:
        volumes[key] = min(volume, volumes.get(key, volume))


def measured(model: str, k: int, sliced: bool, volume: int | None) -> Row:
    graph = graph_of(model)
    modelling = hgpart.Modelling(batch_size=BATCH, slices=SLICES if sliced else 1)
    problem = Problem(graph, hgpart.flops(graph), modelling, k, EPS)
    if volume is None:
        found = hgpart.partition_graph(
            graph, problem.work, k, EPS, modelling=modelling, effort=EFFORT
        )
        volume = found.evaluation.volume
    before = lower_bound(problem)
    start = time.process_time()
    bound, _ = part_bound(problem)
    seconds = round(time.process_time() - start, 1)
    gap_before, gap = (
        round(relative_gap(volume, least), 4) for least in (before, max(before, bound))
    )
    return Row(model, k, sliced, volume, gap_before, gap, seconds)


@cache
def graph_of(name: str) -> hgpart.ChannelGraph:
    model, shape = hgpart.load_model(name, device="meta")
    return hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))


def write(path: Path, row: Row) -> None:
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        if fresh:
            writer.writeheader()
        writer.writerow(asdict(row))


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open() as file:
        return [
            Row(
                row["model"],
                int(row["k"]),
                row["sliced"] == "True",
                int(row["volume"]),
                float(row["before"]),
                float(row["gap"]),
                float(row["cpu_seconds"]),
            )
            for row in csv.DictReader(file)
        ]


def show(rows: list[Row]) -> None:
    numbers = sorted({row.k for row in rows})
    for sliced in (True, False):
        table = Table("model", *map(str, numbers), "CPU s", title="slices" if sliced else "whole")
        for cells in of_models([row for row in rows if row.sliced == sliced], numbers):
            table.add_row(*cells)
        Console(width=120).print(table)


def of_models(rows: list[Row], numbers: list[int]) -> Iterator[list[str]]:
    """A line for each model and one of the means: gaps in percent, before in brackets."""
    for model in [*dict.fromkeys(row.model for row in rows), "mean"]:
        own = [row for row in rows if model in (row.model, "mean")]
        cells = []
        for k in numbers:
            of_k = [row for row in own if row.k == k]
            gaps = [
                100 * mean(values)
                for values in zip(*((row.gap, row.before) for row in of_k), strict=True)
            ]
            cells.append(f"{gaps[0]:.1f} ({gaps[1]:.0f})" if gaps else "")
        yield [model, *cells, f"{mean(row.cpu_seconds for row in own):.1f}"]


if __name__ == "__main__":
    main()
