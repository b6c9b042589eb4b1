"""Bands of rows: native beside KaHyPar, Mt-KaHyPar, filters or slices alone, and named ways.

python benchmarks/bands.py [--models a,b] [--k 2,4,8] [--batch-size 1] [--size S] [--training]
                           [--bands auto|B] [--jsonl FILE] [--minutes M]
python benchmarks/bands.py --table FILE
python benchmarks/bands.py --largest 1GiB,2GiB [--models unet] [--k 4] [--seconds 60]

Native chooses the numbers of bands and, in training, of slices; KaHyPar and Mt-KaHyPar get the same
tiles. Bytes are by hgpart's metrics, at eps 0.1; those of ways that are not within eps are in
brackets. A cell that FILE has is not run again.

With --largest it is the largest square image, in steps of 64, that can be trained on with so much
memory a device, within eps 0.1: by bands and without them, by native and by known ways.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import hgpart
from hgpart.errors import HgpartError
from hgpart.partition.partition import Partition
from hgpart.partition.problem.memory import memory_limits
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve, solve_in_tiles
from hgpart.partition.ways.catalogue import way_named

EPS = 0.1
PEERS = "kahypar", "mtkahypar"
WAYS = "spatial", "data-parallel", "layerwise-volume"
COLUMNS = "native", *PEERS, "filters", "slices", *WAYS
STEP = 64  # of the sizes of images
LARGEST_WAYS = "spatial", "layerwise-volume", "horizontal"
KEY = "model", "k", "batch_size", "size", "training", "bands_asked"

Cell = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(hgpart.builtin_models()))
    parser.add_argument("--k", default="2,4,8")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--size", type=int, help="of the images, instead of the model's own")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--bands", default="auto")
    parser.add_argument("--jsonl", type=Path, default=Path("benchmarks/results/bands.jsonl"))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--largest", help="memory a device, or several of them")
    parser.add_argument("--seconds", type=float, default=60, help="of a search, with --largest")
    options = parser.parse_args()
    if options.table is not None:
        table(read(options.table))
        return
    if options.largest is not None:
        largest_images(options)
        return
    ends = time.monotonic() + 60 * options.minutes
    done = {tuple(cell[name] for name in KEY) for cell in read(options.jsonl)}
    for model in options.models.split(","):
        for k in map(int, options.k.split(",")):
            key = model, k, options.batch_size, options.size, options.training, options.bands
            if key in done or time.monotonic() > ends:
                continue
            cell = dict(zip(KEY, key, strict=True))
            for name, found in partitions(cell):
                modelling = found.modelling
                cell[name] = {
                    "volume": found.evaluation.volume,
                    "feasible": found.feasible,
                    "tiles": [modelling.slices, modelling.bands],
                    "seconds": found_in.pop(name, None),
                }
            with options.jsonl.open("a") as file:
                file.write(json.dumps(cell) + "\n")
            print(*key, cell["native"], flush=True)
    table(read(options.jsonl))


found_in: dict[str, float] = {}  # seconds of each search


def partitions(cell: Cell) -> Iterator[tuple[str, Partition]]:
    """What each column finds; none of a way that is not for the model."""
    graph, work = graph_of(cell["model"], cell["size"])
    training = cell["training"]
    modelling = hgpart.Modelling(batch_size=cell["batch_size"], training=training)
    flat = Problem(graph, work, modelling, cell["k"], EPS)
    any_bands = cell["bands_asked"] == "auto"
    asked = flat if any_bands else flat.in_bands(int(cell["bands_asked"]))

    def timed(name: str, *of: Any) -> Partition:
        began = time.perf_counter()
        found = solve_in_tiles(*of) if name in ("native", "slices") else solve(*of)
        found_in[name] = round(time.perf_counter() - began, 2)
        return found

    native = timed("native", asked, Search(), "native", True, training, any_bands)
    yield "native", native
    same = replace_tiles(flat, native)
    for peer in PEERS:
        yield peer, timed(peer, same, Search(), peer, True)
    yield "filters", timed("filters", flat, Search(), "native", True)
    if training and cell["batch_size"] > 1:
        yield "slices", timed("slices", flat, Search(), "native", True, True)
    for name in WAYS:
        try:
            yield name, way_named(name).partition(flat, Search())
        except HgpartError:
            continue


def replace_tiles(problem: Problem, found: Partition) -> Problem:
    return problem.in_slices(found.modelling.slices).in_bands(found.modelling.bands)


@cache
def graph_of(name: str, size: int | None) -> tuple[hgpart.ChannelGraph, hgpart.Work]:
    model, shape = hgpart.load_model(name, device="meta")
    shape = shape if size is None else (shape[0], size, size)
    graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
    return graph, hgpart.flops(graph)


def largest_images(options: argparse.Namespace) -> None:
    """A row for each model, number of devices and limit."""
    print("| model | k | a device | native, bands | native, no bands |", end="")
    print(*(f" {name} |" for name in LARGEST_WAYS), sep="")
    print("|---" * (5 + len(LARGEST_WAYS)) + "|")
    for model in options.models.split(","):
        for k in map(int, options.k.split(",")):
            for limit in options.largest.split(","):
                sizes = largest_of_each(model, k, limit, options.batch_size, options.seconds)
                print(f"| {model} | {k} | {limit} |", *(f"{size} |" for size in sizes), flush=True)


def largest_of_each(
    model: str, k: int, limit: str, batch_size: int, seconds: float
) -> tuple[int, ...]:
    """Sizes of the largest images: by native with bands and without, then by `LARGEST_WAYS`."""
    memory = memory_limits([limit], k)
    modelling = hgpart.Modelling(batch_size=batch_size, training=True)

    def fits(divide: Callable[[Problem], Partition], size: int) -> bool:
        try:
            found = divide(Problem(*graph_of(model, size), modelling, k, EPS))
        except HgpartError:
            return False
        return found.feasible and memory.hold(memory.needed(found.model, found.parts))

    def native(problem: Problem, bands: bool) -> Partition:
        limited = replace(problem, memory=memory)
        return solve_in_tiles(limited, Search(time_limit=seconds), any_bands=bands)

    def by_way(name: str) -> int:
        return largest(partial(fits, lambda problem: way_named(name).partition(problem, Search())))

    ways = [by_way(name) for name in LARGEST_WAYS]
    whole = largest(partial(fits, partial(native, bands=False)), max(ways[1:]))
    banded = largest(partial(fits, partial(native, bands=True)), max(whole, ways[0]))
    return banded, whole, *ways


def largest(fits: Callable[[int], bool], least: int = 0) -> int:
    """The largest multiple of STEP that fits, at least `least`, if all smaller ones do."""
    low, above = least // STEP, 1
    while fits((low + above) * STEP):
        low, above = low + above, 2 * above
    high = low + above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * STEP) else (low, middle)
    return low * STEP


def read(path: Path) -> list[Cell]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(cells: list[Cell]) -> None:
    """A row of MB for each cell; then native beside the better peer, and beside each column."""
    print("| model | k | batch | tiles |", *(f"{name} |" for name in COLUMNS), "s |")
    print("|---" * (5 + len(COLUMNS)) + "|")
    for cell in cells:
        row = [cell["model"], str(cell["k"]), str(cell["batch_size"])]
        row.append(" x ".join(map(str, cell["native"]["tiles"])))
        for name in COLUMNS:
            found = cell.get(name)
            text = "" if found is None else f"{found['volume'] / 1e6:.3f}"
            row.append(text if found is None or found["feasible"] else f"({text})")
        print(f"| {' | '.join(row)} | {cell['native']['seconds']:.1f} |")
    for name in ("better peer", *COLUMNS[1:]):
        ratios = [ratio for cell in cells if (ratio := beside(cell, name)) is not None]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            no_worse = sum(ratio <= 1 for ratio in ratios)
            print(f"native / {name}: {mean:.3f} of {len(ratios)} cells; no worse in {no_worse}")


def beside(cell: Cell, name: str) -> float | None:
    """Native's bytes by those of a column, where both are within eps and something travels."""
    names = PEERS if name == "better peer" else (name,)
    found = [cell[each] for each in names if each in cell and cell[each]["feasible"]]
    least = min((each["volume"] for each in found), default=0)
    own = cell["native"]
    return own["volume"] / least if least and own["feasible"] and own["volume"] else None


if __name__ == "__main__":
    main()
