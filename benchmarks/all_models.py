"""Every built-in model, coarse and fine, k = 2, 4, 8, 16, KaHyPar: is eps 0.1 met, at what volume.

    python benchmarks/all_models.py [model ...] writes benchmarks/results/all_models.csv when it
is run for all models.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

import hgpart
from hgpart.errors import InfeasibleError

RESULTS = Path(__file__).parent / "results" / "all_models.csv"
COLUMNS = (
    "model",
    "grain",
    "k",
    "imbalance",
    "volume_mb",
    "layerwise_imbalance",
    "layerwise_volume_mb",
    "seconds",
    "why_not",
)


def main() -> None:
    names = sys.argv[1:] or list(hgpart.builtin_models())
    rows = []
    for name in names:
        start = time.perf_counter()
        model, shape = hgpart.load_model(name, device="meta")
        graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
        work = hgpart.flops(graph)
        print(f"{name}: traced in {time.perf_counter() - start:.1f} s", flush=True)
        for grain in ("coarse", "fine"):
            modelling = hgpart.Modelling(grain=grain)
            for k in (2, 4, 8, 16):
                layerwise = hgpart.evaluate_layerwise(graph, work, modelling, k)
                start = time.perf_counter()
                row = [name, grain, k]
                try:
                    found = hgpart.partition_graph(
                        graph, work, k, 0.1, modelling=modelling, backend="kahypar"
                    )
                    assert found.evaluation.imbalance <= 0.1
                    row += [f"{found.evaluation.imbalance:.4f}"]
                    row += [f"{found.evaluation.volume / 1e6:.3f}"]
                    why_not = ""
                except InfeasibleError as error:
                    row += ["", ""]
                    why_not = str(error)
                seconds = time.perf_counter() - start
                row += [f"{layerwise.imbalance:.4f}", f"{layerwise.volume / 1e6:.3f}"]
                row += [f"{seconds:.2f}", why_not]
                rows.append(row)
                print(*row, sep=",", flush=True)
    if not sys.argv[1:]:
        with RESULTS.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(rows)


if __name__ == "__main__":
    main()
