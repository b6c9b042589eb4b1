"""Native metrics against clear NumPy ones, on a chain of dense layers with 25 million pins.

    python benchmarks/native_metrics.py

Each figure is the best of three runs. Both sides must agree before anything is printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import communication_volume, traffic

K = 16
LAYERS = 26
WIDTH = 1000


def dense_chain(layers: int, width: int, rotated: bool) -> Hypergraph:
    """Each filter's map is read by all filters of the next layer.

    All nets of a layer list their readers in the same order or, `rotated`, each in its own: then
    the native search can't be spared for any net.
    """
    vertices = layers * width
    producers = np.arange(vertices - width, dtype=np.int32)
    first_reader = (producers // width + 1) * width
    start = producers if rotated else np.zeros_like(producers)
    order = (start[:, None] + np.arange(width, dtype=np.int32)) % width
    readers = first_reader[:, None] + order
    nets = len(producers)
    return Hypergraph(
        weights=np.arange(vertices, dtype=np.int64),
        costs=np.arange(nets, dtype=np.int64),
        pointers=np.arange(nets + 1, dtype=np.int64) * (width + 1),
        pins=np.concatenate([producers[:, None], readers], axis=1).ravel(),
        gathers=producers % 2 == 1,
        net_layers=producers // width,
    )


def incidence(hypergraph: Hypergraph, parts: NDArray[np.int32], k: int) -> NDArray[np.bool_]:
    """Whether net e has a pin in part p, at [e, p]."""
    net_of_pin = np.repeat(np.arange(hypergraph.nets), np.diff(hypergraph.pointers))
    present = np.zeros((hypergraph.nets, k), dtype=np.bool_)
    present[net_of_pin, parts[hypergraph.pins]] = True
    return present


def numpy_volume(hypergraph: Hypergraph, parts: NDArray[np.int32], k: int) -> int:
    return int(hypergraph.costs @ (incidence(hypergraph, parts, k).sum(axis=1) - 1))


def numpy_traffic(hypergraph: Hypergraph, parts: NDArray[np.int32], k: int) -> NDArray:
    others = incidence(hypergraph, parts, k)
    root = parts[hypergraph.pins[hypergraph.pointers[:-1]]]
    others[np.arange(hypergraph.nets), root] = False
    net, other = np.nonzero(others)
    gathers = hypergraph.gathers[net]
    senders = np.where(gathers, other, root[net])
    receivers = np.where(gathers, root[net], other)
    table = np.zeros((k, k), dtype=np.int64)
    np.add.at(table, (senders, receivers), hypergraph.costs[net])
    return table


def best_of_three(function: Callable[[], object]) -> tuple[float, object]:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def main() -> None:
    metrics = {
        "volume": (numpy_volume, communication_volume),
        "traffic": (numpy_traffic, traffic),
    }
    print(f"{'readers':10}{'parts':19}{'metric':14}{'numpy s':>10}{'native s':>10}{'ratio':>8}")
    for order in ("same", "rotated"):
        hypergraph = dense_chain(LAYERS, WIDTH, rotated=order == "rotated")
        layer, place = np.divmod(np.arange(hypergraph.vertices), WIDTH)
        partitions = {
            "random": np.random.default_rng(0).integers(0, K, len(layer), dtype=np.int32),
            "4 blocks a layer": ((layer + place * 4 // WIDTH) % K).astype(np.int32),
        }
        for partition, parts in partitions.items():
            for metric, (in_numpy, native) in metrics.items():
                slow, expected = best_of_three(partial(in_numpy, hypergraph, parts, K))
                fast, result = best_of_three(partial(native, hypergraph, parts, K))
                assert np.array_equal(result, expected), metric
                print(
                    f"{order:10}{partition:19}{metric:14}{slow:10.3f}{fast:10.4f}{slow / fast:8.1f}"
                )
    print(f"{len(hypergraph.pins):,} pins, {hypergraph.nets:,} nets, k = {K}")


if __name__ == "__main__":
    main()
