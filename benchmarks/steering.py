"""Random pins on models: whether they are kept, and what they cost beside no pins.

python benchmarks/steering.py [--models a,b] [--k 8] [--eps 0.1] [--sets 4] [--pins 5] [--seed 1]
                              [--jsonl FILE]

For each model, `sets` sets of `pins` pins each: a layer that computes, chosen at random, or half of
its filters, on one to three devices. A set that no partition within eps can meet is refused by
hgpart, which names the fewest pins that must give way: it counts, and another set is drawn. Each
set is divided by native, and its first one also by KaHyPar. Whether pins are kept is checked filter
by filter, from the part of every task.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import hgpart
from hgpart.errors import InfeasibleError
from hgpart.hypergraph.partition_files import full_parts
from hgpart.partition.partition import Partition
from hgpart.partition.problem.constraints import Constraints, Pin

MODELS = (
    "alexnet,vgg16,resnet18,resnet50,mobilenet_v2,unet,densenet121,googlenet,squeezenet1_1,"
    "shufflenet_v2_x1_0"
)
MOST_DRAWN = 50  # sets that may be refused before one is met


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--eps", type=float, default=0.1)
    parser.add_argument("--sets", type=int, default=4)
    parser.add_argument("--pins", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jsonl", type=Path)
    asked = parser.parse_args()
    rows = []
    for name in asked.models.split(","):
        for row in of_model(name, asked):
            rows.append(row)
            print(json.dumps(row), flush=True)
            if asked.jsonl is not None:
                with asked.jsonl.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    summarise(rows)


def of_model(name: str, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Divide a model without pins, then with each set of them."""
    module, shape = hgpart.load_model(name, device="meta")
    graph = hgpart.channel_graph(hgpart.trace(module, hgpart.example_inputs(module, shape)))
    work = hgpart.flops(graph)
    draw = random.Random(f"{name} {asked.seed}")

    def divided(demands: Constraints, backend: str) -> tuple[Partition, float]:
        began = time.process_time()
        partition = hgpart.partition_graph(
            graph, work, asked.k, asked.eps, constraints=demands, backend=backend
        )
        return partition, time.process_time() - began

    free, free_seconds = divided(Constraints(), "native")
    loads = work.per_task * np.array([layer.tasks for layer in graph.layers])
    busy = [layer for layer, load in zip(graph.layers, loads.tolist(), strict=True) if load]
    for number in range(asked.sets):
        refused = []
        for _ in range(MOST_DRAWN):
            demands = Constraints(tuple(random_pin(draw, busy, asked.k) for _ in range(asked.pins)))
            try:
                pinned, seconds = divided(demands, "native")
                break
            except InfeasibleError as error:
                refused.append(str(error))
        else:
            raise SystemExit(f"{name}: no set of {asked.pins} pins was met")
        row: dict[str, Any] = {
            "model": name,
            "pins": list(map(str, demands.pins)),
            "kept": sum(is_kept(pinned, pin) for pin in demands.pins),
            "feasible": pinned.feasible,
            "free_MB": free.evaluation.volume / 1e6,
            "pinned_MB": pinned.evaluation.volume / 1e6,
            "free_cpu_s": free_seconds,
            "pinned_cpu_s": seconds,
            "refused": refused,
        }
        if number == 0:
            other, _ = divided(demands, "kahypar")
            row["kahypar_MB"] = other.evaluation.volume / 1e6
            row["kahypar_kept"] = sum(is_kept(other, pin) for pin in demands.pins)
        yield row


def random_pin(draw: random.Random, layers: list[Any], k: int) -> Pin:
    """A layer, or half of its filters, on one to three devices."""
    layer = draw.choice(layers)
    devices = tuple(draw.sample(range(k), draw.randint(1, min(3, k))))
    if layer.tasks < 2 or draw.random() < 0.5:
        return Pin(layer.name, devices)
    first = draw.randint(0, layer.tasks - layer.tasks // 2)
    return Pin(layer.name, devices, first, first + layer.tasks // 2)


def is_kept(partition: Partition, pin: Pin) -> bool:
    """Whether each filter of a pin lies on its devices, by the part of every task."""
    parts = full_parts(partition.model, partition.parts)
    views = partition.model.views
    first = 0
    own_at = next(view.first for view in views if view.layer.name == pin.layers)
    for view in views:
        if view.at == own_at:
            end = view.layer.tasks if pin.end is None else pin.end
            return set(parts[first + pin.first : first + end].tolist()) <= set(pin.devices)
        first += view.count if view.is_own else 0
    return False


def summarise(rows: list[dict[str, Any]]) -> None:
    """A line a model, and the sum."""
    print("model,pins,kept,free MB,pinned MB (mean),times,KaHyPar beside native,refused,CPU s")
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        times = np.exp(np.mean([np.log(row["pinned_MB"] / row["free_MB"]) for row in own]))
        beside = [row["kahypar_MB"] / row["pinned_MB"] for row in own if "kahypar_MB" in row]
        print(
            f"{name},{sum(len(row['pins']) for row in own)},{sum(row['kept'] for row in own)},"
            f"{own[0]['free_MB']:.1f},{np.mean([row['pinned_MB'] for row in own]):.1f},{times:.2f},"
            f"{', '.join(f'{ratio:.3f}' for ratio in beside)},"
            f"{sum(len(row['refused']) for row in own)},"
            f"{own[0]['free_cpu_s']:.1f} / {np.mean([row['pinned_cpu_s'] for row in own]):.1f}"
        )
    pins, kept = (
        sum(len(row["pins"]) for row in rows),
        sum(row["kept"] for row in rows),
    )
    feasible = sum(row["feasible"] for row in rows)
    print(f"{kept} of {pins} pins are kept; {feasible} of {len(rows)} partitions are within eps")


if __name__ == "__main__":
    main()
