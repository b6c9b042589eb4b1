"""A device leaves, or slows down: plans that exist, mended, beside plans made anew.

python benchmarks/mending.py [--models a,b] [--k 8] [--eps 0.1] [--jsonl FILE]

For each model a plan for k equal devices; then one of its devices (number 3) leaves, or computes at
half its speed. Made anew, the plan is of least volume by native; the parts of the new plan are
given to the devices that have most of their weights already, by an assignment of least moved bytes,
as anyone would. Mended, at most half and a tenth of the weights that the new plan moves may change
place, besides those of the device that has left, which must. Moved bytes are counted filter by
filter, from the part of every task.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

import hgpart
from hgpart.errors import InfeasibleError
from hgpart.hypergraph.partition_files import full_parts
from hgpart.partition.mending import mend
from hgpart.partition.partition import Partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.start import lost_bytes, start_of
from hgpart.partition.stages import solve

MODELS = "alexnet,vgg16,resnet18,resnet50,mobilenet_v2,unet"
CHANGED = 3  # the device that leaves or slows down
SHARES = (0.5, 0.1)  # of the bytes that a plan made anew moves though it need not


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--eps", type=float, default=0.1)
    parser.add_argument("--jsonl", type=Path)
    asked = parser.parse_args()
    for name in asked.models.split(","):
        for row in of_model(name, asked.k, asked.eps):
            print(json.dumps(row), flush=True)
            if asked.jsonl is not None:
                with asked.jsonl.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def of_model(name: str, k: int, eps: float) -> Iterator[dict[str, Any]]:
    """Change a plan both ways."""
    module, shape = hgpart.load_model(name, device="meta")
    graph = hgpart.channel_graph(hgpart.trace(module, hgpart.example_inputs(module, shape)))
    work = hgpart.flops(graph)
    before = hgpart.partition_graph(graph, work, k, eps)
    left = [device for device in range(k) if device != CHANGED]
    slower = [0.5 if device == CHANGED else 1.0 for device in range(k)]
    for what, count, speeds, devices, without in (
        ("leaves", k - 1, None, left, [CHANGED]),
        ("slows down", k, slower, [*range(k)], []),
    ):
        problem = Problem(graph, work, hgpart.Modelling(), count, eps, speeds)
        began = time.process_time()
        anew = solve(problem, Search())
        spent = time.process_time() - began
        moved = moved_bytes(before, anew, devices, speeds or [1.0] * count)
        start = start_of(before.model, before.parts, before.k, count, without)
        lost = lost_bytes(start, problem.views)
        row = {
            "lost_MB": lost / 1e6,
            "model": name,
            "what": what,
            "weights_MB": sum(view.parameter_bytes for view in before.model.views) / 1e6,
            "before_MB": before.evaluation.volume / 1e6,
            "anew_MB": anew.evaluation.volume / 1e6,
            "anew_moved_MB": moved / 1e6,
            "anew_cpu_s": spent,
        }
        for share in SHARES:
            began = time.process_time()
            try:
                mended = mend(
                    before,
                    problem,
                    Search(),
                    solve,
                    without=without,
                    move_at_most=lost + int(share * (moved - lost)) + 1,
                )
            except InfeasibleError as error:
                row[f"mended_{share}"] = str(error)
                continue
            counted = moved_bytes(before, mended.partition, devices, [*range(count)])
            assert counted == mended.moved and mended.partition.feasible
            row[f"mended_{share}_MB"] = mended.partition.evaluation.volume / 1e6
            row[f"mended_{share}_moved_MB"] = mended.moved / 1e6
            row[f"mended_{share}_cpu_s"] = time.process_time() - began
        yield row


def moved_bytes(
    before: Partition, after: Partition, devices: list[int], kinds: Sequence[float]
) -> int:
    """Bytes of weights that change place; parts go to devices so that they are few."""
    old, new = (full_parts(own.model, own.parts) for own in (before, after))
    sizes = np.concatenate(
        [
            np.full(view.layer.tasks, view.parameter_bytes / view.layer.tasks)
            for view in before.model.views
            if view.is_own
        ]
    )
    kept = np.zeros((len(devices), len(devices)))  # by part of the new plan, and device
    for place, device in enumerate(devices):
        own = old == device
        np.add.at(kept[:, place], new[own], sizes[own])
    differ = np.not_equal.outer(kinds, kinds)
    chosen = linear_sum_assignment(np.where(differ, 1e18, -kept))
    return round(sizes.sum() - kept[chosen].sum())


if __name__ == "__main__":
    main()
