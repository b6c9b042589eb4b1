"""Steps by every rule beside the original that adds up the same micro-batches.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python benchmarks/schedule_equality.py [model ...]

One process, float64, training mode, batches of 8 samples in 1, 3 (of 3, 3 and 2) and 4
micro-batches, on random partitions, coarse and fine, k = 2, 3, 4: the largest relative differences
of results, gradients and statistics (`hgpart.run.verifying`), and whether every byte is the
table's. Appends a row a model and rule to benchmarks/results/schedule_equality.csv.
"""

from __future__ import annotations

import csv
import gc
import sys
import time
from pathlib import Path

import placements
import torch
from partitioned_models import MODELS
from placed_models import model_of

import hgpart
from hgpart.hypergraph.modelling import Modelling
from hgpart.run.verifying import Verification, verify
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import RULES

RESULTS = Path(__file__).parent / "results" / "schedule_equality.csv"
BUILTINS = {"lenet5": (1, 32, 32), "resnet18": (3, 64, 64), "mobilenet_v2": (3, 64, 64)}
BUILTINS |= {"googlenet": (3, 96, 96), "shufflenet_v2_x1_0": (3, 64, 64)}
MICRO_BATCHES = (1, 3, 4)
BATCH = 8
COLUMNS = ["model", "rule", "runs", "outputs", "gradients", "buffers", "bytes", "seconds", "failed"]


def main() -> None:
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not RESULTS.stat().st_size:
            writer.writerow(COLUMNS)
        for name in sys.argv[1:] or [*MODELS, *BUILTINS]:
            for row in rows(name):
                writer.writerow(row)
                file.flush()
                print(*row, sep="  ", flush=True)


def rows(name: str) -> list[list[object]]:
    """Of a model, a row for each rule."""
    if name in BUILTINS:
        model = hgpart.load_model(name, seed=0)[0].double()
        shapes = [BUILTINS[name]]
    else:
        model, example = model_of(name)
        shapes = [tuple(one.shape[1:]) for one in example]
    torch.manual_seed(1)
    inputs = [torch.randn(BATCH, *shape, dtype=torch.float64) for shape in shapes]
    found: dict[str, list[Verification]] = {rule: [] for rule in RULES}
    seconds = dict.fromkeys(RULES, 0.0)
    traced, graph = placements.traced_model(model, inputs)
    for k, grain, seed in ((2, "coarse", 0), (3, "fine", 1), (4, "coarse", 2)):
        modelling = Modelling(grain=grain, batch_size=BATCH)
        plan = placements.of_random_blocks(traced, graph, modelling, k, seed)
        placement = hgpart.place(model, plan)
        for rule in RULES:
            begin = time.perf_counter()
            found[rule] += (
                verify(model, placement, inputs, scheduling=Scheduling(rule, m))
                for m in MICRO_BATCHES
            )
            seconds[rule] += time.perf_counter() - begin
        del placement
        gc.collect()  # it refers to itself
    return [
        [
            name,
            rule,
            len(runs),
            *(
                f"{max(getattr(one, kind).value for one in runs):.1e}"
                for kind in ("outputs", "gradients", "buffers")
            ),
            sum(int(one.traffic.forward_bytes.sum()) for one in runs),
            f"{seconds[rule]:.0f}",
            "; ".join(failure for one in runs for failure in one.failures),
        ]
        for rule, runs in found.items()
    ]


if __name__ == "__main__":
    main()
