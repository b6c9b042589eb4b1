"""All built-in models: native beside KaHyPar and Mt-KaHyPar; volumes, times, gaps.

python benchmarks/quality.py [--models a,b] [--k 8,32] [--eps 0.1] [--grains coarse,fine]
                             [--solvers native,kahypar,...] [--csv FILE]

Solvers: native; kahypar; mtkahypar-default, -quality, -highest: on our blocks, which hgpart then
splits and improves. With -full behind its name (kahypar-full, mtkahypar-default-full) a partitioner
gets the full hypergraph, one run of at most 10 minutes; what has more than 30 million pins is left
out. A row that the CSV has already is not run again (`--models ""` runs none). The summary is a
performance profile (the share of instances within a factor tau of the best) and geometric means of
the ratio to the best other.
"""

from __future__ import annotations

import argparse
import csv
import math
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import hgpart
from hgpart.arrays import Int32
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.bounds.lower_bound import lower_bound
from hgpart.partition.external import mtkahypar as mtkahypar_backend
from hgpart.partition.external.kahypar import kahypar
from hgpart.partition.external.mtkahypar import mtkahypar
from hgpart.partition.problem.problem import Problem

FIELDS = (
    *("model", "grain", "k", "eps", "solver", "volume", "imbalance"),
    *("seconds", "cpu_seconds", "bound", "note"),
)
PRESETS = {
    "mtkahypar-default": "DEFAULT",
    "mtkahypar-quality": "QUALITY",
    "mtkahypar-highest": "HIGHEST_QUALITY",
}
SOLVERS = (
    *("native", "kahypar", *PRESETS),
    *("kahypar-full", *(f"{name}-full" for name in PRESETS)),
)
LIMIT = 600.0  # seconds on the full hypergraph
MOST_PINS = 30_000_000

Key = tuple[str, str, int, float]


@dataclass(frozen=True)
class Row:
    """One run; the volume is infinite where eps was not met."""

    key: Key
    solver: str
    volume: float
    seconds: float
    cpu_seconds: float
    bound: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(hgpart.builtin_models()))
    parser.add_argument("--k", default="2,4,8,16,32,64,128")
    parser.add_argument("--eps", default="0.1,0.03")
    parser.add_argument("--grains", default="coarse,fine")
    parser.add_argument("--solvers", default=",".join(SOLVERS))
    parser.add_argument("--csv", type=Path, default=Path("benchmarks/results/quality.csv"))
    options = parser.parse_args()
    done = {(*row.key, row.solver) for row in read(options.csv)}
    for name in filter(None, options.models.split(",")):
        wanted = [
            (name, grain, int(k), float(eps), solver)
            for grain in options.grains.split(",")
            for eps in options.eps.split(",")
            for k in options.k.split(",")
            for solver in options.solvers.split(",")
        ]
        wanted = [one for one in wanted if one not in done]
        if not wanted:
            continue
        model, shape = hgpart.load_model(name, device="meta")
        graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
        for _, grain, k, eps, solver in wanted:
            append(options.csv, run(name, graph, grain, k, eps, solver))
    summarise(list(read(options.csv)))


def run(
    name: str, graph: hgpart.ChannelGraph, grain: str, k: int, eps: float, solver: str
) -> dict[str, object]:
    """Partition, and evaluate by hgpart's metrics."""
    problem = Problem(graph, hgpart.flops(graph), hgpart.Modelling(grain=grain), k, eps)
    row: dict[str, object] = dict(zip(FIELDS, (name, grain, k, eps, solver), strict=False))
    start, cpu = time.perf_counter(), cpu_seconds()
    try:
        if solver.endswith("-full"):
            hypergraph, parts = on_full_hypergraph(problem, solver)
            evaluation = hgpart.evaluate(hypergraph, parts, k)
        else:
            backend, _, _ = solver.partition("-")
            mtkahypar_backend.PRESET = PRESETS.get(solver, "")  # as hgpart's backend runs it
            found = hgpart.partition_graph(
                graph, problem.work, k, eps, modelling=problem.modelling, backend=backend
            )
            if found.interrupted:
                raise KeyboardInterrupt
            evaluation = found.evaluation
    except hgpart.errors.HgpartError as error:
        row["note"] = str(error)[:100]
        return row
    row["seconds"] = round(time.perf_counter() - start, 2)
    row["cpu_seconds"] = round(cpu_seconds() - cpu, 2)
    row["imbalance"] = evaluation.imbalance
    if (evaluation.loads > problem.capacities).any():
        row["note"] = f"above eps, with volume {evaluation.volume}"
        return row
    row["volume"] = evaluation.volume
    row["bound"] = lower_bound(problem)
    return row


def cpu_seconds() -> float:
    """Of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def on_full_hypergraph(problem: Problem, solver: str) -> tuple[Hypergraph, Int32]:
    """One run of a general partitioner on single tasks (or their channels)."""
    hypergraph = problem.hypergraph(single_blocks(problem.graph, problem.modelling)).hypergraph
    if len(hypergraph.pins) > MOST_PINS:
        raise hgpart.errors.ArgumentError(f"{len(hypergraph.pins)} pins: left out")
    name, room = solver.removesuffix("-full"), problem.capacities
    if name == "kahypar":
        return hypergraph, kahypar(hypergraph, room, time_limit=LIMIT, most_runs=1)
    mtkahypar_backend.PRESET = PRESETS[name]
    return hypergraph, mtkahypar(hypergraph, room, time_limit=LIMIT)


def append(path: Path, row: dict[str, object], fields: Sequence[str] = FIELDS) -> None:
    """Add a row to a CSV file, whose first line names its fields."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields)
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def read(path: Path) -> Iterator[Row]:
    """Read the rows; what is empty is infinite."""
    if not path.exists():
        return
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["model"], row["grain"], int(row["k"]), float(row["eps"]))
            names = ("volume", "seconds", "cpu_seconds", "bound")
            yield Row(key, row["solver"], *(float(row[name] or "inf") for name in names))


def summarise(rows: list[Row], solvers: tuple[str, ...] = SOLVERS) -> None:
    """Print the profile, the means and the times, over instances that native has solved too."""
    instances: dict[Key, dict[str, Row]] = {}
    for row in rows:
        instances.setdefault(row.key, {})[row.solver] = row
    instances = {key: own for key, own in instances.items() if len(own) > 1 and "native" in own}
    best = {key: min(row.volume for row in own.values()) for key, own in instances.items()}
    instances = {key: own for key, own in instances.items() if best[key] < math.inf}
    taus = (1.0, 1.01, 1.05, 1.1, 1.5, 2.0)
    profile = Table("solver", "instances", *(f"within {tau:g}" for tau in taus))
    profile.title = "share of the instances that a solver was run on"
    for solver in solvers:
        ratios = np.array(
            [
                ratio(own[solver].volume, best[key])
                for key, own in instances.items()
                if solver in own
            ]
        )
        if len(ratios):
            shares = [f"{np.mean(ratios <= tau + 1e-12):.1%}" for tau in taus]
            profile.add_row(solver, str(len(ratios)), *shares)
    console = Console(width=120)
    console.print(profile)
    means = Table("grain", "k", "instances", "native / best other", "to kahypar", "gap", "seconds")
    means.title = "geometric means; mean gap to the lower bound; mean CPU seconds of native"
    groups = [(grain, str(k)) for grain, k in sorted({key[1:3] for key in instances})]
    for grain, k in [*groups, ("all", "")] if instances else []:
        chosen = [
            own
            for key, own in instances.items()
            if k in ("", str(key[2])) and grain in ("all", key[1])
        ]
        gaps = [gap(own["native"]) for own in chosen]
        means.add_row(
            *(grain, k, str(len(chosen))),
            geometric_mean(chosen, solvers[1:]),
            geometric_mean(chosen, ("kahypar",)),
            f"{np.mean(gaps):.1%}",
            f"{np.mean([own['native'].cpu_seconds for own in chosen]):.1f}",
        )
    console.print(means)
    for key, own in instances.items():
        if own["native"].volume > best[key]:
            winner = min(own.values(), key=lambda row: row.volume)
            console.print(f"{key}: {winner.solver} is better, {winner.volume:g} to ", end="")
            console.print(f"{own['native'].volume:g}")


def geometric_mean(chosen: list[dict[str, Row]], others: tuple[str, ...]) -> str:
    """Of native's volume over the best of the others'."""
    logarithms = []
    for own in chosen:
        volumes = [own[name].volume for name in others if name in own]
        if volumes and min(volumes) < math.inf and own["native"].volume < math.inf:
            logarithms.append(math.log(max(ratio(own["native"].volume, min(volumes)), 1e-9)))
    return f"{math.exp(np.mean(logarithms)):.3f}" if logarithms else ""


def gap(row: Row) -> float:
    return (row.volume - row.bound) / row.volume if 0 < row.volume < math.inf else 0.0


def ratio(volume: float, best: float) -> float:
    """Two volumes of 0 are equal."""
    return 1.0 if volume == best else volume / max(best, 1e-9)


if __name__ == "__main__":
    main()
