"""Figure 5.2 of the thesis: loss and accuracy over time, by ways of training in two processes.

    python benchmarks/figure_5_2.py --json benchmarks/results/figure_5_2.jsonl [--data shapes]
    python benchmarks/figure_5_2.py --json benchmarks/results/figure_5_2.jsonl --table

The thesis trains VGG16 on images of 224 x 224 to a training accuracy of 90 %, on one processor, by
parameter servers, synchronous and asynchronous, and by its partition, which it trains
asynchronously (chapter 4). Here it is a net like VGG of eight layers, by `hgpart train`, with its
partition trained synchronously as well: on digits, which it learns in some epochs, and with norms
on drawn shapes, which it does not; five seeds, each with its own weights and order of samples, the
same for all ways. A parameter server is a third process. Run it on an idle
machine: what is stale depends on what takes how long. A line is written when a net is trained, and
what has a line is not trained again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

SHAPE, EPS, BATCH = "3,32,32", "0.1", "32"
# With a momentum of 0.9 and a rate of 0.02 or 0.01, weights that lack one update do not converge.
OPTIMIZER = "--optimizer", "sgd,momentum=0"
WAYS = {
    "one process": ("--devices", "1"),
    "parameter server, synchronous": ("--way", "ps-sync", "--devices", "2"),
    "parameter server, asynchronous": ("--way", "ps-async", "--devices", "2"),
    "partition, synchronous": ("--schedule", "greedy", "--micro-batches", "4"),
    "partition, asynchronous": ("--schedule", "dynamic,in-flight=2"),
}
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}  # 95 %, two-sided
WINDOW = 50  # steps whose mean loss is a point


@dataclass(frozen=True)
class Task:
    """What is trained on a data set, how fast, and the accuracy that it should reach."""

    model: str
    rate: float
    epochs: int
    goal: float


TASKS = {
    "digits": Task("vgg_like", 0.02, 8, 0.9),
    "shapes": Task("vgg_like_with_norms", 0.05, 3, 0.5),
}


def vgg_like(norms: bool = False) -> nn.Module:
    """Six convolutions of 3 x 3 in pairs, and two linear layers."""
    layers: list[nn.Module] = []
    for before, filters in ((3, 16), (16, 32), (32, 64)):
        for channels in before, filters:
            norm = [nn.BatchNorm2d(filters)] if norms else []
            layers += [nn.Conv2d(channels, filters, 3, padding=1), *norm, nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    linear = nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10)
    model = nn.Sequential(*layers, nn.Flatten(), *linear)
    for layer in () if norms else model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


def vgg_like_with_norms() -> nn.Module:
    """The same, with a batch norm behind each convolution, and torch's own first weights."""
    return vgg_like(norms=True)


def hgpart(*arguments: str) -> None:
    command = [sys.executable, "-m", "hgpart", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")


def trained(way: str, seed: int, data: str, epochs: int, folder: Path) -> dict[str, Any]:
    """What a training came to."""
    file, plan, task = folder / "out.json", folder / "plan.json", TASKS[data]
    model = f"benchmarks/figure_5_2.py:{task.model}"
    if not plan.exists():
        of_plan = "--k", "2", "--eps", EPS, "--input-shape", SHAPE, "--batch-size", BATCH
        hgpart("partition", model, *of_plan, "-o", str(plan))
    options = WAYS[way]
    what = ("--input-shape", SHAPE) if "--devices" in options else ("--plan", str(plan))
    training = "--data", data, "--steps", f"{epochs}ep", "--batch-size", BATCH, "--seed", str(seed)
    how = *OPTIMIZER, "--lr", str(task.rate), "--json", str(file)
    hgpart("train", model, *what, *options, *training, *how)
    found = json.loads(file.read_text())
    losses = found["losses"]
    windows = range(0, len(losses) - WINDOW + 1, WINDOW)
    return {
        "way": way,
        "seed": seed,
        "data": data,
        "losses": [round(fmean(losses[at : at + WINDOW]), 4) for at in windows],
        "accuracies": found["accuracies"],
        "step_seconds": int(BATCH) / found["samples_per_second"],
        "steps": len(losses),
    }


def said(values: list[float], scale: float = 1.0, digits: int = 1) -> str:
    """Mean, and half of its 95 % interval by Student's distribution."""
    mean = f"{scale * fmean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    half = STUDENT.get(len(values), 1.96) * stdev(values) / math.sqrt(len(values))
    return f"{mean} ± {scale * half:.{digits}f}"


def print_table(rows: list[dict[str, Any]], goal: float) -> None:
    """Each way by epochs, and how long an epoch takes it."""
    alone = [row["step_seconds"] for row in rows if row["way"] == "one process"]
    epochs = min(len(row["accuracies"]) for row in rows)
    shown = sorted({0, epochs // 4, epochs // 2, epochs - 1})
    heads = [f"accuracy after epoch {at + 1}, %" for at in shown]
    column = f"s to {100 * goal:.0f} %"
    print(f"| way | seeds | ms a step | times one process | {column} | {' | '.join(heads)} |")
    print(f"|---|---:|---:|---:|---:|{'---:|' * len(shown)}")
    for way in WAYS:
        own = [row for row in rows if row["way"] == way]
        if not own:
            continue
        step = median(row["step_seconds"] for row in own)
        times = median(alone) / step if alone else math.nan
        reached = [
            next((at for at, share in enumerate(row["accuracies"], 1) if share >= goal), math.inf)
            for row in own
        ]
        spent = median(reached) * own[0]["steps"] / len(own[0]["accuracies"]) * step
        scores = [said([row["accuracies"][at] for row in own], 100) for at in shown]
        print(
            f"| {way} | {len(own)} | {1000 * step:.1f} | {times:.2f} | {spent:.1f} "
            f"| {' | '.join(scores)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--data", choices=TASKS, default="digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--table", action="store_true", help="Run nothing.")
    asked = parser.parse_args()
    task = TASKS[asked.data]
    lines = asked.json.read_text().splitlines() if asked.json.exists() else []
    rows = [row for row in map(json.loads, lines) if row["data"] == asked.data]
    known, begin = {(row["way"], row["seed"]) for row in rows}, time.monotonic()
    with TemporaryDirectory() as folder:
        for seed in range(0 if asked.table else asked.seeds):
            for way in WAYS:
                is_late = time.monotonic() - begin > 60 * asked.minutes
                if (way, seed) not in known and not is_late:
                    rows.append(trained(way, seed, asked.data, task.epochs, Path(folder)))
                    with asked.json.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
                    print(f"{way}, seed {seed}: {rows[-1]['accuracies']}", flush=True)
    print_table(rows, task.goal)


if __name__ == "__main__":
    main()
