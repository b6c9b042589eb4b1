"""VGG16 by one backend: volume, gap, imbalance and time for each grain and k.

python benchmarks/quality_vgg16.py native|kahypar [seed ...]
"""

from __future__ import annotations

import math
import resource
import sys
import time

from rich.console import Console
from rich.table import Table

import hgpart

ELEMENTS = 2**20  # the thesis's unit: 2^20 elements at batch 32

# Volume to reach at eps 0.1, in 2^20 elements, and the most seconds, on two cores.
GOALS: dict[str, dict[str, dict[int, tuple[float, float] | None]]] = {
    "native": {
        "coarse": {
            **{2: (24.5, 2), 4: (64, 5), 8: (160.7, 5), 16: (393, 5), 32: (880, 5)},
            **{64: (1835, 8), 128: (3690, 10)},
        },
        "fine": {
            **{2: (24.5, 5), 4: (64, 10), 8: (158, 10), 16: (385, 15), 32: (650, 15)},
            **{64: (1130, 20), 128: (1680, 25)},
        },
    },
    "kahypar": {
        "coarse": dict.fromkeys((2, 8, 16, 32, 64)),
        "fine": dict.fromkeys((16, 32, 64, 128)),
    },
}


def main() -> None:
    backend = sys.argv[1]
    seeds = [int(seed) for seed in sys.argv[2:]] or [0]
    model, shape = hgpart.load_model("vgg16", device="meta")
    graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
    work = hgpart.flops(graph)
    table = Table("grain", "k", "goal", "seed", "volume", "bound", "gap", "imbalance")
    for heading in ("seconds", "of", "CPU"):
        table.add_column(heading)
    for grain, goals in GOALS[backend].items():
        modelling = hgpart.Modelling(grain=grain, bytes_per_element=1)
        for k, wanted in goals.items():
            goal, limit = wanted or (math.inf, math.inf)
            for seed in seeds:
                start, cpu = time.perf_counter(), cpu_seconds()
                found = hgpart.partition_graph(
                    graph, work, k, 0.1, modelling=modelling, backend=backend, seed=seed
                )
                if found.interrupted:
                    raise KeyboardInterrupt
                seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
                volume = found.evaluation.volume / ELEMENTS
                assert found.feasible and found.evaluation.imbalance <= 0.1
                table.add_row(
                    *(grain, str(k), f"{goal:g}", str(seed)),
                    f"{volume:.2f}{'' if volume <= goal else '  over'}",
                    f"{found.lower_bound / ELEMENTS:.2f}",
                    f"{found.gap:.1%}",
                    f"{found.evaluation.imbalance:.4f}",
                    *(f"{seconds:.2f}", f"{limit:g}", f"{cpu:.1f}"),
                )
    Console(width=110).print(table)
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


def cpu_seconds() -> float:
    """Of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()
