"""Runs `hgpart recommend` in many cells: what it predicts beside what it measures, and its choice.

A cell is a model, a batch and a size of images. In each, the command measures layers and links
briefly, simulates all ways, and runs the best of them, one process and torch's DDP in turns. Run it
on an idle machine:

    python benchmarks/recommended_cells.py --devices 2 --measure 4 --json cells.json
    python benchmarks/recommended_cells.py --suite --devices 2 --measure 6 --json suite.json

With --suite the cells are the 24 of `suite.py` (M. Jansen's thesis, 2020, tables 8.1 and 8.2), with
their data. A cell that the file has already is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from suite import DATA, data_of, suite_runs, write_images

CELLS = [
    *(("resnet18", 16, 64), ("resnet18", 32, 128), ("resnet34", 8, 128), ("resnet50", 16, 128)),
    *(("resnet50", 8, 64), ("vgg11", 8, 64), ("vgg11", 4, 128), ("vgg16", 16, 64)),
    *(("vgg16", 8, 128), ("vgg19", 8, 64), ("mobilenet_v2", 16, 128), ("mobilenet_v2", 32, 64)),
    *(("mobilenet_v2", 8, 224), ("densenet121", 8, 64), ("densenet121", 16, 64)),
    *(("squeezenet1_1", 16, 224), ("squeezenet1_1", 32, 128), ("googlenet", 16, 128)),
    *(
        ("googlenet", 8, 64),
        ("alexnet", 32, 128),
        ("alexnet", 16, 224),
        ("shufflenet_v2_x1_0", 16, 128),
    ),
    *(("efficientnet_b0", 8, 128), ("efficientnet_b0", 16, 64), ("resnet101", 8, 64)),
]


def cells(suite: bool, images: str) -> Iterator[tuple[str, list[str]]]:
    """The name of each cell, and the model and options of its command."""
    if not suite:
        for model, batch, size in CELLS:
            of_step = ["--batch-size", str(batch), "--input-shape", f"3,{size},{size}"]
            yield f"{model} {batch} at {size}", [model, *of_step]
        return
    for asked in suite_runs(images):
        data = data_of(asked)
        if data in DATA:
            write_images(data, images)
            shape = asked.input_shape
            sizes = ["--input-shape", ",".join(map(str, shape))] if shape is not None else []
            of_step = ["--batch-size", str(asked.batch_size), "--data", asked.data, *sizes]
            yield asked.name, [asked.model, *of_step]


def run(arguments: list[str], devices: int, measure: int) -> dict[str, Any]:
    """What the command says of a cell, and the seconds that it took."""
    with TemporaryDirectory() as folder:
        file, plan = Path(folder) / "out.json", Path(folder) / "best.json"
        command = [sys.executable, "-m", "hgpart", "recommend", *arguments]
        command += ["--devices", str(devices)]
        command += ["--measure", str(measure), "--json", str(file), "-o", str(plan)]
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1]}
        return {**json.loads(file.read_text()), "command_seconds": time.monotonic() - begin}


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """Predicted and measured seconds of the ways that were run, and how far the choice is off."""
    ways = {way["way"]: way for way in found["ways"] if way["measured_seconds"] is not None}
    measured = {name: way["measured_seconds"] for name, way in ways.items()}
    predicted = {name: way["simulated_seconds"] for name, way in ways.items()}
    pairs = [*combinations(ways, 2)]
    agree = sum(
        (predicted[one] - predicted[two]) * (measured[one] - measured[two]) > 0
        for one, two in pairs
    )
    first = min(predicted, key=predicted.__getitem__)
    ddp = found["measured_besides"].get("torch ddp")
    return {
        "errors": {name: predicted[name] / measured[name] - 1 for name in ways},
        "tau": (2 * agree - len(pairs)) / len(pairs) if pairs else math.nan,
        "predicted_best_behind": measured[first] / min(measured.values()) - 1,
        "best": found["ways"][0]["way"],
        "over_one": measured.get("single", math.nan) / min(measured.values()),
        "over_ddp": math.nan if ddp is None else ddp / min(measured.values()),
        "command_seconds": found["command_seconds"],
        "disturbed": bool(found.get("cautions")),
    }


def main() -> None:
    """Run the cells, print a line of each, then a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--measure", type=int, default=4)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--suite", action="store_true")
    parser.add_argument("--images", default="build/suite_images", metavar="FOLDER")
    asked = parser.parse_args()
    known: dict[str, Any] = json.loads(asked.json.read_text()) if asked.json.exists() else {}
    begin = time.monotonic()
    for name, arguments in cells(asked.suite, asked.images):
        if name not in known and time.monotonic() - begin < 60 * asked.minutes:
            known[name] = run(arguments, asked.devices, asked.measure)
            asked.json.write_text(json.dumps(known))
        if name not in known:
            continue
        if "failed" in known[name]:
            print(f"{name}: {known[name]['failed']}", flush=True)
            continue
        row = figures(known[name])
        errors = ", ".join(f"{way} {error:+.0%}" for way, error in row["errors"].items())
        print(
            f"{name}: {row['best']}, {row['over_one']:.2f} of one, {row['over_ddp']:.2f} of DDP; "
            f"predicted best {row['predicted_best_behind']:+.1%}; tau {row['tau']:.2f}; {errors}; "
            f"{row['command_seconds']:.0f} s{'; disturbed' if row['disturbed'] else ''}",
            flush=True,
        )
    rows = [figures(found) for found in known.values() if "failed" not in found]
    errors = [abs(error) for row in rows for error in row["errors"].values()]
    right = [row["predicted_best_behind"] <= 0 for row in rows]
    near = [row["predicted_best_behind"] <= 0.03 for row in rows]
    over = [math.log(row["over_ddp"]) for row in rows if not math.isnan(row["over_ddp"])]
    taus = [row["tau"] for row in rows if not math.isnan(row["tau"])]
    print(
        f"{len(rows)} cells: error {fmean(errors):.1%} in the mean, {max(errors):.1%} at most; tau "
        f"{fmean(taus):.2f}; predicted best is the fastest in {fmean(right):.0%}, within 3 % of it "
        f"in {fmean(near):.0%}; over DDP "
        f"{math.exp(fmean(over)):.3f} in the geometric mean, {math.exp(min(over)):.3f} at least; "
        f"{fmean(row['command_seconds'] for row in rows):.0f} s a command"
    )


if __name__ == "__main__":
    main()
