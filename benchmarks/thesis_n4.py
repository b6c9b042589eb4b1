"""VGG16 in four parts: the thesis's partitions, and the least volumes by several work weights.

    python benchmarks/thesis_n4.py [--time-limit 60]

The thesis's four coarse-grain rows for N=4 (tables 5.9, 5.10, A.1 to A.3, A.7 to A.9) are one
partition: layers 1, 2, 11 to 14 and 16; 3 to 5 and 15; 6, 7 and a share of the filters of 8; the
rest of 8, 9 and 10. What the third part has, its smallest, says how large the share is, and the
share what is sent. First printed are these, beside its volumes; then the least volumes, by the
backend `exact`, of the same hypergraph with other weights and bounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from thesis_vgg16 import FITTED_WORK, HERE, MEBI, THESIS, map_sizes, reference, vgg16, work_of

import hgpart
from hgpart import ChannelGraph, Work

ROWS = {0.03: ("A.1", "A.7"), 0.1: ("5.9", "5.10"), 0.15: ("A.2", "A.8"), 0.2: ("A.3", "A.9")}
LAYERS_6_AND_7 = 9649  # the smallest part at eps 0.2, where no filter of layer 8 is with them
SENT = (2, 5, 7, 10, 14, 15)  # layers whose maps go to one other part, all of them
SPLIT = 8
EPS = (0.03, 0.034, 0.1, 0.15, 0.2)  # at 0.1 the thesis's largest part is 1.034 times the average
SECOND = 0.154  # the second convolution's share of its work (tables 5.1)


def filters_moved(eps: float) -> float:
    """Filters of layer 8 that are with layers 6 and 7, by the thesis's loads."""
    smallest = float(reference()[ROWS[eps][0], 4]["min_work"])
    return (smallest - LAYERS_6_AND_7) / (FITTED_WORK[SPLIT - 1] / 512)


def volume_of(graph: ChannelGraph, filters: float) -> float:
    """Volume of the partition above, in 2^20 elements."""
    sizes = map_sizes(graph)
    return sum(sizes[layer] for layer in SENT) + sizes[SPLIT] * filters / 512


def weights(graph: ChannelGraph) -> Iterator[tuple[str, Work]]:
    yield "FLOPs", work_of(graph, "flops")
    per_task = hgpart.flops(graph).per_task.astype(float)
    tasks = np.array([layer.tasks for layer in graph.layers])
    loads, its = per_task * tasks, np.array(FITTED_WORK)
    loads[2] = (loads.sum() - loads[2]) * SECOND / (1 - SECOND)
    yield "FLOPs, second convolution 15 %", _work(loads / tasks)
    loads = per_task * tasks
    share = its[13:].sum() / its.sum()
    loads[14:17] = its[13:] / its[13:].sum() * loads[:14].sum() * share / (1 - share)
    yield "FLOPs, linear layers as in the thesis", _work(loads / tasks)
    yield "the thesis's, recovered", work_of(graph, "fitted")
    yield "measured here", work_of(graph, str(HERE / "results" / "vgg16_profile.json"))


def _work(per_task: np.ndarray) -> Work:
    return Work(np.rint(per_task * 1000).astype(np.int64), "MAC", 1000, "changed")


def least(graph: ChannelGraph, work: Work, eps: float, limit: float) -> tuple[str, str]:
    """The least coarse-grain volume, bold where proven, and the native solver's fine-grain one."""
    found = hgpart.partition_graph(
        graph, work, 4, eps, modelling=THESIS, backend="exact", time_limit=limit, best_effort=True
    )
    fine = hgpart.partition_graph(
        graph, work, 4, eps, modelling=replace(THESIS, grain="fine"), best_effort=True
    )
    if found.interrupted or fine.interrupted:
        raise KeyboardInterrupt
    volume, bound = found.evaluation.volume, found.lower_bound
    text = (
        f"**{volume / MEBI:.2f}**"
        if volume == bound
        else f"{volume / MEBI:.2f} ({bound / MEBI:.2f})"
    )
    return text, f"{fine.evaluation.volume / MEBI:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=60, help="seconds of a proof")
    limit = parser.parse_args().time_limit
    graph, console = vgg16(), Console(width=160)
    table = Table("eps", "filters of layer 8 moved", "volume", "printed", box=box.MARKDOWN)
    for eps, (_, volume) in ROWS.items():
        moved = filters_moved(eps)
        printed = reference()[volume, 4]["volume"]
        table.add_row(f"{eps:g}", f"{moved:.0f}", f"{volume_of(graph, round(moved)):.2f}", printed)
    console.print(table)
    grains = [f"{grain}, eps {eps:g}" for eps in EPS for grain in ("coarse", "fine")]
    table = Table("work", *grains, box=box.MARKDOWN)
    for name, work in weights(graph):
        cells = [cell for eps in EPS for cell in least(graph, work, eps, limit)]
        table.add_row(name, *cells)
    console.print(table)


if __name__ == "__main__":
    main()
