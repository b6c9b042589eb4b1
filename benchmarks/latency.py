"""Seconds of one batch by plans, and by one process, in turns.

    hgpart partition vgg16 --k 2 --way spatial --batch-size 1 -o spatial.json
    python benchmarks/latency.py spatial.json ... [--rounds 8] [--wire 100 | --speeds 1,1,2,4]

All plans are of one model, one batch and one number of parts. A process of one thread for each part
runs forward passes without gradients, or with --backward training steps without an optimizer; the
first one also runs the model itself. Processes are bound to cores. With --wire two of them are in
networks of their own, joined by a wire of so many megabits a second; with --speeds each has its
share of a core's time, by a cgroup, the fastest 80 % (both: Linux, as root). Run it on idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from slow_wire import launch_on_wire
from torch import distributed as dist
from torch import nn

import hgpart
from hgpart.plan import PlanFile, load_plan
from hgpart.run.measuring import mean_square
from hgpart.run.processes.connection import connect
from hgpart.run.processes.launch import launch

ALONE = "one process"
CGROUP = Path("/sys/fs/cgroup/cpu")
PERIOD = 10_000  # microseconds in which a cgroup has its share of a core's time
MOST = 0.8  # the share of the fastest process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plans", nargs="+")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--wire", type=float, help="megabits a second")
    parser.add_argument("--speeds", type=lambda text: [float(speed) for speed in text.split(",")])
    parser.add_argument("--group", type=Path, help=argparse.SUPPRESS)  # of the cgroups of ranks
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if "RANK" in os.environ:
        rank(asked)
        return
    k = load_plan(asked.plans[0]).k
    arguments = [*asked.plans, "--rounds", str(asked.rounds)]
    arguments += ["--backward"] * asked.backward
    arguments += [] if asked.json is None else ["--json", str(asked.json)]
    if asked.wire is not None:
        launch_on_wire(__file__, [*arguments, "--wire", str(asked.wire)], asked.wire)
    elif asked.speeds is not None:
        with limited(asked.speeds) as group:
            launch(__file__, [*arguments, "--group", str(group)], k)
    else:
        launch(__file__, arguments, k)


@contextmanager
def limited(speeds: Sequence[float]) -> Iterator[Path]:
    """A folder with a cgroup for each rank, which limits its time."""
    folder = CGROUP / f"hgpart-{os.getpid()}"
    groups = [folder / str(rank) for rank in range(len(speeds))]
    folder.mkdir()
    try:
        for group, speed in zip(groups, speeds, strict=True):
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(int(MOST * PERIOD * speed / max(speeds))))
        yield folder
    finally:
        for group in (*groups, folder):
            group.rmdir()


def rank(asked: argparse.Namespace) -> None:
    own, k = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if asked.group is None:
        os.sched_setaffinity(0, {own})  # what `launch` does, too
    torch.set_num_threads(1)
    hgpart.keep_freed_memory()
    plans = [load_plan(path) for path in asked.plans]
    net, _ = hgpart.load_model(plans[0].model, seed=0)
    images = torch.randn(plans[0].modelling.batch_size, *plans[0].input_shape)
    net.train(asked.backward)
    ways: dict[str, nn.Module] = {ALONE: net}
    with connect(k) as connection, torch.set_grad_enabled(asked.backward):
        for path, plan in zip(asked.plans, plans, strict=True):
            placement = hgpart.place(net, plan, ["cpu"] * k, parts=[own]).train(asked.backward)
            ways[Path(path).stem] = hgpart.DistributedModel(placement, connection)
        if asked.group is not None:
            (asked.group / str(own) / "cgroup.procs").write_text(str(os.getpid()))
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(asked.rounds + 1):
            for way, run in ways.items():
                dist.barrier()
                count = 4 if way != ALONE else 2 if own == k - 1 else 0  # the fastest runs it alone
                for _ in range(count):
                    begin = time.perf_counter()
                    result = run(images)
                    if asked.backward:
                        mean_square(result).backward()
                        run.zero_grad()
                    if turn:  # the first turn warms up
                        seconds[way].append(time.perf_counter() - begin)
        measured: list[list[float]] = connection.gather(seconds[ALONE])
    if own == 0:
        show(asked, plans[0], {**seconds, ALONE: measured[-1]})


def show(asked: argparse.Namespace, plan: PlanFile, seconds: dict[str, list[float]]) -> None:
    """A line for each way: median and quartiles."""
    alone = statistics.median(seconds[ALONE])
    for way, measured in seconds.items():
        low, median, high = (1e3 * figure for figure in statistics.quantiles(measured, n=4))
        print(
            f"{plan.model} {plan.input_shape} {way}: {median:.1f} ms ({low:.1f} to {high:.1f}), "
            f"{1e3 * alone / median:.2f} times as fast"
        )
        if asked.json is not None:
            row = {"model": plan.model, "shape": plan.input_shape, "way": way, "wire": asked.wire}
            with asked.json.open("a") as file:
                file.write(json.dumps({**row, "seconds": measured}) + "\n")


if __name__ == "__main__":
    main()
