"""All built-in models: native, KaHyPar and Mt-KaHyPar on our blocks; volumes, times, gaps.

python benchmarks/quality.py [--models a,b] [--k 8,32] [--eps 0.1] [--grains coarse,fine]
                             [--backends native,kahypar,mtkahypar] [--csv FILE]

A row that the CSV has already is not run again. The summary is a performance profile (the share of
instances within a factor tau of the best) and geometric means of the ratio to the best other.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import hgpart
from hgpart.partition.balance import capacities
from hgpart.partition.bound import lower_bound

FIELDS = ("model", "grain", "k", "eps", "backend", "volume", "imbalance", "seconds", "bound")
Key = tuple[str, str, int, float]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(hgpart.builtin_models()))
    parser.add_argument("--k", default="2,4,8,16,32,64,128")
    parser.add_argument("--eps", default="0.1,0.03")
    parser.add_argument("--grains", default="coarse,fine")
    parser.add_argument("--backends", default="native,kahypar,mtkahypar")
    parser.add_argument("--csv", type=Path, default=Path("benchmarks/results/quality.csv"))
    options = parser.parse_args()
    known = list(read(options.csv))
    done = {(*key, backend) for key, backend, *_ in known}
    for name in options.models.split(","):
        model, shape = hgpart.load_model(name, device="meta")
        graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
        for grain in options.grains.split(","):
            for k in map(int, options.k.split(",")):
                for eps in map(float, options.eps.split(",")):
                    for backend in options.backends.split(","):
                        if (name, grain, k, eps, backend) not in done:
                            append(options.csv, run(name, graph, grain, k, eps, backend))
    summarise(list(read(options.csv)))


def run(
    name: str, graph: hgpart.ChannelGraph, grain: str, k: int, eps: float, backend: str
) -> dict[str, object]:
    work = hgpart.flops(graph)
    modelling = hgpart.Modelling(grain=grain)
    row: dict[str, object] = dict(zip(FIELDS, (name, grain, k, eps, backend), strict=False))
    start = time.perf_counter()
    try:
        found = hgpart.partition_graph(graph, work, k, eps, modelling=modelling, backend=backend)
    except hgpart.errors.InfeasibleError:
        return row
    row["seconds"] = round(time.perf_counter() - start, 2)
    row["volume"] = found.evaluation.volume
    row["imbalance"] = found.evaluation.imbalance
    total = int(found.evaluation.loads.sum())
    row["bound"] = lower_bound(graph, work, modelling, capacities(total, [1] * k, eps))
    return row


def append(path: Path, row: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def read(path: Path) -> Iterator[tuple[Key, str, float, float, float]]:
    """Instance, backend, volume (infinite where eps can't be met), seconds and bound."""
    if not path.exists():
        return
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["model"], row["grain"], int(row["k"]), float(row["eps"]))
            figures = [float(row[name] or "inf") for name in ("volume", "seconds", "bound")]
            yield key, row["backend"], figures[0], figures[1], figures[2]


def summarise(rows: list[tuple[Key, str, float, float, float]]) -> None:
    volumes: dict[Key, dict[str, float]] = {}
    for key, backend, volume, _, _ in rows:
        if volume < math.inf:
            volumes.setdefault(key, {})[backend] = volume
    backends = sorted({backend for own in volumes.values() for backend in own})
    taus = (1.0, 1.01, 1.05, 1.1, 1.5, 2.0)
    profile = Table("backend", *(f"within {tau:g}" for tau in taus), title="share of instances")
    for backend in backends:
        ratios = [ratio(own.get(backend, math.inf), min(own.values())) for own in volumes.values()]
        profile.add_row(
            backend, *(f"{np.mean([value <= tau + 1e-12 for value in ratios]):.1%}" for tau in taus)
        )
    Console(width=110).print(profile)
    means = Table("grain", "k", "instances", "native / best other", title="geometric means")
    groups = sorted({(key[1], key[2]) for key in volumes})
    for grain, k in groups:
        ratios = [
            ratio(own["native"], min(others))
            for key, own in volumes.items()
            if (key[1], key[2]) == (grain, k) and "native" in own
            if (others := [volume for backend, volume in own.items() if backend != "native"])
        ]
        if ratios:
            mean = math.exp(np.mean(np.log(np.maximum(ratios, 1e-9))))
            means.add_row(grain, str(k), str(len(ratios)), f"{mean:.3f}")
    Console(width=110).print(means)


def ratio(volume: float, best: float) -> float:
    """Two volumes of 0 are equal."""
    return 1.0 if volume == best else volume / max(best, 1e-9)


if __name__ == "__main__":
    main()
