"""LeNet-5 on scikit-learn's digits: loss and accuracy by ways of training.

python benchmarks/curves.py [steps] [seeds] [case ...]

Synchronously and with batches in flight, with whole batches and by slices of them: the plan of
least bytes of --slices auto, and data parallelism, which is a partition over slices too. Batches of
16, sgd with momentum, the same first weights and batches in all cases of a seed; one thread a
process, one process for a device. After every 20 steps, with no batch in flight, the test set is
classified, which does not count as time. Writes results/curves.csv, one row for each such point,
and prints when 97 % of the test samples were right for the first time.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from slice_times import known, least_bytes
from torch.nn import functional

import hgpart
from hgpart.partition import Partition
from hgpart.partition.baselines.by_slices import data_parallel
from hgpart.run.distributed import DistributedModel
from hgpart.run.learner import Learner
from hgpart.run.placed_model import PlacedModel
from hgpart.run.processes.connection import Connection, connect
from hgpart.run.processes.launch import launch
from hgpart.run.training.batches import SampleBatches, batches_here
from hgpart.run.training.data import load_data
from hgpart.run.training.scores import accuracy
from hgpart.schedule_wanted import Scheduling

BATCH, EVERY, GOAL, K, EPS = 16, 20, 0.97, 2, 0.1
RATES = {"lr": 0.02, "momentum": 0.9}


def whole_batches(graph: hgpart.ChannelGraph, work: hgpart.Work, batch: int) -> Partition:
    """What hgpart partition finds."""
    modelling = hgpart.Modelling(batch_size=batch)
    return hgpart.partition_graph(graph, work, K, EPS, modelling=modelling)


class Case(NamedTuple):
    """Who finds the partition, if there is one, and by what schedule it is run."""

    partition: Callable[[hgpart.ChannelGraph, hgpart.Work, int], Partition] | None = whole_batches
    scheduling: Scheduling = Scheduling()


CASES = {
    "one device": Case(None),
    "sync": Case(),
    "async 2": Case(scheduling=Scheduling("async", in_flight=2)),
    "async 2 no stash": Case(scheduling=Scheduling("async", in_flight=2, stash=False)),
    "async 4": Case(scheduling=Scheduling("async", in_flight=4)),
    "async 4 no stash": Case(scheduling=Scheduling("async", in_flight=4, stash=False)),
    "slices": Case(partial(least_bytes, EPS)),
    "data parallel": Case(partial(known, data_parallel)),
}
RESULTS = Path(__file__).parent / "results" / "curves.csv"
COLUMNS = ["case", "seed", "step", "mean loss", "accuracy", "seconds", "load"]


def learner_of(case: str, seed: int, connection: Connection | None) -> Learner:
    model, shape = hgpart.load_model("lenet5", seed=seed)
    partition, scheduling = CASES[case]
    if connection is None or partition is None:
        return Learner(model)
    traced = hgpart.trace(model.train(), torch.zeros(2, *shape))
    graph = hgpart.channel_graph(traced)
    work = hgpart.flops(graph)
    plan = hgpart.Plan(partition(graph, work, BATCH), "lenet5", shape)
    placement = hgpart.place(model, plan, parts=[connection.rank])
    return PlacedModel(DistributedModel(placement, connection), scheduling)


def train(case: str, seed: int, steps: int, connection: Connection | None) -> list[list[object]]:
    learner = learner_of(case, seed, connection)
    data = load_data("digits", (1, 32, 32), 10, seed)
    batches = SampleBatches(data.train, partial(data.training_indices, batch_size=BATCH))
    sizes = learner.scheduling.sizes(BATCH)
    optimizers = {
        part: torch.optim.SGD(learned, **RATES) for part, learned in learner.learned().items()
    }

    def update(part: int) -> None:
        if part in optimizers:
            optimizers[part].step()

    torch.manual_seed(seed)
    learner.train(True)
    if isinstance(learner, PlacedModel):
        learner.schedule(EVERY, BATCH)  # made once
    loss_of = functional.cross_entropy
    rows: list[list[object]] = []
    seconds = 0.0
    for first in range(0, steps, EVERY):
        losses: list[float] = []
        learner.gather(None)
        begun = time.perf_counter()
        here = batches_here(learner, batches, range(first, first + EVERY), sizes)
        learner.learn(here, EVERY, BATCH, loss_of, update, losses.append)
        mean = sum(losses) / EVERY
        learner.gather(None)
        seconds += time.perf_counter() - begun
        right = accuracy(learner, data, BATCH)
        load = f"{os.getloadavg()[0]:.1f}"
        rows.append([case, seed, first + EVERY, f"{mean:.4f}", right, f"{seconds:.3f}", load])
    return rows


def show(seeds: int, cases: list[str]) -> None:
    with RESULTS.open() as file:
        rows = [row for row in csv.DictReader(file) if row["case"] in cases]
    table = Table("case", "seeds", "steps to 97 %", "seconds to 97 %", "ms a step", "best accuracy")
    for case in cases:
        runs = [[r for r in rows if (r["case"], r["seed"]) == (case, str(s))] for s in range(seeds)]
        reached = [
            next((row for row in run if float(row["accuracy"]) >= GOAL), None) for run in runs
        ]
        to_goal = ["-", "-"]
        if None not in reached:
            steps, seconds = (
                [float(row[name]) for row in reached if row] for name in ("step", "seconds")
            )
            to_goal = [f"{median(steps):.0f}", f"{median(seconds):.2f}"]
        each = median(1000 * float(run[-1]["seconds"]) / int(run[-1]["step"]) for run in runs)
        best = median(max(float(row["accuracy"]) for row in run) for run in runs)
        table.add_row(case, str(seeds), *to_goal, f"{each:.2f}", f"{100 * best:.2f} %")
    Console(width=110).print(table)


def main() -> None:
    torch.set_num_threads(1)
    steps, seeds = (int(text) for text in (sys.argv[1:3] + ["600", "3"][len(sys.argv[1:3]) :]))
    cases = sys.argv[3:] or [*CASES]
    if "RANK" not in os.environ:
        with RESULTS.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(COLUMNS)
        for seed in range(seeds):  # in turns, so that a busy minute is nobody's alone
            for case in cases:
                if CASES[case].partition is None:
                    write(train(case, seed, steps, None))
                else:
                    launch(__file__, [str(steps), str(seed), case], K)
        show(seeds, cases)
        return
    with connect(K) as connection:
        rows = train(cases[0], seeds, steps, connection)  # of this seed
        if connection.rank == 0:
            write(rows)


def write(rows: list[list[object]]) -> None:
    with RESULTS.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
