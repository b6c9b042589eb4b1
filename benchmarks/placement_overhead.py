"""Training steps of VGG16 in its parts against the plain model, in one process and in two.

python benchmarks/placement_overhead.py [rounds] [case ...]

A step is forward, cross entropy, backward and sgd with momentum on a batch of 16, 224 x 224,
float32, one thread a process. Plain and placed steps alternate in one run, after one of each that
does not count; ratios are of medians. Needs 8 GB; adds rows to results/placement_overhead.csv.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.nn import functional

import hgpart
from hgpart.execution.records.totals import Timing
from hgpart.run.distributed import DistributedModel
from hgpart.run.processes.connection import Connection, connect
from hgpart.run.processes.launch import launch

BATCH = 16
CASES = {"one": ("coarse", 1), "two": ("coarse", 2), "two-horizontal": ("horizontal", 2)}
RESULTS = Path(__file__).parent / "results" / "placement_overhead.csv"
COLUMNS = ["partition", "k", "processes", "steps", "plain s", "placed s", "ratio"]
COLUMNS += ["plain CPU s", "placed CPU s", "CPU ratio", "waiting", "MB per step", "load"]

Times = tuple[float, float]  # wall seconds, CPU seconds of this process


def plan(model: nn.Module, kind: str, k: int) -> hgpart.Plan:
    graph = hgpart.channel_graph(hgpart.trace(model, torch.empty(2, 3, 224, 224)))
    work = hgpart.flops(graph)
    modelling = hgpart.Modelling(batch_size=BATCH)
    found = hgpart.partition_by(kind, graph, work, k, modelling=modelling)
    return hgpart.Plan(found, "vgg16", (3, 224, 224))


def stepper(
    model: nn.Module, backward: Callable[[torch.Tensor | None], None] | None = None
) -> Callable[[], None]:
    """One step of a model, or of this process's part of it, which has a backward of its own."""
    torch.manual_seed(0)
    images, labels = torch.randn(BATCH, 3, 224, 224), torch.randint(1000, (BATCH,))
    sgd = torch.optim.SGD([{"params": [*model.parameters()]}], lr=0.01, momentum=0.9)

    def step() -> None:
        sgd.zero_grad()
        result = model(images)
        loss = None if result is None else functional.cross_entropy(result, labels)
        if backward is None:
            assert loss is not None
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            backward(loss)
        sgd.step()

    return step


def timed(step: Callable[[], None]) -> Times:
    start, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - start, time.process_time() - cpu


def measure(kind: str, k: int, rounds: int, connection: Connection | None) -> None:
    """In each process; the first one does the plain steps, in which the others sleep."""
    first = connection is None or connection.rank == 0
    model, _ = hgpart.load_model("vgg16", seed=0)
    found = plan(model, kind, k)
    timing, sent = Timing(), 0
    if connection is None:
        placement = hgpart.place(model, found)
        placed = stepper(placement)
    else:
        part = hgpart.place(model, found, parts=[connection.rank])
        shared = DistributedModel(part, connection)
        placed = stepper(shared, shared.backward)
    whole = stepper(model) if first else lambda: None
    meet = (lambda: connection.gather(None)) if connection else (lambda: [])
    times: list[list[Times]] = [[], []]
    for done in range(rounds + 1):
        for kept, step in zip(times, (whole, placed), strict=True):
            kept.append(timed(lambda step=step: (step(), meet())))  # type: ignore[misc]
        if done and connection:
            timing = timing + shared.timing
            traffic = shared.gather_traffic()
            sent = int((traffic.forward_bytes + traffic.backward_bytes).sum())
    whole_wall, placed_wall = ([wall for wall, _ in kept[1:]] for kept in times)
    whole_cpu, placed_cpu = (median(cpu for _, cpu in kept[1:]) for kept in times)
    waited = (timing.forward_waiting + timing.backward_waiting) / sum(placed_wall)
    shares = [f"{waited:.2f}"]
    if connection:
        shares = connection.gather(shares[0])
        placed_cpu = sum(connection.gather(placed_cpu))
    if first:
        wall = median(whole_wall), median(placed_wall)
        row = [kind, k, k, rounds, *(f"{each:.2f}" for each in wall), f"{wall[0] / wall[1]:.3f}"]
        row += [f"{whole_cpu:.2f}", f"{placed_cpu:.2f}", f"{whole_cpu / placed_cpu:.3f}"]
        row += [" ".join(shares), f"{sent / 1e6:.1f}", f"{os.getloadavg()[0]:.1f}"]
        with RESULTS.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)
        print(*(f"{name}: {value}" for name, value in zip(COLUMNS, row, strict=True)), sep=", ")
        print("wall seconds:", *(f"{each:.2f}" for each in (*whole_wall, *placed_wall)), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    rounds, cases = int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:] or [*CASES]
    if "RANK" in os.environ:
        kind, k = CASES[cases[0]]
        with connect(k) as connection:
            measure(kind, k, rounds, connection)
        return
    if not RESULTS.exists():
        RESULTS.write_text(",".join(COLUMNS) + "\n")
    for case in cases:
        kind, k = CASES[case]
        if k == 1:
            measure(kind, k, rounds, None)
        else:
            launch(__file__, [str(rounds), case], k)


if __name__ == "__main__":
    main()
