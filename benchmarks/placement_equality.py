"""Every built-in model in parts beside the original: results, gradients, statistics, bytes.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python benchmarks/placement_equality.py
        [model ...] [--random N] [--summary]

One process, float64, training mode, two images of the smallest size that all layers have something
to do on. Coarse and fine, k = 2, 3, 4, 8, and partitions of these kinds:

    good     the partitioner's own
    random   N of them (20). Even seeds: each task, and fine-grain each channel of it, in a part
             at random. Odd seeds, and fine-grain models of many channels: up to four blocks of
             rows and of columns a layer, each in a part at random
    shares   every layer cut into k shares, fine-grain in a checkerboard
    apart    no layer in a neighbour's part, as far as k parts allow that
    empty    blocks at random, and of each layer one part has nothing

Each run appends a line to benchmarks/results/placement_equality.csv: the largest differences,
relative to the size of each tensor (tests/originals.py), the bytes that were counted and those of
the partition's hypergraph. Runs that the file has are not repeated, unless they failed.
"""

from __future__ import annotations

import argparse
import csv
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import placements
import torch
from builtin_graphs import IMAGES
from originals import Original, expected_traffic, original, wrong_figures
from rich.console import Console
from rich.table import Table

import hgpart
from hgpart.hypergraph.blocks import Blocks, full_vertices, layer_blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partitioned_model import PartitionedModel
from hgpart.tracing.traced_model import TracedModel

RESULTS = Path(__file__).parent / "results" / "placement_equality.csv"
KEY = ("model", "grain", "partition", "seed", "k")
DIFFERENCES = ("outputs", "gradients", "buffers")
BYTES = ("forward_bytes", "forward_expected", "backward_bytes", "backward_expected")
COLUMNS = (*KEY, *DIFFERENCES, *BYTES, "seconds", "failure")

BATCH = 2
MOST_CHANNELS = 100_000  # fine-grain, of which each may be in any part


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=hgpart.builtin_models())
    parser.add_argument("--random", type=int, default=20)
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    known = passed(RESULTS)
    if not arguments.summary:
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(known)
            done = {tuple(row[each] for each in KEY) for row in known}
            for name in arguments.models:
                for row in runs(name, arguments.random, done):
                    writer.writerow(row)
                    file.flush()
                    print(*row.values(), sep=",", flush=True)
    summarise()


def passed(path: Path) -> list[dict[str, str]]:
    """Read what was found before, but for what failed."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if not row["failure"]]


# ------------------------------------------------------------------ runs


def runs(name: str, random: int, done: set[tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """Run a model in all partitions that have not been done."""
    kinds = [("good", 0), ("shares", 0), ("apart", 0), ("empty", 0)]
    kinds += [("random", seed) for seed in range(random)]
    keys = [
        (name, grain, kind, seed, k)
        for kind, seed in kinds
        for grain in ("coarse", "fine")
        for k in (2, 3, 4, 8)
    ]
    missing = [key for key in keys if tuple(map(str, key)) not in done]
    if not missing:
        return
    model, _ = hgpart.load_model(name, seed=0)
    torch.manual_seed(1)
    inputs = [torch.randn(BATCH, *IMAGES.get(name, (3, 64, 64)), dtype=torch.float64)]
    traced, graph = placements.traced_model(model.double(), inputs)
    expected = original(model, inputs)
    for key in missing:
        _, grain, kind, seed, k = key
        row = dict(zip(KEY, map(str, key), strict=True))
        start = time.perf_counter()
        try:
            modelling = Modelling(grain=grain, batch_size=BATCH)
            plan = KINDS[kind](traced, graph, modelling, k, seed)
            row |= compare(expected, plan)
        except Exception as error:
            row["failure"] = f"{type(error).__name__}: {error}".splitlines()[0]
        row["seconds"] = f"{time.perf_counter() - start:.2f}"
        yield {each: row.get(each, "") for each in COLUMNS}
        gc.collect()  # a placement refers to itself, and the next one may be as large


def compare(expected: Original, plan: PartitionedModel) -> dict[str, str]:
    """Place the model, run it, and compare."""
    placed = hgpart.place(expected.model, plan)
    differences = expected.run(placed)
    found, table = placed.runtime.last.traffic, expected_traffic(plan)
    failures = [each for each in DIFFERENCES if not getattr(differences, each) <= placements.CLOSE]
    failures += wrong_figures(found, table)
    failures += ["elements held"] * (differences.held != expected.elements)
    return {
        **{each: f"{getattr(differences, each):.2e}" for each in DIFFERENCES},
        "forward_bytes": str(found.forward_bytes.sum()),
        "forward_expected": str(table.forward_bytes.sum()),
        "backward_bytes": str(found.backward_bytes.sum()),
        "backward_expected": str(table.backward_bytes.sum()),
        "failure": ", ".join(failures),
    }


# ------------------------------------------------------------------ partitions


def good(
    traced: TracedModel, graph: ChannelGraph, modelling: Modelling, k: int, seed: int
) -> PartitionedModel:
    work = hgpart.flops(graph)
    found = hgpart.partition_graph(
        graph, work, k, 0.1, modelling=modelling, seed=seed, best_effort=True
    )
    return PartitionedModel(traced, found, found.evaluation, {})


def random(
    traced: TracedModel, graph: ChannelGraph, modelling: Modelling, k: int, seed: int
) -> PartitionedModel:
    few = modelling.grain == "coarse" or full_vertices(modelling.views(graph)) <= MOST_CHANNELS
    single = few and seed % 2 == 0
    deal = placements.of_single_tasks if single else placements.of_random_blocks
    return deal(traced, graph, modelling, k, seed)


def shares(
    traced: TracedModel, graph: ChannelGraph, modelling: Modelling, k: int, seed: int
) -> PartitionedModel:
    rows, columns = [], []
    for layer in graph.layers:
        read = modelling.split_read(layer)
        rows.append(_even(1 if modelling.is_solid(layer) else layer.tasks, layer.tasks, k))
        columns.append(_even(1, 1, 1) if read is None else _even(*2 * [len(read.channels)], k))
    blocks = Blocks(tuple(rows), tuple(columns))
    model = cnn_hypergraph(graph, hgpart.flops(graph), blocks, modelling)
    parts = (model.vertex_rows + model.vertex_columns) % k
    return placements.partitioned(traced, graph, modelling, k, model, parts)


def _even(most: int, count: int, k: int) -> np.ndarray:
    """Cut `count` into k nearly equal runs, or into `most`."""
    runs = min(most, k)
    return np.arange(runs + 1) * count // runs


def apart(
    traced: TracedModel, graph: ChannelGraph, modelling: Modelling, k: int, seed: int
) -> PartitionedModel:
    blocks = layer_blocks(modelling.views(graph))
    model = cnn_hypergraph(graph, hgpart.flops(graph), blocks, modelling)
    neighbours = _neighbours(model)
    parts = np.full(len(neighbours), -1, np.int32)
    for vertex, others in enumerate(neighbours):
        taken = np.bincount(parts[[each for each in others if parts[each] >= 0]], minlength=k)
        turns = (np.arange(k) + vertex) % k  # of the parts that serve as well, each has its turn
        parts[vertex] = turns[np.argmin(taken[turns])]
    return placements.partitioned(traced, graph, modelling, k, model, parts)


def _neighbours(model: CnnHypergraph) -> list[set[int]]:
    """Per vertex those that it sends to or receives from."""
    hypergraph = model.hypergraph
    found: list[set[int]] = [set() for _ in range(hypergraph.vertices)]
    for start, end in zip(hypergraph.pointers[:-1], hypergraph.pointers[1:], strict=True):
        root, *others = hypergraph.pins[start:end].tolist()
        for other in others:
            found[root].add(other)
            found[other].add(root)
    return found


def empty(
    traced: TracedModel, graph: ChannelGraph, modelling: Modelling, k: int, seed: int
) -> PartitionedModel:
    model = placements.of_random_blocks(traced, graph, modelling, k, seed).partition.model
    draw = np.random.default_rng(seed)
    without = draw.integers(0, k, len(graph.layers))[model.vertex_layers]
    parts = draw.integers(0, k - 1, len(without))
    parts = (parts + (parts >= without)).astype(np.int32)
    return placements.partitioned(traced, graph, modelling, k, model, parts)


KINDS: dict[str, Callable[..., PartitionedModel]] = {
    "good": good,
    "random": random,
    "shares": shares,
    "apart": apart,
    "empty": empty,
}


# ------------------------------------------------------------------ summary


def summarise() -> None:
    """Per model: runs, the largest differences and what failed."""
    with RESULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = Table("model", "runs", *DIFFERENCES, "MB, counted", "expected", "seconds", "failed")
    for name in [*dict.fromkeys(row["model"] for row in rows), "all"]:
        own = [row for row in rows if name in (row["model"], "all")]
        ran = [row for row in own if row["outputs"]]
        counted, expected = (
            sum(int(row[f"forward_{what}"]) + int(row[f"backward_{what}"]) for row in ran)
            for what in ("bytes", "expected")
        )
        table.add_row(
            name,
            str(len(own)),
            *(f"{max((float(row[each]) for row in ran), default=0):.1e}" for each in DIFFERENCES),
            f"{counted / 1e6:.6f}",
            f"{expected / 1e6:.6f}",
            f"{sum(float(row['seconds']) for row in own):.0f}",
            str(sum(bool(row["failure"]) for row in own)),
        )
    console = Console(width=110)
    console.print(table)
    for row in rows:
        if row["failure"]:
            console.print(*(row[each] for each in (*KEY, "failure")))


if __name__ == "__main__":
    main()
