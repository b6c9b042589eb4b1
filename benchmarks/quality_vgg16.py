"""VGG16 by blocks and KaHyPar: volume, imbalance and time for each grain and k.

python benchmarks/quality_vgg16.py [seed ...]
"""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.table import Table

import hgpart

ELEMENTS = 2**20  # the thesis's unit: 2^20 elements at batch 32

# Volume to reach at eps 0.1, in 2^20 elements.
GOALS = {
    "coarse": {2: 24.5, 8: 165, 16: 410, 32: 930, 64: 1925},
    "fine": {16: 400, 32: 680, 64: 1215, 128: 1820},
}


def main() -> None:
    seeds = [int(seed) for seed in sys.argv[1:]] or [0]
    model, shape = hgpart.load_model("vgg16", device="meta")
    graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
    work = hgpart.flops(graph)
    table = Table("grain", "k", "goal", "seed", "volume", "imbalance", "layer-wise", "seconds")
    for grain, goals in GOALS.items():
        modelling = hgpart.Modelling(grain=grain, bytes_per_element=1)
        for k, goal in goals.items():
            layerwise = hgpart.evaluate_layerwise(graph, work, modelling, k)
            for seed in seeds:
                start = time.perf_counter()
                found = hgpart.partition_graph(graph, work, k, 0.1, modelling=modelling, seed=seed)
                seconds = time.perf_counter() - start
                volume = found.evaluation.volume / ELEMENTS
                assert found.feasible and found.evaluation.imbalance <= 0.1
                mark = "" if volume <= goal else "  over"
                table.add_row(
                    grain,
                    str(k),
                    f"{goal:g}",
                    str(seed),
                    f"{volume:.1f}{mark}",
                    f"{found.evaluation.imbalance:.4f}",
                    f"{layerwise.volume / ELEMENTS:.1f} at {layerwise.imbalance:.3f}",
                    f"{seconds:.2f}",
                )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
