"""Volume by native, KaHyPar and Mt-KaHyPar; link costs by native beside Mt-KaHyPar's steiner_tree.

python benchmarks/link_costs.py [--models a,b] [--k 4,8] [--csv FILE]

Coarse-grain, FLOPs, eps 0.1, batch 32. Each solver divides a model for the least volume; native and
Mt-KaHyPar also for the least link costs of two topologies of k devices: `ring`, where a byte costs
the number of hops on the shorter way round, and `nodes`, two nodes of k / 2 devices, where a byte
costs 1 within a node and 10 between them. Mt-KaHyPar runs with its preset deterministic_quality, as
`--backend mtkahypar` does. All figures are hgpart's own, of the partitions: a row has the volume
and both link costs of one partition. A row that the CSV has already is not run again.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import numpy as np
from quality import append, cpu_seconds
from rich.console import Console
from rich.table import Table

import hgpart
from hgpart.partition.problem.objectives import LinkCosts, Objective

FIELDS = (
    *("model", "k", "solver", "objective", "volume", "ring", "nodes", "imbalance"),
    *("seconds", "cpu_seconds"),
)
MODELS = "vgg16,resnet50,mobilenet_v2,unet"
BY_VOLUME, BY_LINKS = ("native", "kahypar", "mtkahypar"), ("native", "mtkahypar")
TOPOLOGIES = ("ring", "nodes")
EPS = 0.1
Rows = dict[tuple[str, int, str, str], dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--k", default="4,8,16")
    parser.add_argument("--csv", type=Path, default=Path("benchmarks/results/link_costs.csv"))
    options = parser.parse_args()
    done = read(options.csv)
    for name in filter(None, options.models.split(",")):
        model, shape = hgpart.load_model(name, device="meta")
        graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
        for k in map(int, options.k.split(",")):
            runs = [(solver, "volume") for solver in BY_VOLUME]
            runs += [(solver, topology) for topology in TOPOLOGIES for solver in BY_LINKS]
            for solver, objective in runs:
                if (name, k, solver, objective) not in done:
                    append(options.csv, run(name, graph, k, solver, objective), FIELDS)
    show(read(options.csv))


def links_of(topology: str, k: int) -> LinkCosts:
    """What a byte costs from each device to each other one."""
    device = np.arange(k)
    apart = np.abs(device[:, None] - device)
    if topology == "ring":
        return hgpart.over_links(np.minimum(apart, k - apart).astype(np.float64))
    node = device // (k // 2)
    return hgpart.over_links(np.where(node[:, None] == node, 1.0, 10.0))


def run(
    name: str, graph: hgpart.ChannelGraph, k: int, solver: str, objective: str
) -> dict[str, object]:
    """Partition, and evaluate by hgpart's metrics."""
    wanted: Objective = hgpart.VOLUME if objective == "volume" else links_of(objective, k)
    start, cpu = time.perf_counter(), cpu_seconds()
    partition = hgpart.partition_graph(
        graph, hgpart.flops(graph), k, EPS, backend=solver, objective=wanted
    )
    traffic = partition.evaluation.traffic
    return {
        **{"model": name, "k": k, "solver": solver, "objective": objective},
        "volume": partition.evaluation.volume,
        **{topology: round(links_of(topology, k).value(traffic)) for topology in TOPOLOGIES},
        "imbalance": round(partition.evaluation.imbalance, 4),
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(cpu_seconds() - cpu, 2),
    }


def read(path: Path) -> Rows:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {
            (row["model"], int(row["k"]), row["solver"], row["objective"]): row
            for row in csv.DictReader(file)
        }


def show(rows: Rows) -> None:
    """Print a line for each model and k: MB, or MB times the cost of their link."""
    by_volume = [(solver, "volume", "volume") for solver in BY_VOLUME]
    table = Table("model", "k", *(f"{solver} volume" for solver in BY_VOLUME))
    cells = list(by_volume)
    for topology in TOPOLOGIES:
        runs = [("native", "volume"), *((solver, topology) for solver in BY_LINKS)]
        for solver, objective in runs:
            by = f"{topology}: {solver}" + " by volume" * (objective == "volume")
            table.add_column(by)
            cells.append((solver, objective, topology))
    for name, k in sorted({key[:2] for key in rows}):
        figures = [(rows.get((name, k, *cell[:2])), cell[2]) for cell in cells]
        table.add_row(
            name, str(k), *(f"{int(row[of]) / 1e6:,.1f}" if row else "" for row, of in figures)
        )
    seconds = Table("solver", "objective", "runs", "mean CPU seconds")
    for solver, objective in sorted({key[2:] for key in rows}):
        own = [
            float(row["cpu_seconds"]) for key, row in rows.items() if key[2:] == (solver, objective)
        ]
        seconds.add_row(solver, objective, str(len(own)), f"{np.mean(own):.1f}")
    console = Console(width=160)
    console.print(table, seconds)


if __name__ == "__main__":
    main()
