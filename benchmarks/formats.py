"""Seconds and peak memory to write and read VGG16's coarse hypergraph (24.6 million pins).

    python benchmarks/formats.py [FOLDER]

Every filter and neuron is a vertex; each net is a filter and all readers in the next layer.
Each step runs in a process of its own, with torch imported as the command line has it; its peak
memory includes the hypergraph.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch  # noqa: F401  # its memory counts

from hgpart.hypergraph.formats import read_hmetis, read_patoh, write_hmetis, write_patoh
from hgpart.hypergraph.hypergraph import Hypergraph

LAYERS = [3, 64, 64, 128, 128, 256, 256, 256, *[512] * 6, 4096, 4096, 1000, 1]
STEPS = {"patoh": (write_patoh, read_patoh), "hmetis": (write_hmetis, read_hmetis)}


def dense_chain(layers: list[int]) -> Hypergraph:
    first = np.cumsum([0, *layers])
    sizes = np.repeat(1 + np.array(layers[1:]), layers[:-1])
    pointers = np.cumsum([0, *sizes], dtype=np.int64)
    pins = np.empty(pointers[-1], dtype=np.int32)
    producers = first[-2]
    for layer in range(len(layers) - 1):
        readers = np.arange(first[layer + 1], first[layer + 2])
        for vertex in range(first[layer], first[layer + 1]):
            pins[pointers[vertex]] = vertex
            pins[pointers[vertex] + 1 : pointers[vertex + 1]] = readers
    rng = np.random.default_rng(0)
    return Hypergraph(
        weights=rng.integers(0, 10**8, first[-1]),
        costs=rng.integers(1, 10**8, producers),
        pointers=pointers,
        pins=pins,
        gathers=np.zeros(producers, dtype=np.bool_),
        net_layers=np.zeros(producers, dtype=np.int32),
    )


def measure(name: str, step: Callable[[], object]) -> None:
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"{name:14} {seconds:6.2f} s   peak {peak:5.0f} MB", flush=True)


def write(name: str, path: Path) -> None:
    hypergraph = dense_chain(LAYERS)
    print(f"{hypergraph.vertices} vertices, {hypergraph.nets} nets, {len(hypergraph.pins)} pins")
    measure(f"{name} write", lambda: STEPS[name][0](hypergraph, path))


def read(name: str, path: Path) -> None:
    measure(f"{name} read", lambda: STEPS[name][1](path))


def main(folder: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    for name in STEPS:
        path = folder / f"vgg16.{name}"
        for step in (write, read):
            process = spawn.Process(target=step, args=(name, path))
            process.start()
            process.join()
        print(f"{name:14} {path.stat().st_size / 1e6:6.1f} MB", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else scratch))
