"""Latency of one batch by plans of two parts, and by one process, in turns.

    hgpart partition vgg16 --k 2 --way rows-then-filters --batch-size 1 -o plan.json
    python benchmarks/latency.py plan.json ... [--wire 100] [--rounds 8] [--json rows.jsonl]

All plans are of one model and one batch. Two processes of one thread, each bound to a core, run
forward passes without gradients; the first one also runs the model itself. With --wire they are in
networks of their own, joined by a wire of so many megabits a second (Linux, as root). Run it on
two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from slow_wire import launch_on_wire
from torch import distributed as dist

import hgpart
from hgpart.plan import load_plan
from hgpart.run.processes.connection import connect
from hgpart.run.processes.launch import launch

ALONE = "one process"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plans", nargs="+")
    parser.add_argument("--wire", type=float, help="megabits a second")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if "RANK" in os.environ:
        rank(asked)
    elif asked.wire is None:
        launch(__file__, arguments(asked), 2)
    else:
        launch_on_wire(__file__, arguments(asked), asked.wire)


def arguments(asked: argparse.Namespace) -> list[str]:
    wire = [] if asked.wire is None else ["--wire", str(asked.wire)]
    out = [] if asked.json is None else ["--json", str(asked.json)]
    return [*asked.plans, *wire, "--rounds", str(asked.rounds), *out]


def rank(asked: argparse.Namespace) -> None:
    own = int(os.environ["RANK"])
    os.sched_setaffinity(0, {own})  # what `launch` does, too
    torch.set_num_threads(1)
    hgpart.keep_freed_memory()
    plans = [load_plan(path) for path in asked.plans]
    net, _ = hgpart.load_model(plans[0].model, seed=0)
    images = torch.randn(plans[0].modelling.batch_size, *plans[0].input_shape)
    ways: dict[str, Callable[[torch.Tensor], object]] = {ALONE: net.eval()}
    with connect(2) as connection, torch.no_grad():
        for path, plan in zip(asked.plans, plans, strict=True):
            placement = hgpart.place(net, plan, ["cpu"] * 2, parts=[own])
            ways[Path(path).stem] = hgpart.DistributedModel(placement.eval(), connection)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(asked.rounds + 1):
            for way, run in ways.items():
                dist.barrier()
                for _ in range(4 if way != ALONE else 2 - 2 * own):
                    begin = time.perf_counter()
                    run(images)
                    if turn:  # the first turn warms up
                        seconds[way].append(time.perf_counter() - begin)
    if own == 0:
        alone = statistics.median(seconds[ALONE])
        for way, measured in seconds.items():
            median = statistics.median(measured)
            quartiles = statistics.quantiles(measured, n=4)
            print(
                f"{plans[0].model} {plans[0].input_shape} {way}: {1e3 * median:.1f} ms "
                f"({1e3 * quartiles[0]:.1f} to {1e3 * quartiles[2]:.1f}), {alone / median:.2f} "
                "times as fast"
            )
            if asked.json is not None:
                row = {"model": plans[0].model, "way": way, "wire": asked.wire, "seconds": measured}
                with asked.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
