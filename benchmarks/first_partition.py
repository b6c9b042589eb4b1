"""From a model's name to its first partition: CPU seconds, memory, and what is kept whole.

PYTHONPATH=benchmarks:tests OMP_NUM_THREADS=1 python benchmarks/first_partition.py [--a-family N]
    [--only SPEC ...] [--summary]

N models (2) of each family of timm, torchvision and pytorchcv (a family is a module of a package),
drawn by lot, at the model's own image size, one sample, k = 4, eps 0.1, effort 0.05. Each has a
process of its own: CPU seconds are by stage and without imports, memory is the largest that was
resident, torch's own included. Bytes of a forward pass stand beside the cut between layers. Models
that results/first_partition.jsonl has are not run again.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from outside_models import families
from transformer_bytes import EPS, whole_share

import hgpart
from hgpart.layers.channel_graph import WHOLE, ChannelGraph
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named

RESULTS = Path(__file__).parent / "results" / "first_partition.jsonl"
STAGES = ("load", "trace", "graph", "partition")
SHAPE = (3, 224, 224)  # where a model does not say its own
K = 4
EFFORT = 0.05
WALL_SECONDS = 600
MOST_SECONDS, MOST_BYTES, MOST_WHOLE = 60, 2 * 10**9, 0.01  # what is asked for
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--a-family", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="SPEC")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        first_partition(asked.child)
        return
    if not asked.summary:
        done = {row["model"] for row in read()}
        for spec in asked.only or drawn(asked.a_family):
            if spec not in done:
                row = in_a_process(spec)
                with RESULTS.open("a") as file:
                    print(json.dumps(row), file=file)
                print(json.dumps(row), flush=True)
    print("\n".join(summary(read())))


def read() -> list[Row]:
    return [*map(json.loads, RESULTS.read_text().splitlines())] if RESULTS.exists() else []


def drawn(a_family: int) -> Iterator[str]:
    """Draw so many models of each family, the first of all families before the second of any."""
    draw = random.Random(0)
    shuffled = [draw.sample(models, len(models)) for _, models in sorted(families().items())]
    draw.shuffle(shuffled)
    for number in range(a_family):
        yield from (models[number] for models in shuffled if number < len(models))


def in_a_process(spec: str) -> Row:
    command = [sys.executable, __file__, "--child", spec]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WALL_SECONDS)
    except subprocess.TimeoutExpired:
        return {"model": spec, "why": f"no end in {WALL_SECONDS} s"}
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        return {"model": spec, "why": f"status {ended.returncode}: {last}"}
    found: Row = json.loads(ended.stdout.splitlines()[-1])
    return found


def first_partition(spec: str) -> None:
    """Print what one model took, stage by stage."""
    clock = [time.process_time()]

    def lap() -> None:
        clock.append(time.process_time())

    row: Row = {"model": spec}
    try:
        model, shape = hgpart.load_model(spec, device="meta")
        lap()
        traced = hgpart.trace(model, hgpart.example_inputs(model, shape or SHAPE))
        lap()
        graph = hgpart.channel_graph(traced)
        lap()
        problem = Problem(graph, hgpart.flops(graph), hgpart.Modelling(batch_size=1), K, EPS)
        search = Search(effort=EFFORT)
        coarse = way_named("coarse").partition(problem, search)
        lap()
        cut = way_named("layerwise").partition(problem, search)
        row |= {
            "whole": whole_share(graph),
            "kept": kept_whole(graph),
            "volume": coarse.evaluation.volume,
            "imbalance": coarse.evaluation.imbalance,
            "layerwise": cut.evaluation.volume,
            "layerwise_imbalance": cut.evaluation.imbalance,
        }
    except Exception as error:  # the package itself may fail to build or run it
        row["why"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    laps = [end - start for start, end in pairwise(clock)]
    row["seconds"] = dict(zip(STAGES, (round(lap, 2) for lap in laps), strict=False))
    row["bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(row))


def kept_whole(graph: ChannelGraph) -> dict[str, float]:
    """Layers that are kept whole, and their share of the work, where it is 0.1 % or more."""
    macs = [layer.macs * layer.tasks for layer in graph.layers]
    shares = zip(graph.layers, macs, strict=True)
    return {
        f"{layer.name} ({', '.join(layer.operators)})": round(own / sum(macs), 4)
        for layer, own in shares
        if layer.kind == WHOLE and own >= 0.001 * sum(macs)
    }


def summary(rows: list[Row]) -> list[str]:
    """Markdown: a row a package, and what is beyond what is asked for."""
    lines = [
        "| package | models | partitioned | ≤ 1 % whole | ≤ 60 s | ≤ 2 GB | median s | largest s "
        "| largest GB | below the cut |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for package in ("timm", "torchvision", "pytorchcv", "all"):
        own = [row for row in rows if package in ("all", row["model"].partition(":")[0])]
        made = [row for row in own if "whole" in row]
        if not made:
            continue
        seconds = [sum(row["seconds"].values()) for row in made]
        sizes = [row["bytes"] for row in made]
        figures = (
            package,
            len(own),
            len(made),
            sum(row["whole"] <= MOST_WHOLE for row in made),
            sum(each <= MOST_SECONDS for each in seconds),
            sum(each <= MOST_BYTES for each in sizes),
            f"{median(seconds):.1f}",
            f"{max(seconds):.1f}",
            f"{max(sizes) / 1e9:.2f}",
            sum(row["volume"] < row["layerwise"] for row in made),
        )
        lines.append("| " + " | ".join(map(str, figures)) + " |")
    for row in rows:
        if "whole" not in row:
            lines.append(f"{row['model']}: {row['why']}")
        elif row["whole"] > MOST_WHOLE:
            lines.append(f"{row['model']}: {100 * row['whole']:.1f} % whole: {row['kept']}")
        if sum(row.get("seconds", {}).values()) > MOST_SECONDS:
            lines.append(f"{row['model']}: {row['seconds']}")
        if row.get("bytes", 0) > MOST_BYTES:
            lines.append(f"{row['model']}: {row['bytes'] / 1e9:.2f} GB")
    return lines


if __name__ == "__main__":
    main()
