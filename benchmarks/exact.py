"""What `exact` proves: built-in models, coarse-grain, within 60 s each; volumes, bounds, times.

python benchmarks/exact.py [--models a,b] [--k 2,4,8] [--eps 0.1] [--time-limit 60]
                           [--minutes 25] [--csv FILE]

A row that the CSV has already is not run again; after so many minutes no other is begun. Seconds
are of `partition_graph`, the native solver's start included; CPU seconds are of all threads.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

from quality import append, cpu_seconds
from rich.console import Console
from rich.table import Table

import hgpart

FIELDS = ("model", "k", "eps", "volume", "bound", "seconds", "cpu_seconds", "why_not")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(hgpart.builtin_models()))
    parser.add_argument("--k", default="2,4,8")
    parser.add_argument("--eps", type=float, default=0.1)
    parser.add_argument("--time-limit", type=float, default=60)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--csv", type=Path, default=Path("benchmarks/results/exact.csv"))
    options = parser.parse_args()
    done = {(row["model"], int(row["k"]), float(row["eps"])) for row in read(options.csv)}
    deadline = time.monotonic() + 60 * options.minutes
    for k in map(int, options.k.split(",")):
        for name in options.models.split(","):
            if (name, k, options.eps) in done or time.monotonic() > deadline:
                continue
            row = run(name, k, options.eps, options.time_limit)
            append(options.csv, row, FIELDS)
            print(*row.values(), sep=",", flush=True)
    show(read(options.csv))


def run(name: str, k: int, eps: float, time_limit: float) -> dict[str, object]:
    model, shape = hgpart.load_model(name, device="meta")
    graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
    work = hgpart.flops(graph)
    row: dict[str, object] = {"model": name, "k": k, "eps": eps}
    start, cpu = time.perf_counter(), cpu_seconds()
    try:
        found = hgpart.partition_graph(graph, work, k, eps, backend="exact", time_limit=time_limit)
        if found.interrupted:
            raise KeyboardInterrupt
        row |= {"volume": found.evaluation.volume, "bound": found.lower_bound}
    except (hgpart.errors.ArgumentError, hgpart.errors.InfeasibleError) as error:
        row["why_not"] = str(error)
    row["seconds"] = round(time.perf_counter() - start, 1)
    row["cpu_seconds"] = round(cpu_seconds() - cpu, 1)
    return row


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def show(rows: list[dict[str, str]]) -> None:
    headings = ("model", "k", "volume MB", "at least MB", "gap", "seconds", "CPU seconds")
    table = Table(*headings, title="exact, coarse-grain")
    for row in rows:
        figures = ["-", "-", "-"]
        if row["volume"]:
            volume, bound = int(row["volume"]), int(row["bound"])
            gap = (volume - bound) / max(1, volume)
            figures = [
                f"{volume / 1e6:.2f}",
                f"{bound / 1e6:.2f}",
                f"{gap:.1%}" if gap else "optimal",
            ]
        table.add_row(row["model"], row["k"], *figures, row["seconds"], row["cpu_seconds"])
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
